"""Passes of an integer model by the kernels, on the caches of the engine."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.model.native.library import (
    KEYS,
    MOST_WIDTH,
    Cache,
    Layer,
    Library,
    Linear,
    Model,
    Norm,
    address,
    divide,
    run,
)
from waitinfo.text.special import BOS, PAD

if TYPE_CHECKING:
    from waitinfo.model.config import ModelConfig
    from waitinfo.model.integers.conversion import IntegerLayer, Parts
    from waitinfo.model.integers.matrix import IntegerMatrix
    from waitinfo.model.native.weights import NativeMatrix

NEVER = np.array([PAD, BOS], np.int32)  # tokens that are not written
SMALL_PAGES_FROM = 2**29  # bytes of a cache: hundreds of streams
Int32s = NDArray[np.int32]


class NativeModel:
    """A model that `conversion` has made, as the kernels see it.

    It holds addresses of the model's weights, and so belongs to that model.
    """

    def __init__(self, config: ModelConfig, parts: Parts, code: Library) -> None:
        self.code = code
        self._kept: list[Any] = [parts]
        encoder, decoder = (
            [self._layer(layer) for layer in some] for some in (parts.encoder, parts.decoder)
        )
        memory: Any = parts.memory
        before = config.norm == "pre"
        self.embedding = _native(parts.target.scores)
        self.model = Model(
            config.width, config.heads, len(encoder), len(decoder), int(before),
            int(config.decoder == "ssru"), int(config.activation == "swish"),
            (Layer * len(encoder))(*encoder), (Layer * len(decoder))(*decoder),
            self._norm(parts.encoder_norm) if before else Norm(),
            self._norm(parts.decoder_norm) if before else Norm(),
            _native(memory.project).linear, self._address(memory.round_values),
        )  # fmt: skip

    def _address(self, array: NDArray[Any]) -> int:
        array = np.ascontiguousarray(array)
        self._kept.append(array)
        return array.ctypes.data

    def _norm(self, norm: Any) -> Norm:
        return Norm(self._address(norm.weight), self._address(norm.bias), norm.eps)

    def _layer(self, layer: IntegerLayer) -> Layer:
        cross: Any = layer.cross
        attention: Any = layer.attention
        recurrent = not hasattr(attention, "out")
        return Layer(
            _native(attention.project).linear,
            Linear() if recurrent else _native(attention.out).linear,
            _native(cross.queries).linear if cross else Linear(),
            _native(cross.out).linear if cross else Linear(),
            _native(layer.feed_forward.inner).linear,
            _native(layer.feed_forward.out).linear,
            self._norm(layer.around_attention.norm),
            self._norm(layer.around_cross.norm) if layer.around_cross else Norm(),
            self._norm(layer.around_feed_forward.norm),
            0 if recurrent else attention.round_values,
        )

    @staticmethod
    def fits(config: ModelConfig) -> bool:
        """Whether the kernels can compute a model of this shape."""
        return config.width // config.heads <= MOST_WIDTH

    def new_caches(self, layers: int, rows: int, capacity: int) -> NativeCaches:
        """Empty caches."""
        heads = self.model.heads
        return NativeCaches(layers, rows, heads, self.model.width // heads, capacity)

    def new_target_caches(self, rows: int, capacity: int) -> NativeCaches | NativeStates:
        """Empty caches of what was written."""
        layers = self.model.decoder_layers
        if self.model.recurrent:
            return NativeStates(layers, rows, self.model.width)
        return self.new_caches(layers, rows, capacity)

    def remember(self, x: NDArray[np.float32], rows: Int32s, at: Int32s, to: NativeCaches) -> None:
        """Store keys and values of the source [N, layers, 2, d] that are computed already."""
        self.code.call(
            "waitinfo_remember", ctypes.byref(self.model), len(x), address(x), address(rows),
            address(at), to.layers,
        )  # fmt: skip

    def encode(
        self,
        x: NDArray[np.float32],
        rows: Int32s,
        at: Int32s,
        info: NDArray[np.float32] | None,
        caches: NativeCaches,
        memories: NativeCaches,
    ) -> None:
        """Encode source tokens x [N, d] at the positions `at` of `rows`; x becomes the states.

        The tokens of a row are in order. Keys and values of the source go to `memories`.
        """
        keys = int(at.max()) + 1

        def compute(part: slice) -> None:
            some = None if info is None else info[part]
            self.code.call(
                "waitinfo_encode", ctypes.byref(self.model), len(x[part]), address(x[part]),
                address(rows[part]), address(at[part]), address(some), caches.layers,
                memories.layers, keys,
            )  # fmt: skip

        run(divide(len(x), rows), compute)

    def encode_whole(
        self,
        x: NDArray[np.float32],
        rows: Int32s,
        at: Int32s,
        lengths: Int32s,
        cache: NativeCaches,
        memories: NativeCaches,
    ) -> None:
        """Encode whole sources: tokens x [N, d] at the positions `at` of `rows`, without info.

        lengths [N]: of each token's source. The cache has room for one layer.
        """
        keys = int(lengths.max())

        def compute(part: slice) -> None:
            numbers = (x, rows, at, lengths)
            self.code.call(
                "waitinfo_encode_whole", ctypes.byref(self.model), len(x[part]),
                *(address(array[part]) for array in numbers), cache.layers, memories.layers, keys,
            )  # fmt: skip

        run(divide(len(x), rows), compute)

    def decode_again(
        self,
        x: NDArray[np.float32],
        rows: Int32s,
        at: Int32s,
        visible: Int32s,
        caches: NativeCaches | NativeStates,
        memories: NativeCaches,
        weigh: bool,
    ) -> NDArray[np.int16] | None:
        """Decode several positions of each row, x [N, d], which become the states; without info.

        The tokens of a row are in order. Returns the weights of cross-attention in multiples of
        1/2048 if asked for, [N, layers, H, S].
        """
        keys, seen = int(max(at.max() + 1, visible.max())), int(visible.max())
        shape = len(x), self.model.decoder_layers, self.model.heads, seen
        shares = np.empty(shape, np.int16) if weigh else None

        def compute(part: slice) -> None:
            numbers = (x, rows, at, visible)
            self.code.call(
                "waitinfo_decode_again", ctypes.byref(self.model), len(x[part]),
                *(address(array[part]) for array in numbers), caches.layers, memories.layers, keys,
                address(None if shares is None else shares[part]), ctypes.c_int64(seen),
            )  # fmt: skip

        run(divide(len(x), rows), compute)
        return shares

    def decode(
        self,
        x: NDArray[np.float32],
        rows: Int32s,
        at: Int32s,
        visible: Int32s,
        info: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None,
        caches: NativeCaches | NativeStates,
        memories: NativeCaches,
    ) -> None:
        """One step for decoder inputs x [R, d], which become the states.

        Row r sees `visible[r]` source tokens, with bias[r] [S] added to the scores.
        """
        keys = int(max(at.max() + 1, visible.max()))
        stride = 0 if bias is None else bias.shape[1]

        def compute(part: slice) -> None:
            numbers = (x, rows, at, visible, info, bias)
            some = [address(None if array is None else array[part]) for array in numbers]
            self.code.call(
                "waitinfo_decode", ctypes.byref(self.model), len(x[part]), *some, stride,
                caches.layers, memories.layers, keys,
            )  # fmt: skip

        run(divide(len(x)), compute)

    def best(
        self, states: NDArray[np.float32], scores: bool, two_best: bool = False
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """The best next token of every row, and its logit.

        If asked for, all logits, and the probabilities [R, 2] of the two best tokens.
        """
        return self.embedding.best(states, NEVER, scores, two_best)


def _native(matrix: IntegerMatrix) -> NativeMatrix:
    assert matrix.native is not None
    return matrix.native


def _zeros(layers: int, size: int, kind: type[np.generic]) -> NDArray[Any]:
    """[layers, size], in small pages if it is large.

    Most places of a cache are never used: few sources are as long as they may be. A page of 2 MB,
    as NumPy asks for, holds some of each row, so that all memory would be taken and cleared.
    """
    bytes_needed = layers * size * np.dtype(kind).itemsize
    if bytes_needed < SMALL_PAGES_FROM or not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros((layers, size), kind)
    room = mmap.mmap(-1, bytes_needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # the system was built without large pages
        room.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(room, kind).reshape(layers, size)


class NativeCaches:
    """Keys and values of several layers, as whole numbers of 16 bits.

    They are half as large as floats, and their products are faster.
    """

    def __init__(self, layers: int, rows: int, heads: int, width: int, capacity: int) -> None:
        blocks, pairs = -(-capacity // KEYS), -(-capacity // 2)
        every = rows * heads
        self.keys = _zeros(layers, every * blocks * KEYS * -(-width // 8) * 8, np.int16)
        self.units = _zeros(layers, every * blocks * KEYS, np.float32)
        self.values = _zeros(layers, every * pairs * 2 * width, np.int16)
        arrays = zip(self.keys, self.values, self.units, strict=True)
        self.layers = (Cache * layers)(
            *(Cache(*(a.ctypes.data for a in some), blocks * KEYS, pairs * 2) for some in arrays)
        )

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.units.nbytes

    def erase(self, row: int) -> None:
        """Nothing to do: whole numbers are always numbers."""

    def take(self, rows: int) -> None:
        """Write to all memory: the system gives it only then."""
        for array in (self.keys, self.units, self.values):
            array.fill(0)


class NativeStates:
    """States of recurrent units of several layers: see `ArrayStateCache`."""

    def __init__(self, layers: int, rows: int, width: int) -> None:
        self.states = np.zeros((layers, rows, 2, width), np.float32)
        nothing = ctypes.c_void_p(None)
        self.layers = (Cache * layers)(
            *(Cache(nothing, nothing, layer.ctypes.data, 0, 0) for layer in self.states)
        )

    @property
    def nbytes(self) -> int:
        return self.states.nbytes

    def erase(self, row: int) -> None:
        """Forget a row: a stored NaN would spread."""
        self.states[:, row] = 0

    def take(self, rows: int) -> None:
        """Write to all memory: the system gives it only then."""
        self.states.fill(0)
