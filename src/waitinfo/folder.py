"""A model as a folder: `config.json`, `tokenizer.model`, safetensors weights. Never a pickle.

Weights are one `model.safetensors`, or, on request, parts of bounded size named
`model-00001-of-00004.safetensors`. A tensor larger than a part is cut along its first dimension
into pieces `name@0`, `name@1`, …
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import waitinfo
from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.config import ModelConfig
from waitinfo.model.transformer import Transformer
from waitinfo.quantize import dequantize, quantize
from waitinfo.systems import System, build_system
from waitinfo.text.files import fsync_folder
from waitinfo.text.tokenizer import Vocabulary

CONFIG = "config.json"
FORMAT = 1
STORED = ("float32", "float16", "bfloat16", "int8")  # how weights can be kept
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PART = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")


@dataclass(frozen=True)
class LoadedModel:
    """A trained model, ready to translate."""

    model: Transformer
    system: System
    vocabulary: Vocabulary
    folder: Path


def save_model(
    folder: Path,
    model: Transformer,
    weights: dict[str, Tensor],
    system: System,
    vocabulary: Vocabulary,
    dtype: str = "float32",
    part_bytes: int | None = None,
) -> None:
    """Write a model folder; an existing one is replaced only once the new one is complete."""
    if dtype not in STORED:
        raise unknown("weights dtype", dtype, STORED)
    fresh = folder.parent / f".{folder.name}.partial"
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        _fill(fresh, model, weights, system, vocabulary, dtype, part_bytes)
        swap_folder(fresh, folder)
    except OSError as error:
        raise WaitinfoError(f"{folder}: cannot be written ({error})") from None


def _fill(
    fresh: Path,
    model: Transformer,
    weights: dict[str, Tensor],
    system: System,
    vocabulary: Vocabulary,
    dtype: str,
    part_bytes: int | None,
) -> None:
    # Information sources are small and sums of them decide, so only matrices are stored narrow.
    if dtype == "int8":
        stored = quantize(weights)
    else:
        stored = {n: t.to(DTYPES[dtype]) if t.dim() > 1 else t for n, t in weights.items()}
    save_weights(fresh, stored, part_bytes)
    vocabulary.save(fresh)
    config = {
        "format": FORMAT,
        "waitinfo": waitinfo.__version__,
        "system": {"name": system.name, **asdict(system.options)},
        "model": asdict(model.config),
    }
    (fresh / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def swap_folder(fresh: Path, folder: Path) -> None:
    """Put a complete folder in the place of an old one, which is kept until it is there."""
    old = folder.parent / f".{folder.name}.old"
    recover_folder(folder)
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(folder: Path) -> None:
    """Bring the old folder back if a swap was cut off between its two renames."""
    old = folder.parent / f".{folder.name}.old"
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def save_weights(folder: Path, weights: dict[str, Tensor], part_bytes: int | None = None) -> None:
    """Write tensors as one safetensors file, or as parts of at most `part_bytes`."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    if part_bytes is None:
        write_tensors(folder / "model.safetensors", weights)
        return
    parts: list[dict[str, Tensor]] = [{}]
    room = part_bytes
    for name, tensor in weights.items():
        for piece_name, piece in _pieces(name, tensor, part_bytes):
            size = piece.numel() * piece.element_size()
            if size > room and parts[-1]:
                parts.append({})
                room = part_bytes
            parts[-1][piece_name] = piece
            room -= size
    for number, part in enumerate(parts, 1):
        write_tensors(folder / f"model-{number:05d}-of-{len(parts):05d}.safetensors", part)


def _pieces(name: str, tensor: Tensor, limit: int) -> list[tuple[str, Tensor]]:
    size = tensor.numel() * tensor.element_size()
    if size <= limit or tensor.dim() == 0:
        return [(name, tensor)]
    rows = max(1, limit // (size // tensor.shape[0]))
    return [(f"{name}@{i}", piece.contiguous()) for i, piece in enumerate(tensor.split(rows))]


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file and make it durable."""
    try:
        save_file(tensors, path)
        path.chmod(0o644)  # as readable as the files beside it
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be written ({error})") from None


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WaitinfoError(f"{path}: cannot be read as safetensors ({error})") from None


def load_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model folder, whole again."""
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise WaitinfoError(f"{folder}: holds no model.safetensors")
    if (match := PART.fullmatch(files[0].name)) and len(files) != int(match.group(2)):
        raise WaitinfoError(
            f"{folder}: {len(files)} of {int(match.group(2))} weight parts are here"
        )
    weights: dict[str, Tensor] = {}
    pieces: dict[str, dict[int, Tensor]] = {}
    for path in files:
        for name, tensor in read_tensors(path).items():
            base, cut, number = name.partition("@")
            if cut:
                pieces.setdefault(base, {})[int(number)] = tensor
            else:
                weights[name] = tensor
    for name, found in pieces.items():
        weights[name] = torch.cat([found[i] for i in sorted(found)])
    return dequantize(weights)


def resolve_model(path: Path) -> Path:
    """The model folder meant by a path: itself, or a run folder's best or last model."""
    for candidate in (path, path / "best", path / "last"):
        if candidate != path and path.is_dir():
            recover_folder(candidate)
        if (candidate / CONFIG).is_file():
            return candidate
    if not path.exists():
        raise WaitinfoError(f"{path}: no such model")
    raise WaitinfoError(f"{path}: not a model (no {CONFIG}, and no best or last model in it)")


def read_config(folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / CONFIG).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise WaitinfoError(f"{folder / CONFIG}: cannot be read ({error})") from None
    if config.get("format") != FORMAT:
        raise WaitinfoError(f"{folder}: a model of another version of waitinfo")
    return config


def load_model(
    path: Path,
    device: str = "auto",
    dtype: str = "float32",
    system: str | None = None,
    options: dict[str, Any] | None = None,
) -> LoadedModel:
    """Load a model or run folder for translation, by its own system or by another it can serve."""
    folder = resolve_model(path)
    if dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    config = read_config(folder)
    chosen = _choose_system(config["system"], system, options or {})
    model_config = from_mapping(ModelConfig, config["model"], "model")
    chosen.check_model(model_config)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = Transformer(model_config)
    weights = {name: tensor.float() for name, tensor in load_weights(folder).items()}
    try:
        model.load_weights(weights, assign=True)
    except (RuntimeError, KeyError) as error:
        raise WaitinfoError(f"{folder}: weights do not fit config.json ({error})") from None
    try:
        model = model.to(device=device, dtype=DTYPES[dtype]).eval()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise WaitinfoError(f"--device {device}: cannot be used ({reason})") from None
    return LoadedModel(model, chosen, Vocabulary.load(folder), folder)


def _choose_system(stored: dict[str, Any], name: str | None, options: dict[str, Any]) -> System:
    """The stored system with the given options on top, or another with these options alone."""
    own = {key: value for key, value in stored.items() if key != "name"}
    if name is None or name == stored["name"]:
        return build_system(stored["name"], {**own, **options})
    return build_system(name, options)


def fingerprint(folder: Path) -> str:
    """A checksum of all that decides what a model writes: settings, vocabularies and weights."""
    digest = hashlib.sha256()
    for path in sorted([folder / CONFIG, *folder.glob("*.model"), *folder.glob("*.safetensors")]):
        digest.update(path.name.encode())
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
