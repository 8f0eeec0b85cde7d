"""Models packed as 8-bit integers: weights, and how the inputs of products are prepared.

Weights have one scale per row: w ≈ q · s with q in -127 … 127 and s = max |w| / 127. That is a
quarter of the size. A model computes with the integers (`conversion`), or with the dequantized
weights in any precision.

A row of inputs is rounded in steps of its largest number. In a trained model the same few inputs
are the largest in nearly every row, and make the steps of all others coarse. So the mean of every
input is subtracted before rounding, which the bias makes up for, and the largest inputs come
several times: what does not fit into one byte goes to the next, which has the same weights. Both
change no weight, and a model that computes with floats ignores them.

Which inputs are large is measured when a model is packed: it translates made-up sentences of random
tokens. The inputs that are large in real text are large there too, so packing needs no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from waitinfo.model.attention import CrossAttention
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import Encoded
from waitinfo.text.special import BOS, EOS, SPECIALS

# Weights

SCALE = ":scale"  # suffix of a matrix's name
CENTER, REPEATED = ":center", ":repeated"  # of what is done to its inputs
_BESIDE = (SCALE, CENTER, REPEATED)


def quantize(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Store every matrix as integers and one scale per row; keep other tensors unchanged.

    Matrices that are integers already stay as they are.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if tensor.dim() != 2 or tensor.dtype == torch.int8:
            stored[name] = tensor
            continue
        exact = tensor.float()
        scale = (exact.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        stored[name] = (exact / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        stored[name + SCALE] = scale
    return stored


def dequantize(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Restore float32 matrices; tensors without a scale stay unchanged."""
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(_BESIDE):
            continue
        scale = stored.get(name + SCALE)
        weights[name] = tensor if scale is None else tensor.float().mul_(scale[:, None])
    return weights


# Inputs

LEVELS = 127


@dataclass(frozen=True)
class Preparation:
    """What is done to the inputs of one product."""

    center: Tensor  # [in] subtracted; float32
    repeated: Tensor  # [E] inputs that come again, behind the others; int32

    def __post_init__(self) -> None:
        inputs, repeats = self.center.numel(), self.repeated.numel()
        if self.center.dim() != 1 or self.repeated.dim() != 1 or repeats > inputs:
            raise ValueError(f"{inputs} inputs cannot have {repeats} repetitions")
        if repeats and not 0 <= int(self.repeated.min()) <= int(self.repeated.max()) < inputs:
            raise ValueError(f"a repeated input is not one of {inputs}")

    @property
    def share(self) -> Tensor:
        """[in] 1 / how often each input comes."""
        return 1 / (1 + torch.bincount(self.repeated.long(), minlength=len(self.center))).float()

    @property
    def before(self) -> Tensor:
        """[E] how much of an input the bytes before this repetition hold."""
        earlier = torch.tril(self.repeated[:, None] == self.repeated).sum(1)
        return LEVELS * earlier.to(torch.int32)

    def widen(self, weight: Tensor) -> Tensor:
        """Weights [out, in] for the inputs and their repetitions."""
        return torch.cat([weight, weight.index_select(1, self.repeated.long())], 1)

    def shift(self, weight: Tensor, scale: Tensor) -> Tensor:
        """What the bias must add for the center."""
        if weight.shape[1] != len(self.center):
            raise ValueError(f"{weight.shape[1]} inputs, but {len(self.center)} are prepared")
        # Exact in any order, since `measure_inputs` leaves the center few bits. In small parts,
        # because the embedding is large in float64.
        center = self.center.double()
        products = torch.cat([(part * center).sum(1) for part in weight.split(64)])
        return (products * scale.double()).float()


class Rounding:
    """Rounds rows of prepared inputs, by torch."""

    def __init__(self, prepared: Preparation) -> None:
        self.center, self.share = prepared.center, prepared.share
        self.repeated, self.before = prepared.repeated.long(), prepared.before.float()
        self.levels = torch.tensor(float(LEVELS))

    def __call__(self, rows: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
        """[R, in] -> whole numbers [R, in + E] in -127 … 127, and the largest number [R, 1]."""
        rows = rows - self.center
        largest = (rows * self.share).abs_().amax(-1, True).clamp_min_(smallest)
        whole = rows.mul_(torch.div(self.levels, largest)).round_()  # `/` would round twice
        again = whole.index_select(1, self.repeated)
        again = again - again.clamp(-self.before, self.before)
        return torch.cat([whole, again], 1).clamp_(-LEVELS, LEVELS), largest


# Measuring

SENTENCES, LENGTH = 64, 24
PASSES = 2  # that make the translations
REPEATS = 4  # repeated inputs of a product: as many as are multiplied together
CENTER_STEP = 2.0**-12  # so that products with 8-bit weights add up exactly in float64
PREPARED = ("project", "out", "queries", "inner")  # matrices whose inputs have both signs


@torch.inference_mode()
def measure_inputs(model: Transformer) -> dict[str, Tensor]:
    """Preparations of the inputs of all products, to be stored beside the weights.

    Nothing for a model with special cross-attention, whose decoder needs its system.
    """
    if model.config.cross_attention != CrossAttention.name:
        return {}
    sources, targets = _sentences(model)
    with _recording(model) as seen:
        states = _decode(model, _encode(model, sources), targets)
    name = "source_embedding" if model.config.joint else "target_embedding"
    seen[f"{name}.weight"] = states
    stored: dict[str, Tensor] = {}
    for name, inputs in seen.items():
        center, repeated = _prepare(inputs.flatten(0, -2).float().cpu())
        stored |= {name + CENTER: center, name + REPEATED: repeated}
    return stored


def _prepare(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of inputs [R, in], and those that differ from it most."""
    center = (rows.mean(0) / CENTER_STEP).round() * CENTER_STEP
    largest, times = (rows - center).abs().amax(0), torch.ones_like(center)
    repeated = []
    for _ in range(min(REPEATS, len(center))):
        repeated.append((largest / times).argmax())
        times[repeated[-1]] += 1
    return center, torch.stack(repeated).sort().values.to(torch.int32)


def _sentences(model: Transformer) -> tuple[Tensor, Tensor]:
    """Random sources, and decoder inputs that resemble their translations.

    The decoder's best tokens after random ones are its next inputs, and so on.
    """
    draw = torch.Generator().manual_seed(0)
    config, shape = model.config, (SENTENCES, LENGTH)
    sources, targets = (
        torch.randint(min(SPECIALS, size - 1), size, shape, generator=draw).to(model.device)
        for size in (config.source_vocabulary, config.target_vocabulary)
    )
    sources[:, -1], targets[:, 0] = EOS, BOS
    encoded = _encode(model, sources)
    for _ in range(PASSES):
        best = model.logits(_decode(model, encoded, targets)).argmax(-1)
        targets = torch.cat([targets[:, :1], best[:, :-1]], 1)
    return sources, targets


def _encode(model: Transformer, sources: Tensor) -> Encoded:
    lengths = torch.full((SENTENCES,), LENGTH, device=model.device)
    return model.encode(model.embed_source(sources), lengths)


def _decode(model: Transformer, encoded: Encoded, targets: Tensor) -> Tensor:
    """States of the decoder, which sees as many source tokens as it has written."""
    visible = torch.arange(1, LENGTH + 1, device=model.device).expand(SENTENCES, -1)
    return model.decode(model.embed_target(targets), encoded, visible).states


@contextmanager
def _recording(model: Transformer) -> Iterator[dict[str, Tensor]]:
    """Inputs of the products by the names of their matrices, while the model runs."""
    seen: dict[str, Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if not isinstance(module, nn.Linear) or not _is_prepared(name):
            continue

        def record(_: nn.Module, inputs: tuple[Any, ...], name: str = name) -> None:
            seen[f"{name}.weight"] = inputs[0]

        hooks.append(module.register_forward_pre_hook(record))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _is_prepared(name: str) -> bool:
    if "_layers." not in name or name.endswith("feed_forward.out"):  # not info; not after a ReLU
        return False
    return name.rpartition(".")[2] in PREPARED
