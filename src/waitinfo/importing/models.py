"""Published translation models as model folders of ours: reading them, and saving what was read.

Each reader (`bergamot`, `ctranslate2`, `opus`) returns a `Published` model. Nothing of a
published model is run: weights are read as numbers, and pickles are refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from waitinfo.errors import WaitinfoError
from waitinfo.importing import bergamot, ctranslate2, m2m100, opus
from waitinfo.importing.published import Published
from waitinfo.importing.sources import PICKLES, pickle_refusal, whole_model
from waitinfo.model.config import ModelConfig
from waitinfo.model.integers.measuring import measure_inputs
from waitinfo.model.transformer import Transformer
from waitinfo.progress import Progress, Silent
from waitinfo.systems import build_system
from waitinfo.text.languages import UNKNOWN, Languages, find_code
from waitinfo.trained.saving import STORED, save_model

SILENT = Silent()
SYSTEM = "alignatt"  # of an imported model, unless another is asked for
REFUSED = {  # kinds of transformers, and what of them cannot be imported
    **dict.fromkeys(("t5", "mt5", "umt5", "longt5", "switch_transformers"), "relative positions"),
    **dict.fromkeys(("bart", "mbart", "plbart", "blenderbot"), "learned positions"),
    "nllb-moe": "a mixture of experts",
    "fsmt": "separate vocabularies",
    "encoder-decoder": "two models joined",
}
PACKED = (".zst", ".zstd")
KINDS = (
    "a Firefox or Bergamot folder (model.*.bin and vocab.*.spm), a CTranslate2 folder (model.bin), "
    "an .argosmodel file, or a Marian, M2M100 or NLLB folder of transformers (config.json and "
    "safetensors)"
)


def read_published(source: Path) -> Published:
    """Read a published model of any kind that is known."""
    if not source.exists():
        raise WaitinfoError(f"{source}: no such file or folder; give {KINDS}")
    source = whole_model(source)
    if source.is_file():
        if source.name.endswith(ctranslate2.PACKAGE):
            return ctranslate2.read_package(source)
        _refuse(source)
        raise WaitinfoError(f"{source}: not a model that can be imported; give {KINDS}")
    if (found := ctranslate2.find(source)) is not None:
        return ctranslate2.read(found)
    if (files := bergamot.find(source)) is not None:
        return bergamot.read(*files)
    return _from_transformers(source, _config(source))


def _from_transformers(source: Path, config: dict[str, Any]) -> Published:
    if "format" in config:
        raise WaitinfoError(f"{source}: a model of waitinfo already; use it as it is")
    kind = config.get("model_type")
    readers = {opus.KIND: opus.read, m2m100.KIND: m2m100.read}
    if kind in readers and list(source.glob("model*.safetensors")):
        return readers[kind](source, config)
    if kind is not None and kind not in readers:
        what = REFUSED.get(kind)
        if what is None and not config.get("is_encoder_decoder"):
            what = "a decoder without an encoder"
        reason = f" ({what})" if what else ""
        raise WaitinfoError(
            f"{source}: a model of type {kind}{reason} cannot be imported; give {KINDS}"
        )
    for path in sorted(source.iterdir()):
        _refuse(path)
    raise WaitinfoError(f"{source}: no model that can be imported; give {KINDS}")


def _refuse(path: Path) -> None:
    if path.name.endswith(PICKLES):
        raise WaitinfoError(pickle_refusal(path, path.parent))
    if path.name.endswith(PACKED):
        raise WaitinfoError(f"{path}: unpack it first, with: zstd -d {path}")


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def build(published: Published) -> Transformer:
    """The network of a published model."""
    config = ModelConfig(**{"dropout": 0.0, **published.shape})
    with torch.device("meta"):
        model = Transformer(config)
    weights = {name: torch.tensor(array) for name, array in published.weights.items()}
    wanted = {name: tensor.shape for name, tensor in model.weights().items()}
    for name, shape in wanted.items():
        if name not in weights or weights[name].shape != shape:
            found = tuple(weights[name].shape) if name in weights else "missing"
            raise WaitinfoError(f"{name}: is {found}, not {tuple(shape)}; cannot be imported")
    if more := weights.keys() - wanted.keys():
        raise WaitinfoError(f"{min(more)}: no place for these weights; cannot be imported")
    model.load_weights({name: tensor.float() for name, tensor in weights.items()}, assign=True)
    return model.eval()


def _named(languages: Languages, tokens: dict[str, int]) -> dict[str, str]:
    """The languages that were given, as the model calls them."""
    given = {side: code for side, code in asdict(languages).items() if code is not None}
    return {side: find_code(code, tokens) for side, code in given.items()} if tokens else given


def import_model(
    source: Path,
    out: Path,
    dtype: str = "int8",
    system: str = SYSTEM,
    languages: Languages = UNKNOWN,
    progress: Progress = SILENT,
) -> None:
    """Write a published model as a model folder."""
    if out.exists():
        raise WaitinfoError(f"{out}: exists already; choose a new folder")
    if dtype not in STORED:
        raise WaitinfoError(f"dtype {dtype}: must be one of {', '.join(STORED)}")
    progress.stage(f"importing {source.name}", 3)
    published = read_published(source)
    progress.advance(1)
    model, chosen = build(published), build_system(system)
    chosen.check_model(model.config)
    known = replace(published.languages, **_named(languages, published.language_tokens))
    progress.advance(2)
    save_model(
        out, model, model.weights(), chosen, published.vocabulary, dtype, languages=known,
        inputs=measure_inputs(model) if dtype == "int8" else None,
        language_tokens=published.language_tokens,
    )  # fmt: skip
    progress.advance(3)
