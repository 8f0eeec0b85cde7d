"""The cross-attentions of single systems, as they translate: with hard decisions, and in float64.

`systems.networks` has the same in torch, with what training needs. Products are of integers; what
follows them is in float64, where the order of sums hardly shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from waitinfo.model.integers.exact import merge_heads, split_heads
from waitinfo.model.integers.matrix import IntegerLinear
from waitinfo.model.integers.packing import Array, Stored
from waitinfo.model.views import AttentionReport, Memory, SourceView

Linear = Callable[[str], IntegerLinear]  # the map of a name
THRESHOLD = 0.5  # smallest p at which a head stops, if no dial is given
NEAREST = 0.9  # smallest position of a Gaussian: that of position 0 would have no width
FARTHEST_STEP = 1000.0  # of a Gaussian's position
DELTA = 1.0  # tokens that must be read behind a Gaussian's position, if no dial is given
DIAL_UNIT = 10.0  # an expert's k is divided by this


def double(x: Array) -> Array:
    return x.astype(np.float64)


def softmax(scores: Array) -> Array:
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


def log_total(scores: Array) -> Array:
    """log sum exp over the last dimension."""
    most = scores.max(-1, keepdims=True)
    return (most + np.log(np.exp(scores - most).sum(-1, keepdims=True)))[..., 0]


def scores_of(queries: Array, keys: Array) -> Array:
    """q k / sqrt(d): [B, H, T, S]."""
    return queries @ keys.swapaxes(-1, -2) / math.sqrt(keys.shape[-1])


class SpecialAttention:
    """Cross-attention of one decoder layer; subclasses say what a head sees."""

    carries: ClassVar[bool] = False  # whether state passes from one target position to the next
    key_vectors: ClassVar[int] = 1  # key vectors per head and source token, concatenated

    def __init__(self, heads: int, linear: Linear, own: Stored) -> None:
        """linear: makes `queries`, `project` and `out`; own: further parameters, by name."""
        self.heads = heads
        self.queries, self.project, self.out = map(linear, ("queries", "project", "out"))
        self.own = {name: double(array) for name, array in own.items()}

    @staticmethod
    def own_shapes(width: int, heads: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the further parameters."""
        return {}

    def memory(self, states: Array) -> Memory:
        """Keys and values of encoder states [B, S, d]."""
        parts = double(self.project(states))
        width = parts.shape[-1] * self.key_vectors // (self.key_vectors + 1)
        keys, values = parts[..., :width], parts[..., width:]
        found: Array = split_heads(keys, self.heads)
        return Memory(found, split_heads(values, self.heads))

    def __call__(
        self, x: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport | None]:
        """[B, T, d] -> [B, T, d]."""
        mixed, report = self.mix(double(self.queries(x)), memory, view)
        return self.out(merge_heads(mixed)), report

    def mix(
        self, projected: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport | None]:
        """What the heads see, [B, H, T, d/H], from projected queries [B, T, ·]."""
        raise NotImplementedError


def by_head(visible: Array) -> Array:
    """[B, T] or [B, H, T] -> [B, 1 or H, T]."""
    return visible if visible.ndim == 3 else visible[:, None]


class HardMonotonic(SpecialAttention):
    """A head sees only the token that it stops at."""

    carries = True

    @staticmethod
    def own_shapes(width: int, heads: int) -> dict[str, tuple[int, ...]]:
        return {"energy_bias": (heads,)}

    def mix(
        self, projected: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport]:
        queries = split_heads(projected, self.heads)
        energies = self.energies(queries, memory.keys)
        threshold: Array = np.array(THRESHOLD) if view.k is None else view.k
        stops = 1 / (1 + np.exp(-energies)) >= threshold.reshape(-1, 1, 1, 1)
        positions, found = walk(stops, by_head(np.asarray(view.visible)), view.before)
        report: Array = AttentionReport(double(positions), found)  # type: ignore[arg-type]
        return self.attend_at(queries, memory, view, positions), report

    def energies(self, queries: Array, keys: Array) -> Array:
        return scores_of(queries, keys) + self.own["energy_bias"][:, None, None]

    def attend_at(self, queries: Array, memory: Memory, view: SourceView, at: Array) -> Array:
        """Output of heads that stopped at [B, H, T]: [B, H, T, d/H]."""
        values: Array = memory.values
        return np.take_along_axis(values, at[..., None], 2)


class LookbackMonotonic(HardMonotonic):
    """A head sees all tokens up to where it stops, by a second set of queries and keys."""

    key_vectors = 2

    def energies(self, queries: Array, keys: Array) -> Array:
        return super().energies(np.split(queries, 2, -1)[0], np.split(keys, 2, -1)[0])

    def attend_at(self, queries: Array, memory: Memory, view: SourceView, at: Array) -> Array:
        keys: Array = np.split(np.asarray(memory.keys), 2, -1)[1]
        behind = np.arange(keys.shape[2]) > at[..., None]
        bias = np.where(behind, -np.inf, view.bias)
        weights = softmax(scores_of(np.split(queries, 2, -1)[1], keys) + bias)
        return weights @ np.asarray(memory.values)


def walk(stops: Array, visible: Array, before: Array | None) -> tuple[Array, Array]:
    """Position of each head, and whether it stopped there by itself: [B, H, T] each.

    stops [B, H, T, S]: tokens to stop at; visible [B, 1 or H, T]; before [B, H]: start positions.
    """
    count = stops.shape[-1]
    columns = np.arange(count)
    places = np.where(stops & (columns < visible[..., None]), columns, count)
    # First stop at or after each token.
    following = np.minimum.accumulate(places[..., ::-1], -1)[..., ::-1]
    last = np.broadcast_to(visible - 1, stops.shape[:-1])
    at = np.zeros_like(last[:, :, 0]) if before is None else before.astype(np.int64)
    positions, found = [], []
    for i in range(stops.shape[2]):
        stop = np.take_along_axis(following[:, :, i], at[..., None], -1)[..., 0]
        found.append(stop < count)
        at = np.minimum(stop, last[:, :, i])
        positions.append(at)
    return np.stack(positions, -1), np.stack(found, -1)


class Gaussian(SpecialAttention):
    """A head sees the source around a predicted position."""

    carries = True

    @staticmethod
    def own_shapes(width: int, heads: int) -> dict[str, tuple[int, ...]]:
        return {"step_hidden.weight": (width, width), "step_out.weight": (1, width)}

    def mix(
        self, projected: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport]:
        reached = self.reached(projected, view)
        positions = np.maximum(reached, NEAREST)
        delta: Array = np.array(DELTA) if view.k is None else view.k
        needed = np.ceil(positions + delta.reshape(-1, 1, 1))
        keys: Array = memory.keys
        columns = np.arange(keys.shape[2])
        prior = -2 * np.square(columns / positions[..., None] - 1)
        bias = np.where(columns >= needed[..., None], -np.inf, view.bias + prior)
        weights = softmax(scores_of(split_heads(projected, self.heads), keys) + bias)
        near = needed <= by_head(np.asarray(view.visible))
        shape = (len(reached), self.heads, reached.shape[-1])
        state, stopped = (np.broadcast_to(part, shape) for part in (reached, near))
        report: Array = AttentionReport(state, stopped)  # type: ignore[arg-type]
        return weights @ np.asarray(memory.values), report

    def reached(self, projected: Array, view: SourceView) -> Array:
        """The position before it is clamped: [B, T, d] -> [B, 1, T]."""
        scaled = projected / math.sqrt(projected.shape[-1] // self.heads)
        hidden = np.tanh(scaled @ self.own["step_hidden.weight"].T)
        size = (hidden * self.own["step_out.weight"][0]).sum(-1)
        steps = np.exp(np.minimum(size, math.log(FARTHEST_STEP)))
        steps = np.where(np.asarray(view.at) == 0, 0, steps)  # the first token stays at the start
        start = 0 if view.before is None else np.asarray(view.before)[:, :1]
        # One after the other, from where the last step ended.
        return np.concatenate([steps[:, :1] + start, steps[:, 1:]], 1).cumsum(1)[:, None]


class Experts(SpecialAttention):
    """Each head is an expert for one prefix of the source."""

    @staticmethod
    def own_shapes(width: int, heads: int) -> dict[str, tuple[int, ...]]:
        return {"gate.weight": (heads, heads + 1), "gate.bias": (heads,)}

    def mix(
        self, projected: Array, memory: Memory, view: SourceView
    ) -> tuple[Array, AttentionReport | None]:
        queries, keys = split_heads(projected, self.heads), np.asarray(memory.keys)
        scores = queries @ keys.swapaxes(-1, -2) * keys.shape[-1] ** -0.5
        seen = scores + np.asarray(view.bias)
        mixed = softmax(seen) @ np.asarray(memory.values)
        if view.k is None:
            return mixed, None
        gates = self.gates(self.mass(scores, seen, view), np.asarray(view.k))
        report: Array = AttentionReport(gates=gates)  # type: ignore[arg-type]
        return mixed * gates[..., None], report

    @staticmethod
    def mass(scores: Array, seen: Array, view: SourceView) -> Array:
        """Mean weight of a token in the expert's prefix, of all tokens read: [B, H, T]."""
        everything = seen if view.read_bias is None else scores + np.asarray(view.read_bias)
        return np.exp(log_total(seen) - log_total(everything)) / by_head(np.asarray(view.visible))

    def gates(self, mass: Array, k: Array) -> Array:
        """[B, H, T], [B] -> [B, H, T]."""
        shape = (len(mass), 1, mass.shape[2])
        dial = np.broadcast_to((k.astype(np.float64) / DIAL_UNIT)[:, None, None], shape)
        inputs = np.concatenate([mass, dial], 1).swapaxes(1, 2)  # [B, T, H + 1]
        scores = inputs @ self.own["gate.weight"].T + self.own["gate.bias"]
        return (self.heads * softmax(np.tanh(scores))).swapaxes(1, 2)


SPECIAL: dict[str, type[SpecialAttention]] = {
    "mma": LookbackMonotonic,
    "mma-hard": HardMonotonic,
    "gma": Gaussian,
    "moe": Experts,
}
