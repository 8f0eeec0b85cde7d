"""The steps of a round in few kernels, for usual models on a GPU.

The results are those of `Steps`. The layers are computed by `model.rows`, the policy's side by
`recorded.kernels`; only the system's own functions run as they are.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from waitinfo.model.row_layers import Prefix, RowLayers, RowPositions
from waitinfo.streaming.engine.loops import LONGEST
from waitinfo.streaming.recorded import kernels
from waitinfo.streaming.recorded.memory import BLOCK
from waitinfo.streaming.recorded.steps import Bounds, Steps
from waitinfo.systems.base import System
from waitinfo.systems.interface import PolicyState, Step
from waitinfo.text.special import EOS

ROWS = 128  # of a program that has little to do


class FusedSteps(Steps):
    """For models that `model.rows.fusible` accepts, and systems whose heads see the same."""

    @cached_property
    def layers(self) -> RowLayers:
        return RowLayers(self.model)

    def encode(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        state, rows = self.state, inputs.shape[1]
        table = self.source.table.device
        ints = torch.empty(6, rows, dtype=torch.int64, device=inputs.device)
        kernels.arrive[(-(-rows // ROWS),)](
            inputs, table, state.repeats, ints, rows, table.stride(0), state.repeats.stride(0),
            SIZE=ROWS, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        slot, at, tokens, count, block, offset = ints
        x, info = self.layers.embed_source(tokens, at, state.source_positions)
        place = RowPositions(slot, count, table, block, offset)
        values = self.layers.encode(x, info, place, self.source.caches, self.source.memories)
        kernels.note[(rows,)](
            ints, x if info is None else info, values, state.info, out, rows, values.shape[1],
            values.stride(0), state.info.stride(0),
            WIDTH=kernels.power(values.shape[1]), HAS_INFO=info is not None, num_warps=4,
        )  # fmt: skip

    def write(self, inputs: Tensor, out: Tensor, bounds: Bounds) -> None:
        state, model = self.state, self.model
        ints, floats, whole, x, info = self._choose(inputs, bounds.window)
        slot, _, written, seen, count, forced = ints[:6]
        prefix = self._prefix(seen, written, floats[0])
        place = RowPositions(slot, count, self.target.table.device)
        states = self.layers.decode(
            x, info, place, prefix, self.target.caches, self.source.memories
        )
        logits = model.logits(states).contiguous()
        tokens, finite = self.layers.kernels.best_tokens(logits, forced)
        following, next_info = self.layers.embed_target(tokens, count, state.target_positions)
        accepted = None
        if type(self.system).accept is not System.accept:
            policy = _policy(floats, ints[1:3], whole)
            asked = {"logits": logits, "states": states}
            step = Step(tokens, [], model.write_logits(states), asked)
            accepted = self.system.accept(policy, step).to(slot.device)

        rows, width = x.shape
        after = torch.empty(4, rows, dtype=torch.int64, device=x.device)
        totals = torch.empty(3, rows, dtype=torch.float64, device=x.device)
        whole_after = torch.empty(rows, dtype=torch.int8, device=x.device)
        has_info, has_source = next_info is not None, model.source_info is not None
        kernels.finish[(rows,)](
            inputs, ints, floats, whole, tokens, finite.view(torch.int8),
            whole if accepted is None else accepted, x, following, info if has_info else x,
            next_info if has_info else x, state.counts, state.sums, state.next_x,
            state.next_info if has_info else x, state.info, state.targets, state.runs,
            state.repeats, after, totals, whole_after, out, rows, width, state.info.stride(0),
            state.info.shape[1] - 1, state.targets.stride(0), state.repeats.stride(0),
            WIDTH=kernels.power(width), HAS_INFO=has_info, HAS_SOURCE_INFO=has_source,
            ASKED=accepted is not None, GUARD=self.guard, CUTS=self.cuts_loops, END=EOS,
            PERIODS=LONGEST, num_warps=4,
        )  # fmt: skip
        allowed = self.system.ready(_policy(totals, after[:2], whole_after))
        kernels.report[(-(-rows // ROWS),)](
            after, whole_after, allowed, out, rows, BLOCK=ROWS, num_warps=4
        )

    def _choose(
        self, inputs: Tensor, window: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """READ on: integers [8, R], dial and totals [3, R], which are complete; the next inputs."""
        state, rows, device = self.state, inputs.shape[1], inputs.device
        numbers = torch.empty(3, rows * window, dtype=torch.float64, device=device)
        reads = torch.empty(2, rows * window, dtype=torch.int64, device=device)
        complete = torch.empty(rows * window, dtype=torch.int8, device=device)
        fresh = torch.empty(rows, dtype=torch.int64, device=device)
        kernels.begin[(rows,)](
            inputs, state.counts, state.sums, state.info, numbers, reads, complete, fresh,
            rows, state.info.stride(0), state.info.shape[1] - 1,
            WINDOW=window, HAS_INFO=self.model.source_info is not None, num_warps=1,
        )  # fmt: skip
        allowed = self.system.ready(_policy(numbers, reads, complete))
        ints = torch.empty(kernels.INTEGERS, rows, dtype=torch.int64, device=device)
        floats = torch.empty(3, rows, dtype=torch.float64, device=device)
        whole = torch.empty(rows, dtype=torch.int8, device=device)
        width = state.next_x.shape[1]
        x = state.next_x.new_empty(rows, width)
        info = None if state.next_info is None else state.next_info.new_empty(rows)
        kernels.choose[(rows,)](
            inputs, state.counts, numbers, reads, complete, fresh, allowed, state.next_x,
            state.first.x, x if state.next_info is None else state.next_info, ints, floats, whole,
            x, x if info is None else info, rows, width,
            WINDOW=window, WIDTH=kernels.power(width), HAS_INFO=info is not None,
            num_warps=4,
        )  # fmt: skip
        return ints, floats, whole, x, info

    def _prefix(self, seen: Tensor, written: Tensor, k: Tensor) -> Prefix:
        heads = self.model.config.heads
        visible = self.system.visible(seen[:, None], written[:, None], k[:, None], heads)
        info = None if self.model.source_info is None else self.state.info
        return Prefix(visible[:, 0].contiguous(), self.source.table.device, info)


def _policy(numbers: Tensor, counts: Tensor, complete: Tensor) -> PolicyState:
    """numbers: dial, source and target info; counts: read and written."""
    return PolicyState(
        numbers[0], counts[0], counts[1], complete.view(torch.bool), numbers[1], numbers[2]
    )
