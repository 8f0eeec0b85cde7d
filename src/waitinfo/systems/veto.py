"""Veto: wait-info that writes sooner what is certain, and later what is not.

Where wait-info needs K info more than were used, the veto attempts to write from `sooner` info
before that on. The next token is computed, and a head judges the risk that the whole source would
want another one there; a token of little risk is written, else one more source token is read. For
a model without a head, the token is predicted twice: from what was read, and from one source token
less. It is written if both agree. At `later` info beyond the need of wait-info it is written in any
case. So the lag is bounded on both sides.

The margin is what was received beyond the need of the first attempt.

What was won by waiting is given up slowly: after a WRITE at margin m, the next needs a margin of
at least keep · m. Without this, a policy that has waited writes a burst, and each token of it sees
as little of the source ahead as it would have without waiting.

The end of a sentence gives up all lag. A stream without sentence ends has none, so that lag would
only grow, by what is kept and by a rate above 1. Once its window has moved on, nothing is kept,
what of the translation stayed in view counts once, and it may be longer than the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import byref
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.config import ModelConfig
from waitinfo.model.native.library import JUDGED, Judge, Library, address, find_kernels
from waitinfo.systems.base import System
from waitinfo.systems.interface import (
    Dial,
    PolicyState,
    Step,
    columns,
    exact,
    for_arrays,
    is_tensor,
    like,
    sigmoid,
)
from waitinfo.systems.wait_info import WaitInfo, WaitInfoOptions

if TYPE_CHECKING:
    from torch import Tensor

    from waitinfo.model.batch import Batch

CRITERIA = ("auto", "head", "agreement")
MOST = 100.0  # info, of `sooner` and `later`
HOPELESS = 0.5  # risk above which the next attempt is two tokens away
NUMBERS = 10  # that the head sees beside the state, see `Veto.numbers`
Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Head:
    """The network that judges the risk, with one hidden layer.

    sigmoid(out · relu(states · from_states + numbers · from_numbers + bias) + out_bias), all of it
    in float64: rows computed together or alone then decide alike. Inputs are standardised in
    training; the first layer contains that already.
    """

    from_states: Array  # [d, H]
    from_numbers: Array  # [N, H]
    bias: Array  # [H]
    out: Array  # [H]
    out_bias: Array  # [1]

    @classmethod
    def of(cls, tensors: Mapping[str, Array], width: int, numbers: int) -> Head:
        """From the tensors of a folder, for states of this width and this many numbers."""
        units = len(tensors["bias"]) if "bias" in tensors else 0
        shapes = {
            "from_states": (width, units),
            "from_numbers": (numbers, units),
            "bias": (units,),
            "out": (units,),
            "out_bias": (1,),
        }
        for name, shape in shapes.items():
            if name not in tensors or tensors[name].shape != shape or not units:
                found = tensors[name].shape if name in tensors else "missing"
                raise WaitinfoError(f"head.{name}: is {found}, not {shape}; train the head again")
        return cls(**{name: tensors[name].astype(np.float64) for name in shapes})

    @property
    def tensors(self) -> dict[str, Array]:
        """What `of` takes, as it is stored: matrices in half precision, vectors in single."""
        return {
            part.name: value.astype(np.float16 if value.ndim > 1 else np.float32)
            for part in fields(self)
            for value in [getattr(self, part.name)]
        }

    @cached_property
    def _compiled(self) -> tuple[Library, Judge, Any] | None:
        """Compiled code, if there is some, and the weights as it takes them."""
        if (code := find_kernels()) is None:
            return None
        more = -len(self.bias) % JUDGED
        weights = np.pad(np.concatenate([self.from_states, self.from_numbers]), ((0, 0), (0, more)))
        weights, bias = np.ascontiguousarray(weights, np.float32), np.pad(self.bias, (0, more))
        out = np.append(np.pad(self.out, (0, more)), self.out_bias)
        sizes = len(self.from_states), len(self.from_numbers), weights.shape[1]
        judge = Judge(*(part.ctypes.data for part in (weights, bias, out)), *sizes)
        return code, judge, (weights, bias, out)

    def __getstate__(self) -> dict[str, Any]:
        """Without compiled code, which is of this process."""
        return {name: value for name, value in vars(self).items() if name != "_compiled"}

    def _judge(self, states: Array, numbers: Sequence[Array]) -> Array | None:
        """[B] by compiled code."""
        if self._compiled is None:
            return None
        code, judge, _ = self._compiled
        states = np.ascontiguousarray(states, np.float32)
        rows = np.empty((len(states), len(numbers)))
        for column, values in enumerate(numbers):
            rows[:, column] = values
        risk = np.empty(len(states))
        arrays = map(address, (states, rows, risk))
        code.call("waitinfo_judge", byref(judge), len(states), *arrays)
        return risk

    def __call__(self, states: Tensor, numbers: Sequence[Tensor]) -> Tensor:
        """[B] from states [B, d] and numbers [B] each, all of one kind."""
        given: Any = states, numbers
        if not is_tensor(states) and (risk := self._judge(*given)) is not None:
            return risk  # type: ignore[return-value]
        states, rows = exact(states), columns(numbers)
        hidden = states @ like(self.from_states, states) + rows @ like(self.from_numbers, states)
        hidden = hidden + like(self.bias, states)
        hidden = hidden * (hidden > 0)
        return sigmoid(hidden @ like(self.out, states) + like(self.out_bias, states))


@dataclass(frozen=True)
class VetoOptions(WaitInfoOptions):
    criterion: str = "auto"  # head or agreement; auto: the head, if the model folder has one
    risk: float = 0.2  # largest risk at which the head lets a token be written
    keep: float = 0.85  # share of the margin at a WRITE that the next one needs
    sooner: float = 2.0  # info before the need of wait-info from which a token may be written
    later: float = 3.0  # info beyond it at which a token is written in any case

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.criterion not in CRITERIA:
            raise unknown("system.criterion", self.criterion, CRITERIA)
        for name in ("risk", "keep"):
            if not 0 <= getattr(self, name) <= 1:
                raise WaitinfoError(f"system.{name} {getattr(self, name):g}: must be from 0 to 1")
        for name in ("sooner", "later"):
            if not 0 <= getattr(self, name) <= MOST:
                raise WaitinfoError(
                    f"system.{name} {getattr(self, name):g}: must be from 0 to {MOST:g}"
                )

    @property
    def most(self) -> float:
        """The margin at which a token is written in any case: info, or tokens of the mean info."""
        return (self.sooner + self.later) / (self.source_mean or 1)


class Veto(WaitInfo):
    name = "veto"
    summary = "wait-info that writes sooner what is certain, and later what is not; any plain model"
    # Below 0, the head alone decides about most tokens.
    dial = Dial("K", 5, minimum=-2.0, whole=False, help="info the translation lags behind, about")
    asks: tuple[str, ...] = ("before",)
    rereads = True
    # At the last WRITE the margin and the tokens written before, and what of the translation was in
    # view already when the window began.
    memory = (0.0, 0.0, 0.0)
    Options = VetoOptions
    options: VetoOptions
    head: Head | None = None

    def adopt(self, tensors: Mapping[str, Array], config: ModelConfig) -> None:
        """Take the head of a model folder."""
        wanted = self.options.criterion
        if tensors and wanted != "agreement":
            self.head, self.asks = Head.of(tensors, config.width, NUMBERS), ("two_best", "states")
        elif wanted == "head":
            raise WaitinfoError(
                "system.criterion head: this model has none; train one with waitinfo train "
                "--system veto --start-from MODEL"
            )

    @property
    def tensors(self) -> dict[str, Array]:
        return {} if self.head is None else self.head.tensors

    def check_model(self, config: ModelConfig) -> None:
        System.check_model(self, config)
        if config.info == "none":  # every token counts 1, as in wait-k
            self.options = replace(self.options, source_mean=1.0, target_mean=1.0)

    def path(
        self,
        batch: Batch,
        source_info: Tensor | None,
        target_info: Tensor | None,
        k: float | Tensor,
    ) -> Tensor:
        """That of wait-info: what agrees is not known in training."""
        if source_info is None or target_info is None:
            import torch

            source_info, target_info = map(torch.ones_like, (batch.source, batch.target_in))
        return super().path(batch, source_info, target_info, k)

    def margin(self, state: PolicyState) -> Tensor:
        """[B] float64: what was received beyond the need of the first attempt."""
        options = self.options
        less = options.sooner + self._carried(state) * (options.rate - 1)
        return super().margin(state) + less / (options.source_mean or 1)

    def _carried(self, state: PolicyState) -> Tensor:
        """[B] info of the translation that was in view already when the window began."""
        written, used = state.written, state.target_info
        if self.options.target_mean:
            used = written * self.options.target_mean
        before, carried = state.memory[:, 1], state.memory[:, 2]
        return carried + (used - carried) * (written < before)  # fewer: it has moved on

    @for_arrays
    def ready(self, state: PolicyState) -> Tensor:
        margin, moved = self.margin(state), self._carried(state) > 0
        enough = (margin >= 0) & (moved | (margin >= state.memory[:, 0] * self.options.keep))
        if self.options.floor:
            enough &= moved | (state.read >= state.written + 2)
        return state.complete | enough

    @for_arrays
    def earlier(self, state: PolicyState) -> Tensor:
        """One token less, or none where the token is written in any case."""
        asks = (state.complete == 0) & (self.margin(state) < self.options.most)
        return (state.read - 1) * asks

    @for_arrays
    def accept(self, state: PolicyState, step: Step) -> Tensor:
        if self.head is None:
            certain = step.tokens == step.before
        else:
            certain = self.risk(state, step) <= self.options.risk
        return certain | (self._margin(state, step) >= self.options.most)

    def _margin(self, state: PolicyState, step: Step) -> Tensor:
        """[B] the margin, computed once for a step."""
        if "margin" not in step.results:
            step.results["margin"] = self.margin(state)
        return step.results["margin"]

    def risk(self, state: PolicyState, step: Step) -> Tensor:
        """[B] what the head says of the tokens."""
        assert self.head is not None
        if "risk" not in step.results:
            step.results["risk"] = self.head(step.states, self.numbers(state, step))
        return step.results["risk"]

    def numbers(self, state: PolicyState, step: Step) -> list[Tensor]:
        """What the head sees beside the state of the decoder, [B] each."""
        two = step.two_best
        margin, kept = self._margin(state, step), state.memory[:, 0]
        lead, lag = state.source_info - state.target_info, state.read - state.written
        begin = 1 / (1 + state.read), 1 / (1 + state.written)
        return [two[:, 0], two[:, 1], margin, kept, lead, lag, state.read, state.written, *begin]

    @for_arrays
    def wait(self, state: PolicyState, step: Step) -> Tensor:
        """Two tokens where the head is almost sure that the token is wrong."""
        one = state.read * 0 + 1
        if self.head is None:
            return one
        return one + (self.risk(state, step) > HOPELESS)

    @for_arrays
    def remember(self, state: PolicyState, step: Step) -> Tensor:
        return columns([self._margin(state, step), state.written, self._carried(state)])
