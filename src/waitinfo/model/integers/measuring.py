"""Measures which inputs of products are large, in a model that is about to be packed.

It translates made-up sentences of random tokens. The inputs that are large in real text are large
there too, so packing needs no text.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from waitinfo.model.attention import CrossAttention
from waitinfo.model.integers.model import IntegerModel
from waitinfo.model.integers.packing import CENTER, REPEATED, quantize
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import Encoded
from waitinfo.text.special import BOS, EOS, SPECIALS

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


def with_integers(model: Transformer, prepared: bool = False) -> IntegerModel:
    """The same model, computed with integers; `prepared`: with measured inputs."""
    weights = {name: tensor.float().numpy() for name, tensor in model.weights().items()}
    inputs = measure_inputs(model) if prepared else {}
    measured = {name: tensor.numpy() for name, tensor in inputs.items()}
    return IntegerModel(model.config, {**quantize(weights), **measured})
