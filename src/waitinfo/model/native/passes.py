"""READs and WRITEs of an engine by the kernels, each in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from waitinfo.model.native.library import Reading, Writing, address, divide, run
from waitinfo.model.native.model import NEVER, NativeCaches, NativeModel

if TYPE_CHECKING:
    from waitinfo.model.native.weights import NativeEmbedding

FEW = 16  # rows that there is room for at first
Shapes = Mapping[str, tuple[type[np.generic], tuple[int, ...]]]
Numbers = NDArray[Any]


class Side(NamedTuple):
    """The source or target side of a model, with caches for some slots."""

    model: NativeModel
    embedding: NativeEmbedding | None  # None: the kernels cannot compute its info
    positions: Numbers  # [positions, d]
    caches: NativeCaches
    memories: NativeCaches

    def fields(self) -> dict[str, Any]:
        """Of the structs."""
        embedding = self.embedding
        return {
            "model": ctypes.pointer(self.model.model),
            "embedding": None if embedding is None else ctypes.pointer(embedding.embedding),
            "positions": self.positions.ctypes.data,
            "caches": self.caches.layers,
            "memories": self.memories.layers,
        }


class _Pass:
    """Arrays with one row for each of a pass, at addresses that are fields of a struct.

    For a pass of one row, making them and looking up their addresses would take long.
    """

    def __init__(self, struct: Reading | Writing, shapes: Shapes) -> None:
        self.arrays: dict[str, Numbers] = {}
        self._struct, self._shapes, self._room = struct, shapes, 0
        self._pointer = ctypes.byref(struct)
        self.reserve(FEW)

    def reserve(self, rows: int) -> None:
        """Make room for this number of rows; the contents of the arrays are lost."""
        if rows <= self._room:
            return
        room = 1 << (rows - 1).bit_length()
        # All at once: if memory runs out, the arrays of before stay, and their number of rows.
        shapes = self._shapes.items()
        self.arrays = {name: np.zeros((room, *shape), kind) for name, (kind, shape) in shapes}
        for name, array in self.arrays.items():
            setattr(self._struct, name, array.ctypes.data)
        self._room = room


class NativeReading(_Pass):
    """Embeds and encodes source tokens of some rows, and keeps their info."""

    def __init__(
        self, side: Side, info: tuple[Numbers, NDArray[np.float64]] | None, aware: bool
    ) -> None:
        """info: [slots, S] by position, and [slots, S] in total, by number of tokens.

        `aware`: self-attention uses it.
        """
        self.code, self.embeds = side.model.code, side.embedding is not None
        self._kept = (side, info)
        struct = Reading(**side.fields(), aware=aware and info is not None)
        shapes: dict[str, Any] = dict.fromkeys(("token", "row", "at"), (np.int32, ()))
        shapes |= {"x": (np.float32, (side.model.model.width,)), "finite": (np.bool_, ())}
        if info is not None:
            known, received = info
            struct.source_info, struct.source_width = known.ctypes.data, known.shape[1]
            struct.received, struct.received_width = received.ctypes.data, received.shape[1]
            shapes["info"] = (np.float32, ())
        super().__init__(struct, shapes)

    def __call__(
        self,
        tokens: Sequence[int],
        rows: Sequence[int],
        at: Sequence[int],
        embedded: tuple[Numbers, Numbers | None] | None = None,
    ) -> list[bool]:
        """Encode tokens at the positions `at` of `rows`; the tokens of a row are in order.

        Embedded tokens [N, d] and their info [N] are given where the kernels cannot compute them.
        Returns whether the states of each token are finite.
        """
        count, keys = len(tokens), max(at) + 1
        self.reserve(count)
        arrays = self.arrays
        arrays["token"][:count] = tokens
        arrays["row"][:count] = rows
        arrays["at"][:count] = at
        if embedded is not None:
            arrays["x"][:count] = embedded[0]
            if embedded[1] is not None:
                arrays["info"][:count] = embedded[1]

        def compute(part: slice) -> None:
            first = part.start
            self.code.call("waitinfo_read", self._pointer, first, part.stop - first, keys)

        run(divide(count, arrays["row"][:count]), compute)
        return arrays["finite"][:count].tolist()


class NativeWriting(_Pass):
    """Computes the next token of some rows, and embeds it as the next input."""

    def __init__(
        self,
        side: Side,
        next_x: Numbers,
        next_info: Numbers | None,
        counts: tuple[NDArray[np.int64], NDArray[np.int64]],
        source_info: Numbers | None,
        aware: bool,
        scores: bool,
        two_best: bool = False,
        weights: int = 0,
    ) -> None:
        """next_x [slots, d], next_info [slots]: the next inputs; `scores`: all are asked for.
        `two_best`: the probabilities of two are.

        counts: tokens read and written, [slots] each. source_info [slots, S]: what cross-attention
        compares with the info of an input. weights: source tokens that its weights are asked for.
        """
        self.code, linear = side.model.code, side.model.embedding.linear
        self._kept = (side, next_x, next_info, counts, source_info)
        struct = Writing(
            **side.fields(), scores=ctypes.pointer(linear), next_x=next_x.ctypes.data,
            next_info=None if next_info is None else next_info.ctypes.data,
            read=address(counts[0]), written=address(counts[1]), never=address(NEVER),
            nevers=len(NEVER), aware=aware and next_info is not None,
        )  # fmt: skip
        shapes: dict[str, Any] = dict.fromkeys(("row", "at", "visible", "token"), (np.int32, ()))
        shapes |= dict.fromkeys(("x", "embedded_x"), (np.float32, (linear.inputs,)))
        shapes["value"] = (np.float32, ())
        if next_info is not None:
            shapes |= dict.fromkeys(("info", "embedded_info"), (np.float32, ()))
        if source_info is not None:
            struct.source_info, struct.source_width = source_info.ctypes.data, source_info.shape[1]
            shapes["bias"] = (np.float32, source_info.shape[1:])
        if scores:
            shapes["scored"] = (np.float32, (linear.outputs,))
        if two_best:
            shapes["two"] = (np.float64, (2,))
        if weights:
            layers, heads = side.model.model.decoder_layers, side.model.model.heads
            struct.shares_width = weights
            shapes["shares"] = (np.int16, (layers, heads, weights))
        super().__init__(struct, shapes)

    def __call__(self, rows: Numbers, visible: Numbers | None = None) -> None:
        """One step of rows [R]. Each sees `visible` [R] source tokens, by default all it has read.

        The arrays then contain the states x [R, d], the best `token` [R], its logit `value` [R],
        and the token as the next input: embedded_x [R, d] and embedded_info [R]. If asked for,
        also all logits `scored` [R, V], the probabilities of the two best tokens `two` [R, 2], and
        the weights of cross-attention in multiples of 1/2048, `shares` [R, L, H, S].
        """
        count, narrow = len(rows), int(visible is not None)
        self.reserve(count)
        self.arrays["row"][:count] = rows
        if visible is not None:
            self.arrays["visible"][:count] = visible

        def compute(part: slice) -> None:
            first = part.start
            self.code.call("waitinfo_write", self._pointer, first, part.stop - first, narrow)

        run(divide(count), compute)
