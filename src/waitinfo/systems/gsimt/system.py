"""GSiMT: READ and WRITE as latent actions, summed over in training (Miao et al., 2021).

At every point (i, j) of the lattice, the model writes the next token with probability w_ij and
reads with probability 1 - w_ij. Once the whole source is read, it always writes. The loss is
-log p(y | x), where

    p(y | x) = sum over paths  prod over READs (1 - w_ij)  prod over WRITEs w_ij p(y_j+1 | i, j)

plus the KL divergence of the policy from a prior that reads about zeta tokens ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from waitinfo.errors import WaitinfoError
from waitinfo.model.batch import Batch
from waitinfo.model.config import ModelConfig
from waitinfo.model.transformer import Transformer
from waitinfo.systems.base import (
    Dial,
    LossContext,
    Losses,
    PolicyState,
    Step,
    System,
    SystemOptions,
)
from waitinfo.systems.gsimt.lattice import (
    NEVER,
    diagonal,
    expected_cost,
    lattice_points,
    log_marginal,
)
from waitinfo.systems.gsimt.prefixes import (
    point_scores,
    prefix_groups,
    prefix_states,
    send,
    send_groups,
    stack_memories,
)

UNLIKELY = 1e-3  # minimum prior probability of either action: with 0 the divergence is infinite


@dataclass(frozen=True)
class GSiMTOptions(SystemOptions):
    zeta: float = 4.0  # source tokens that the prior reads ahead
    prior_weight: float = 1.0
    band: int = 8  # leave out lattice points further from reading zeta ahead; 0: keep all points
    positions_at_once: int = 8192  # decoder positions stored in memory at a time

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("zeta", "prior_weight", "band"):
            if not 0 <= getattr(self, name) < math.inf:
                raise WaitinfoError(f"system.{name} {getattr(self, name):g}: must be 0 or more")
        if self.positions_at_once < 1:
            raise WaitinfoError(
                f"system.positions_at_once {self.positions_at_once}: must be at least 1"
            )


@dataclass(frozen=True)
class Actions:
    """Log-probabilities of both actions at each point: [B, S, T], NEVER where impossible."""

    read: Tensor
    write: Tensor

    @classmethod
    def of(cls, logits: Tensor, inside: Tensor, complete: Tensor) -> Actions:
        """From logits of WRITE, with masks of points in the lattice and of completed sources.

        All are [B, S, T].
        """
        read = F.logsigmoid(-logits).masked_fill(~inside | complete, NEVER)
        write = F.logsigmoid(logits).masked_fill(complete, 0.0).masked_fill(~inside, NEVER)
        return cls(read, write)


def poisson_prior(lead: Tensor, zeta: float) -> Tensor:
    """Prior probability of WRITE at a lead of `lead` source tokens: P(L <= lead).

    L, the lead that the next token needs, follows a Poisson distribution with mean zeta. For a
    whole number zeta, the median of L is zeta, so WRITE is the more probable action from a lead of
    zeta on, as in wait-zeta.
    """
    lead = lead.double()
    reached = torch.special.gammaincc(lead.clamp_min(0) + 1, torch.full_like(lead, zeta))
    return reached.masked_fill(lead < 0, 0.0).clamp(UNLIKELY, 1 - UNLIKELY)


def prior_divergence(actions: Actions, prior: Tensor, free: Tensor) -> Tensor:
    """KL divergence of the policy's paths from the prior's, summed over the batch.

    By the chain rule, it is the sum over points of the divergence between the two Bernoulli
    distributions there, times the probability that the policy visits the point. prior [B, S, T]:
    prior probability of WRITE; free [B, S, T]: points with a choice.
    """
    write, read = actions.write.exp(), actions.read.exp()
    divergence = write * (actions.write - prior.log()) + read * (actions.read - (-prior).log1p())
    divergence = divergence.masked_fill(~free, 0.0)
    return expected_cost(actions.read, actions.write, divergence).sum()


class GSiMT(System):
    name = "gsimt"
    summary = "latent READ and WRITE, summed over in training; one model for each zeta"
    dial = Dial(
        "threshold", 0.5, minimum=0.0, maximum=1.0, whole=False,
        help="minimum probability of WRITE to write a token",
    )  # fmt: skip
    model_defaults = MappingProxyType({"write_head": True})
    fresh_past = True
    plans_by_length = True  # groups of prefixes depend on the lengths
    Options = GSiMTOptions
    options: GSiMTOptions

    def check_model(self, config: ModelConfig) -> None:
        super().check_model(config)
        if not config.write_head:
            raise WaitinfoError("model.write_head false: gsimt requires a write head; set it true")
        if config.info != "none":
            raise WaitinfoError(f"model.info {config.info}: gsimt does not use info; choose none")

    def loss(self, model: Transformer, batch: Batch, context: LossContext) -> Losses:
        if context.k is None and context.update < self.options.whole_source_updates:
            return super().loss(model, batch, context)
        n, m = torch.from_numpy(np.array(batch.lengths)).unbind(-1)
        points = lattice_points(n, m, self.options.zeta, self.options.band)
        gold, mean, write = self._scores(model, batch, points)
        inside = send(points, gold.device)
        n, m = batch.source_lengths[:, None, None], batch.target_lengths[:, None, None]
        read = torch.arange(1, points.shape[1] + 1, device=gold.device)[:, None]
        written = torch.arange(points.shape[2], device=gold.device)
        complete = read >= n
        actions = Actions.of(write, inside, complete)

        smoothing = context.label_smoothing
        # On a single path this is the label-smoothed cross-entropy of the other systems.
        tokens = torch.stack([(1 - smoothing) * gold + smoothing * mean, gold.detach()])
        likelihoods = log_marginal(
            actions.read.repeat(2, 1, 1),
            (actions.write + tokens).flatten(0, 1),
            batch.target_lengths.repeat(2),
        )
        total, plain = -likelihoods.view(2, -1).sum(-1)
        prior = poisson_prior(read - diagonal(n, m, written), self.options.zeta).to(gold.dtype)
        divergence = prior_divergence(actions, prior, inside & ~complete)
        parts = {"nll": plain.detach(), "prior": divergence.detach()}
        return Losses(total + self.options.prior_weight * divergence, parts)

    def _scores(
        self, model: Transformer, batch: Batch, points: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability of the gold token, mean log-probability, log-odds of WRITE: [B, S, T]."""
        encoded = model.encode(model.embed_source(batch.source), batch.source_lengths)
        target = model.embed_target(batch.target_in)
        tokens = batch.target_out[:, None, : points.shape[2]].expand(points.shape).flatten()
        groups = prefix_groups(points, self.options.positions_at_once)
        keep = sum(group.positions for group in groups) <= self.options.positions_at_once
        memories = stack_memories(encoded)
        groups = send_groups(groups, model.device)
        states = [prefix_states(model, target, memories, group, keep) for group in groups]
        index = torch.cat([group.points for group in groups])
        found = point_scores(model, torch.cat(states), tokens[index], keep)
        scores = torch.stack([found.gold, found.mean, found.write])
        spread = scores.new_zeros(3, points.numel()).index_copy(1, index, scores)
        gold, mean, write = spread.view(3, *points.shape)
        return gold, mean, write

    def ready(self, state: PolicyState) -> Tensor:
        return torch.ones_like(state.complete)

    def accept(self, state: PolicyState, step: Step) -> Tensor:
        assert step.write is not None
        return step.write.double().sigmoid().to(state.k.device) >= state.k
