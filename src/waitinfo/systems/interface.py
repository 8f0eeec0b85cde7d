"""What policies decide from: the dial, the state of every stream, and the step just computed.

Everything has one row for each of B streams. Rows are tensors, or on a CPU NumPy arrays where a
policy's method is marked with `for_arrays`. A policy pays only for what it lists in `System.asks`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from waitinfo.errors import WaitinfoError, number

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from waitinfo.model.views import AttentionReport

LONGEST = 100_000.0  # tokens that anything can lag behind
CACHED_ROWS = 32  # whose logits are worked on at a time
NONE = -1  # `Step.before` where nothing was predicted
COUNTS = ("k", "read", "written", "complete", "source_info", "target_info")

# What a policy may ask for, in addition to counts, infos and the best token.
OF_STATE = ("source", "target", "source_words", "target_words")
OF_STEP = ("logits", "two_best", "states", "attention", "before")
ASKS = (*OF_STATE, *OF_STEP)


@dataclass(frozen=True)
class Dial:
    """The latency dial of a system: the meaning and range of `--k`."""

    name: str
    default: float
    minimum: float = 1.0
    maximum: float = LONGEST
    whole: bool = True  # accept only whole numbers
    help: str = ""

    def check(self, value: float) -> float:
        value = number("k", value)
        fits = math.isfinite(value) and self.minimum <= value <= self.maximum
        if not fits or (self.whole and value != int(value)):
            kind = "whole number" if self.whole else "number"
            limits = f"from {self.minimum:g} to {self.maximum:g}"
            if self.maximum == LONGEST and not value > LONGEST:
                limits = f"of at least {self.minimum:g}"
            raise WaitinfoError(f"k = {value:g}: {self.name} must be a {kind} {limits}")
        return value


Method = TypeVar("Method", bound=Callable[..., Any])


def for_arrays(method: Method) -> Method:
    """Mark a method of a policy that works on NumPy's arrays and numbers as on tensors.

    It then uses only operators, indices, and what is named alike in both: `sum`, `mean`, `any`,
    `argmax`, `cumsum` with the dimension as the first argument, and `lookup` and `largest` of this
    module. For a few streams NumPy is several times as fast.
    """
    method.for_arrays = True  # type: ignore[attr-defined]
    return method


def lookup(table: np.ndarray, tokens: Tensor) -> Tensor:
    """`table[tokens]` of the same kind as the tokens, [...]: a property of every token id."""
    return like(table, tokens)[integers(tokens)]


def largest(values: Tensor) -> Tensor:
    """The largest along the last dimension: [..., N] -> [...]."""
    return values.amax(-1) if is_tensor(values) else values.max(-1)  # type: ignore[return-value]


def softmax(logits: Tensor) -> Tensor:
    """In float32 or better."""
    return (logits if logits.dtype.itemsize > 2 else logits.float()).softmax(-1)


def two_best(logits: Any) -> Any:
    """[B, 2] the probabilities of the best token and of the second, from logits [B, V]."""
    if is_tensor(logits):
        return softmax(logits).topk(2).values.double()
    found = np.empty((len(logits), 2))
    for start in range(0, len(logits), CACHED_ROWS):  # more rows leave the processor's cache
        part = slice(start, start + CACHED_ROWS)
        shares = logits[part] - logits[part].max(-1, keepdims=True)
        np.exp(shares, out=shares)
        rows, best, total = np.arange(len(shares)), shares.argmax(-1), shares.sum(-1)
        shares[rows, best] = 0
        found[part, 0], found[part, 1] = 1 / total, shares.max(-1) / total
    return found


def exact(values: Tensor) -> Tensor:
    """In float64."""
    return values.double() if is_tensor(values) else np.asarray(values, np.float64)  # type: ignore[return-value]


def columns(values: Sequence[Tensor]) -> Tensor:
    """[B] each -> [B, N] float64."""
    if is_tensor(values[0]):
        import torch

        return torch.stack([value.double() for value in values], -1)
    return np.stack(values, -1).astype(np.float64)  # type: ignore[return-value]


def smaller(a: Tensor, b: Tensor) -> Tensor:
    """The smaller of two numbers at each place."""
    return a + (b - a) * (b < a)


def integers(values: Tensor) -> Tensor:
    """Numbers as whole ones."""
    return values.long() if is_tensor(values) else values.astype(np.int64)  # type: ignore[attr-defined]


def sigmoid(values: Tensor) -> Tensor:
    """In float64."""
    if is_tensor(values):
        return values.double().sigmoid()
    return 1 / (1 + np.exp(-np.asarray(values, np.float64)))  # type: ignore[return-value]


def like(table: np.ndarray, other: Tensor) -> Tensor:
    """An array that does not change, of the same kind as another, and on the same device."""
    if is_tensor(other):
        return _on_device(_CachedTable(table), other.device)
    return table  # type: ignore[return-value]


def is_tensor(value: Any) -> bool:
    """Whether something is torch's. Asking this does not import torch."""
    return hasattr(value, "detach")


class _CachedTable:
    """A table as the key of a cache: arrays themselves cannot be compared."""

    def __init__(self, table: np.ndarray) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CachedTable) and other.table is self.table


@lru_cache(maxsize=64)
def _on_device(key: _CachedTable, device: torch.device) -> Tensor:
    import torch

    return torch.from_numpy(key.table).to(device)


def ask(method: Callable[..., Any], *given: Any) -> Any:
    """Call a method of a policy with arrays; where it takes only tensors, with tensors.

    Returns an array.
    """
    if getattr(method, "for_arrays", False):
        return as_array(method(*(_each(as_array, value) for value in given)))
    try:
        import torch  # noqa: F401
    except ImportError:
        raise WaitinfoError(
            f"{getattr(method, '__qualname__', method)} takes torch's tensors, and torch is not "
            "installed; mark it with @for_arrays and write it for NumPy, or install waitinfo[train]"
        ) from None
    return as_array(method(*(_each(as_tensor, value) for value in given)))


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, _Asked):
        return value.arrays() if change is as_array else value.tensors()
    return change(value)


class _Asked:
    """Fields that are there only for a policy that asks for them, in the mapping `asked`."""

    kind: ClassVar[str]
    asked: Mapping[str, Any] | None

    def _get(self, name: str) -> Any:
        if self.asked is None or name not in self.asked:
            raise WaitinfoError(
                f"{self.kind}.{name}: the policy does not ask for it; add '{name}' to its asks"
            )
        return self.asked[name]

    def _all(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: change(value) for name, value in (self.asked or {}).items()}

    def tensors(self) -> Any:
        """The same in tensors on the host."""
        raise NotImplementedError

    def arrays(self) -> Any:
        """The same in NumPy arrays."""
        raise NotImplementedError


def as_tensor(value: Any) -> Any:
    """An array as a tensor on the host; anything else as it is."""
    if isinstance(value, np.ndarray):
        import torch

        return torch.from_numpy(value)
    return value.cpu() if is_tensor(value) else value


def as_array(value: Any) -> Any:
    """A tensor as a NumPy array; anything else as it is."""
    if not is_tensor(value):
        return value
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


@dataclass
class PolicyState(_Asked):
    """The state of B streams, from which a policy decides."""

    kind: ClassVar[str] = "state"

    k: Tensor  # [B] float64, the dial
    read: Tensor  # [B] source tokens read, including end-of-sentence once it is read
    written: Tensor  # [B] target tokens written
    complete: Tensor  # [B] whether the whole source has been read
    source_info: Tensor  # [B] float64, total info of the tokens read
    target_info: Tensor  # [B] float64, total info of the tokens written
    asked: Mapping[str, Any] | None = None

    @property
    def source(self) -> Tensor:
        """[B, S] ids of the tokens read, padded on the right with 0."""
        return self._get("source")

    @property
    def target(self) -> Tensor:
        """[B, T] ids of the tokens written, padded on the right with 0."""
        return self._get("target")

    @property
    def source_words(self) -> list[list[str]]:
        """B lists of the words read; the last one may not be complete."""
        return self._get("source_words")

    @property
    def target_words(self) -> list[list[str]]:
        """B lists of the words written; the last one may not be complete."""
        return self._get("target_words")

    @property
    def memory(self) -> Tensor:
        """[B, M] float64: what `remember` returned at the last WRITE, at first `System.memory`."""
        return self._get("memory")

    def tensors(self) -> PolicyState:
        """The same rows as tensors."""
        counts = {name: as_tensor(getattr(self, name)) for name in COUNTS}
        return PolicyState(**counts, asked=self._all(as_tensor))

    def arrays(self) -> PolicyState:
        """The same rows in NumPy arrays."""
        if not any(map(is_tensor, vars(self).values())):
            return self
        counts = {name: as_array(getattr(self, name)) for name in COUNTS}
        return PolicyState(**counts, asked=self._all(as_array))


@dataclass(frozen=True)
class Step(_Asked):
    """The next tokens of B streams, computed but not yet written."""

    kind: ClassVar[str] = "step"

    tokens: Tensor  # [B] the best token
    extras: list[AttentionReport | None] = field(default_factory=list)  # of cross-attention
    write: Tensor | None = None  # [B] log-odds of WRITE, if the model has a head for it
    asked: Mapping[str, Any] | None = None

    @property
    def logits(self) -> Tensor:
        """[B, V] scores of all tokens; those that are never written have -inf."""
        return self._get("logits")

    @property
    def two_best(self) -> Tensor:
        """[B, 2] float64: the probabilities of the best token and of the second."""
        return self._get("two_best")

    @property
    def states(self) -> Tensor:
        """[B, d] states of the decoder, from which logits are computed."""
        return self._get("states")

    @property
    def attention(self) -> Tensor:
        """[B, L, H, S] weights of plain cross-attention by layer and head; 0 at unread tokens."""
        return self._get("attention")

    @property
    def before(self) -> Tensor:
        """[B] the best token if only `System.earlier` source tokens had been read; NONE for 0."""
        return self._get("before")

    @cached_property
    def probabilities(self) -> Tensor:
        """[B, V] softmax of the logits, in float32 or better."""
        logits: Any = self.logits
        if not is_tensor(logits):
            shares = np.exp(logits - logits.max(-1, keepdims=True))
            return shares / shares.sum(-1, keepdims=True)
        return softmax(logits)

    @cached_property
    def probability(self) -> Tensor:
        """[B] that of the most probable token."""
        return largest(self.probabilities)

    @cached_property
    def results(self) -> dict[str, Tensor]:
        """What one method of a policy has worked out for another."""
        return {}

    def tensors(self) -> Step:
        """The same step in tensors on the host."""
        write = None if self.write is None else as_tensor(self.write)
        return Step(as_tensor(self.tokens), self.extras, write, self._all(as_tensor))

    def arrays(self) -> Step:
        """The same step in NumPy arrays."""
        values = (self.tokens, self.write, *(self.asked or {}).values())
        if not any(map(is_tensor, values)):
            return self
        write = None if self.write is None else as_array(self.write)
        return Step(as_array(self.tokens), self.extras, write, self._all(as_array))
