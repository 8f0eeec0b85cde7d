"""What a Transformer computes from what: the same in torch and, with integers, in NumPy.

Shapes: B sentences, S source and T target positions (padded), d width, H heads, V vocabulary size.
A system controls the network through `visible`, the number of source tokens that each target
position may see, and optionally through its own kind of cross-attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from waitinfo.model.config import ModelConfig
from waitinfo.model.views import CachePosition, Decoded, Embedded, Encoded, SelfView, SourceView

Numbers = Any  # torch's tensors, or arrays of NumPy


class Architecture(ABC):
    """The passes of a model. A subclass has the layers, and makes the views of self-attention."""

    biases: Any  # the module `info` of its kind: what info adds to the scores of attention
    config: ModelConfig
    encoder_layers: Any
    decoder_layers: Any
    encoder_norm: Any
    decoder_norm: Any

    @property
    @abstractmethod
    def device(self) -> Any:
        """Where it computes."""

    # Encoder

    def encode(self, source: Embedded, lengths: Numbers) -> Encoded:
        """Encode whole sources, padded on the right; lengths [B] include end-of-sentence."""
        causal = self.config.encoder == "causal"  # never sees padding, which is on the right
        view = self._self_view(source) if causal else self._bidirectional_view(source, lengths)
        x = source.x
        for layer in self.encoder_layers:
            x = layer(x, view)
        return self._encoded(x, source.info)

    def extend(self, source: Embedded, caches: Sequence[Any], position: CachePosition) -> Encoded:
        """Encode the next source tokens [R, T] of some rows, each row at its own position.

        Only for a causal encoder. Returns the keys and values of the new positions.
        """
        view, x = self._self_view(source, position), source.x
        for layer, cache in zip(self.encoder_layers, caches, strict=True):
            x = layer(x, view, cache)
        return self._encoded(x, source.info)

    @abstractmethod
    def _encoded(self, x: Numbers, source_info: Numbers | None) -> Encoded:
        """Keys and values of every decoder layer, from what the encoder's last layer gives."""

    @abstractmethod
    def _self_view(self, side: Embedded, position: CachePosition | None = None) -> SelfView:
        """Causal self-attention, aware of info if the model is."""

    @abstractmethod
    def _bidirectional_view(self, source: Embedded, lengths: Numbers) -> SelfView:
        """Attention to whole sources, aware of info if the model is."""

    # Decoder

    def decode(
        self,
        target: Embedded,
        encoded: Encoded,
        visible: Numbers,
        k: Numbers | None = None,
        read: Numbers | None = None,
        streaming: bool = False,
        weigh: bool = False,
    ) -> Decoded:
        """Decode whole targets, with visible [B, T] or [B, H, T] source tokens at each position.

        read [B, T]: source tokens read by then, if heads see fewer. With `streaming`, attention
        takes hard decisions, as in translation, instead of expectations; integers always do.
        weigh: plain cross-attention reports its weights.
        """
        view = self._self_view(target)
        source = self._source_view(target, encoded, visible, k, read, streaming, weigh)
        return self._decode(target, view, encoded, source)

    def alignment(self, target: Embedded, encoded: Encoded, visible: Numbers) -> Numbers:
        """Cross-attention of whole targets, of the layer before the last, which aligns best.

        Only for plain cross-attention. Returns [B, T, S], the mean over the heads.
        """
        decoded = self.decode(target, encoded, visible, streaming=True, weigh=True)
        reports: Any = decoded.extras[:-1] or decoded.extras
        return reports[-1].weights.mean(1)

    def step(
        self,
        target: Embedded,
        encoded: Encoded,
        visible: Numbers,
        caches: Sequence[Any],
        position: CachePosition,
        k: Numbers | None = None,
        read: Numbers | None = None,
        states: Sequence[Numbers] | None = None,
        weigh: bool = False,
    ) -> Decoded:
        """Decode the next tokens [R, T] of some rows, each row at its own position.

        states: [R, H] for each layer, the state of its cross-attention after the previous position.
        weigh: plain cross-attention reports its weights.
        """
        source = self._source_view(target, encoded, visible, k, read, True, weigh)
        view = self._self_view(target, position)
        return self._decode(target, view, encoded, source, caches, states)

    def _decode(
        self,
        target: Embedded,
        view: SelfView,
        encoded: Encoded,
        source: SourceView,
        caches: Sequence[Any] | None = None,
        states: Sequence[Numbers] | None = None,
    ) -> Decoded:
        x = target.x
        reports = []
        for number, layer in enumerate(self.decoder_layers):
            cache = None if caches is None else caches[number]
            if states:
                source = replace(source, before=states[number])
            x, report = layer(x, view, encoded.memories[number], source, cache)
            reports.append(report)
        return Decoded(self.decoder_norm(x), reports)

    def _source_view(
        self,
        target: Embedded,
        encoded: Encoded,
        visible: Numbers,
        k: Numbers | None,
        read: Numbers | None,
        streaming: bool,
        weigh: bool,
    ) -> SourceView:
        weight = None
        if self.config.info_cross_attention and target.info is not None:
            assert encoded.info is not None
            weight = self.biases.consistency(encoded.info, target.info)
        bias = self.biases.cross_bias(visible, encoded.width, weight)
        read_bias = None
        if read is not None and read is not visible:
            read_bias = self.biases.cross_bias(read, encoded.width, weight)
        return SourceView(visible, bias, k, read_bias, target.at, None, streaming, weigh)
