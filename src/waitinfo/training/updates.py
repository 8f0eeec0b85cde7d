"""Updates: the loss of batches, its gradient, and what the optimizer makes of it.

Updates without a finite gradient are skipped and counted. The decision stays on the device, so that
a GPU is not asked after each update: fused optimizers take it as `found_inf`, the flag that
gradient scalers set. All processes decide alike, because gradients are averaged over them before
the norm is taken.

On a GPU, a small model spends most of an update in launching kernels, hundreds of them, one by one
from Python. Batches have few shapes (like lengths together, padded to multiples), so the update of
a shape is recorded as a CUDA graph when it comes for the second time, and afterwards costs one
launch. What changes from update to update (tokens, dial, learning rate) is written into the
recording's own inputs.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from waitinfo.model.batch import Batch
from waitinfo.model.transformer import Transformer
from waitinfo.systems import LossContext, Losses, System
from waitinfo.systems.base import DialValue
from waitinfo.training.batches import UpdateBatches
from waitinfo.training.config import TrainingConfig
from waitinfo.training.distributed import ProcessGroup


class Skips(NamedTuple):
    """Updates that were skipped."""

    total: int
    in_a_row: int  # up to the latest update; 0 if that one was applied


class FiniteGuard:
    """Decides from the norm of the gradient whether an update is applied."""

    def __init__(self, device: torch.device) -> None:
        # Written in place: recorded updates refer to these very tensors.
        self.skip = torch.zeros((), device=device)  # 1 if the latest update is skipped, else 0
        self._counts = torch.zeros(2, dtype=torch.int64, device=device)

    def judge(self, norm: Tensor) -> None:
        """Decide about an update by the norm of its gradient."""
        self.skip.copy_(~norm.isfinite())
        skip = self.skip.long()
        self._counts.copy_(torch.stack([self._counts[0] + skip, (self._counts[1] + 1) * skip]))

    def keep(self, value: Tensor) -> Tensor:
        """A value of the latest update; 0 if that was skipped."""
        return torch.where(self.skip.bool(), torch.zeros_like(value), value)

    def used(self, amount: int) -> Tensor:
        """How much of an amount the latest update used: all or nothing."""
        return (1 - self.skip.double()) * amount

    def counts(self) -> Skips:
        """Wait for the device and fetch the counts."""
        return Skips(*self._counts.tolist())

    def restore(self, total: int) -> None:
        self._counts.copy_(torch.tensor([total, 0]))


def all_finite(tensors: Iterable[Tensor], device: torch.device) -> bool:
    """Whether no tensor holds infinity or NaN."""
    found = [tensor.isfinite().all().to(device) for tensor in tensors]
    return not found or bool(torch.stack(found).all())


class Objective(nn.Module):
    """A system's loss as a module, so that distributed training can wrap it."""

    def __init__(self, model: Transformer, system: System) -> None:
        super().__init__()
        self.model, self.system = model, system

    def forward(self, batch: Batch, context: LossContext) -> tuple[Tensor, dict[str, Tensor]]:
        losses: Losses = self.system.loss(self.model, batch, context)
        return losses.total, losses.parts


def batch_seed(seed: int, place: int) -> int:
    digest = hashlib.blake2b(f"{seed}:{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int) -> None:
    """Where dropout falls from here on."""
    torch.manual_seed(seed)


class Updater:
    """Applies updates to a model."""

    def __init__(
        self, model: Transformer, system: System, config: TrainingConfig, processes: ProcessGroup
    ) -> None:
        self.model, self.system, self.config, self.processes = model, system, config, processes
        self.device = processes.device
        self.before_loss: Callable[[], None] | None = None  # of fused kernels
        self.guard = FiniteGuard(self.device)
        self.optimizer = self._optimizer()
        self.objective = self._objective()
        self.graphs = self._graphs()
        several = self.graphs is not None and config.accumulate > 1
        self.gradients = GradientSums(model.parameters()) if several else None

    def _optimizer(self) -> torch.optim.Optimizer:
        config = self.config
        cuda = self.device.type == "cuda"
        optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=torch.tensor(config.lr, device=self.device) if cuda else config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=cuda,
        )
        if cuda:
            optimizer.found_inf = self.guard.skip  # type: ignore[attr-defined]
        return optimizer

    def _objective(self) -> nn.Module:
        objective = Objective(self.model, self.system)
        if self.processes.size == 1:
            return objective
        # A parameter may be unused in a batch, for example a quantizer that an option turned off.
        return DistributedDataParallel(objective, find_unused_parameters=True)

    def _graphs(self) -> GraphedUpdates | None:
        alone = self.processes.size == 1
        if not (self.config.graphs and alone and self.device.type == "cuda"):
            return None
        return GraphedUpdates(self.device) if recordable(self.system) else None

    def run(self, item: UpdateBatches, update: int, lr: float) -> dict[str, Tensor]:
        """One update; the sums of its losses over this process's batches, 0 if it is skipped."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        if self.graphs:
            return self._run_graphed(self.graphs, item, update)
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for number, (place, batch) in enumerate(item.batches, 1):
            context = self.context(place, update)
            last = number == len(item.batches)
            share = self.processes.size / item.tokens
            for name, value in self._backward(batch.to(self.device), context, share, last).items():
                sums[name] = sums[name] + value if name in sums else value
        return self.apply(sums)

    def _run_graphed(
        self, graphs: GraphedUpdates, item: UpdateBatches, update: int
    ) -> dict[str, Tensor]:
        """The same; replayed if a batch of the same shape was recorded."""
        if self.gradients:
            return self._run_summed(graphs, self.gradients, item, update)
        ((place, batch),) = item.batches
        context = self.context(place, update)

        def compute(batch: Batch, dial: Tensor | None, share: Tensor) -> dict[str, Tensor]:
            self.optimizer.zero_grad(set_to_none=True)
            return self.apply(self._backward(batch, replace(context, dial=dial), share))

        dial, share = self._dial(batch, context), 1 / item.tokens
        return graphs.run(compute, batch, dial, share, stage(self.system, update))

    def _run_summed(
        self, graphs: GraphedUpdates, sums: GradientSums, item: UpdateBatches, update: int
    ) -> dict[str, Tensor]:
        """The same with several batches: each adds to the gradient, which is applied at the end."""
        now, losses = stage(self.system, update), dict[str, Tensor]()
        for place, batch in item.batches:
            context = self.context(place, update)

            def compute(
                batch: Batch, dial: Tensor | None, share: Tensor, context: LossContext = context
            ) -> dict[str, Tensor]:
                self.optimizer.zero_grad(set_to_none=True)
                found = self._backward(batch, replace(context, dial=dial), share)
                sums.add(now)
                return found

            found = graphs.run(compute, batch, self._dial(batch, context), 1 / item.tokens, now)
            # A recording writes its losses into the same place each time.
            for name, value in found.items():
                losses[name] = losses[name] + value if name in losses else value.clone()
        sums.hand_over(now)
        losses = self.apply(losses)
        sums.clear()
        return losses

    def _dial(self, batch: Batch, context: LossContext) -> DialValue | None:
        """What the recorded loss would draw itself."""
        dial = self.system.training_dial(batch, context)
        assert not isinstance(dial, Tensor)
        return dial

    def context(self, place: int, update: int) -> LossContext:
        """The context of a batch's loss; sets the seed of everything random in it."""
        seed = batch_seed(self.config.seed, place)
        seed_everything(seed)
        return LossContext(update, random.Random(seed), self.config.label_smoothing)

    def _backward(
        self, batch: Batch, context: LossContext, share: float | Tensor, last: bool = True
    ) -> dict[str, Tensor]:
        """Add one batch's share to the gradient of an update; the batch's losses."""
        if isinstance(self.objective, DistributedDataParallel):
            self.objective.require_backward_grad_sync = last
        with self.autocast():
            if self.before_loss:
                self.before_loss()
            total, parts = self.objective(batch, context)
        # Distributed gradients are averaged over processes; the loss is a sum over all of them.
        (total * share).backward()
        return {"loss": total.detach(), **parts}

    def apply(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Let the optimizer use the gradient if it is finite; the losses, 0 if it is not."""
        limit = self.config.clip or math.inf
        self.guard.judge(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        # The fused optimizer looks at the guard itself.
        if self.device.type == "cuda" or not self.guard.skip:
            self.optimizer.step()
        return {name: self.guard.keep(value) for name, value in losses.items()}

    @property
    def half(self) -> bool:
        """Whether it computes in bfloat16."""
        precision = self.config.precision
        return precision == "bfloat16" or (precision == "auto" and self.device.type == "cuda")

    def autocast(self) -> torch.autocast:
        # Recorded updates must cast the weights themselves, not reuse earlier casts.
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.half, cache_enabled=self.graphs is None
        )


SEEN = 1  # how often a shape is computed normally before it is recorded
MOST = 128  # recordings of a stage

# Computes a batch's part of an update: batch, dial, share of the gradient; returns the losses.
Update = Callable[[Batch, Tensor | None, Tensor], dict[str, Tensor]]


def recordable(system: System) -> bool:
    """Whether all updates of one shape launch the same kernels."""
    return not system.plans_by_length


def stage(system: System, update: int) -> tuple[bool, ...]:
    """Which milestones of a system are ahead: within a stage its loss runs the same code."""
    return tuple(update < getattr(system.options, name) for name in system.milestones)


@dataclass
class RecordedUpdate:
    graph: torch.cuda.CUDAGraph
    batch: Batch
    dial: Tensor | None
    share: Tensor
    losses: dict[str, Tensor]

    def replay(self, batch: Batch, dial: DialValue | None, share: float) -> dict[str, Tensor]:
        for name, tensor in vars(self.batch).items():
            if isinstance(tensor, Tensor):
                tensor.copy_(getattr(batch, name), non_blocking=True)
        if self.dial is not None and dial is not None:
            if isinstance(dial, tuple):
                self.dial.copy_(torch.tensor(dial))
            else:
                self.dial.fill_(dial)
        self.share.fill_(share)
        self.graph.replay()
        return self.losses


class GradientSums:
    """Sums of the gradients of an update's batches, in one place for all recordings.

    Parameters that have had no gradient in a stage have none in its updates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.used: dict[Hashable, list[int]] = {}

    def add(self, stage: Hashable) -> None:
        """Add the gradient of one batch."""
        grads = {n: p.grad for n, p in enumerate(self.parameters) if p.grad is not None}
        self.used[stage] = sorted({*self.used.get(stage, ()), *grads})
        torch._foreach_add_([self.sums[n] for n in grads], list(grads.values()))

    def hand_over(self, stage: Hashable) -> None:
        """Make the sums the gradients that the optimizer sees."""
        for parameter in self.parameters:
            parameter.grad = None
        for n in self.used[stage]:
            self.parameters[n].grad = self.sums[n]

    def clear(self) -> None:
        torch._foreach_zero_(self.sums)


class GraphedUpdates:
    """Runs updates, recording those whose shape comes again and again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seen: Counter[Hashable] = Counter()
        self.recordings: dict[tuple[Hashable, ...], RecordedUpdate] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def run(
        self, update: Update, batch: Batch, dial: DialValue | None, share: float, stage: Hashable
    ) -> dict[str, Tensor]:
        """One batch. Everything else that `update` does may depend only on the stage."""
        key = (tuple(batch.source.shape), tuple(batch.target_in.shape), dial is None, stage)
        if recording := self.recordings.get(key):
            return recording.replay(batch, dial, share)
        self.seen[key] += 1
        own = batch.to(self.device)
        dials = None if dial is None else torch.tensor(dial, device=self.device)
        shares = torch.tensor(share, device=self.device)
        recorded = sum(each[-1] == stage for each in self.recordings)
        if self.seen[key] <= SEEN or recorded >= MOST:
            return update(own, dials, shares)
        graph = torch.cuda.CUDAGraph()
        # Other threads prepare and pin batches meanwhile, which a stricter mode would forbid.
        with torch.cuda.graph(graph, self.pool, capture_error_mode="thread_local"):
            losses = update(own, dials, shares)
        self.recordings[key] = RecordedUpdate(graph, own, dials, shares, losses)
        return self.recordings[key].replay(batch, dial, share)
