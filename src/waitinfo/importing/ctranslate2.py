"""Models in CTranslate2's format, read and written, and Argos packages, which hold one.

`model.bin` is a list of named arrays. A matrix of 8-bit integers has a scale for each row, stored
beside it: a weight is the integer divided by the scale.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.importing.pieces import PieceFile
from waitinfo.importing.published import (
    Array,
    Published,
    cover,
    own_bias,
    shared_pieces,
    special_rows,
    write_files,
)
from waitinfo.model.config import ModelConfig
from waitinfo.model.layers import sinusoids
from waitinfo.text.languages import Languages
from waitinfo.text.special import NAMES
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
ACTIVATIONS = {0: "relu", 2: "swish"}
EPSILON = 1e-5  # of layer norms, where the model does not say
PACKAGE = ".argosmodel"
SETTINGS, METADATA = "config.json", "metadata.json"  # the second names the languages, as Argos does
VERSION, REVISION, POSITIONS = 6, 7, 1024  # of what is written: the last is the longest sentence


def find(folder: Path) -> Path | None:
    """The folder of a model: itself, or the one inside an Argos package that was unpacked."""
    for path in (folder, folder / "model", *sorted(folder.glob("*/model"))):
        if (path / "model.bin").is_file():
            return path
    return None


def read_package(path: Path) -> Published:
    """An Argos package: a zip of a folder with the model, its tokenizer and its languages."""
    try:
        with zipfile.ZipFile(path) as package, TemporaryDirectory() as folder:
            names = [n for n in package.namelist() if not re.search(r"(^|/)\.\.(/|$)|^/", n)]
            wanted = r"(^|/)(model/[\w.]+|sentencepiece\.model|metadata\.json)$"
            package.extractall(folder, [n for n in names if re.search(wanted, n)])
            found = find(Path(folder))
            if found is None:
                raise WaitinfoError(f"{path}: no model.bin in it")
            return read(found)
    except zipfile.BadZipFile:
        raise WaitinfoError(f"{path}: not an Argos package (it is not a zip file)") from None


def read(folder: Path) -> Published:
    path = folder / "model.bin"
    arrays = _arrays(path)
    reader = _ConvertedWeights(arrays, path)
    shape = reader.shape()
    words, settings = _words(folder), _settings(folder)
    first_token = settings.get("decoder_start_token") or "<s>"
    order = [n for n, word in enumerate(words) if word not in NAMES]
    try:
        eos, unk = words.index("</s>"), words.index("<unk>")
        zeros = reader.flag("decoder/start_from_zero_embedding")
        start = None if zeros else words.index(first_token)
    except ValueError:
        raise WaitinfoError(
            f"{folder}: its vocabulary has no </s>, no <unk> or no {first_token}"
        ) from None
    shape["epsilon"] = settings.get("layer_norm_epsilon") or EPSILON
    weights = reader.all(shape["encoder_layers"], shape["decoder_layers"])
    for name in ("source_embedding.weight", "output_bias"):
        weights[name] = special_rows(weights[name], order, eos, unk, start)
    source, target = _tokenizer_files(folder)
    texts = [words[n] for n in order]
    first = Tokenizer(PieceFile(source.read_bytes(), str(source)).reordered(texts))
    second = first
    if target != source:
        second = Tokenizer(PieceFile(target.read_bytes(), str(target)).reordered(texts))
    size, width = weights["source_embedding.weight"].shape
    shape |= {"source_vocabulary": size, "target_vocabulary": size, "width": width}
    cover(weights, max(len(first), len(second)))
    shape |= {"source_vocabulary": len(weights["output_bias"])}
    shape |= {"target_vocabulary": len(weights["output_bias"])}
    return Published(shape, weights, Vocabulary(first, second), _languages(folder))


def _arrays(path: Path) -> dict[str, Array]:
    data = path.read_bytes()
    at = 0

    def number(kind: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + kind, data, at)
        at += struct.calcsize(kind)
        return int(value)

    def text() -> str:
        nonlocal at
        length = number("H")
        at += length
        if at > len(data):
            raise ValueError
        return data[at - length : at - 1].decode()

    try:
        version = number("I")
        if version != VERSION:
            raise WaitinfoError(
                f"{path}: version {version} of CTranslate2's format; {VERSION} can be read"
            )
        specification = text()
        if specification != "TransformerSpec":
            raise WaitinfoError(
                f"{path}: a {specification}; only a TransformerSpec can be imported"
            )
        number("I")
        arrays: dict[str, Array] = {}
        for _ in range(number("I")):
            name = text()
            shape = [number("I") for _ in range(number("B"))]
            kind, size = TYPES[number("B")], number("I")
            count = size // np.dtype(kind).itemsize
            arrays[name] = np.frombuffer(data, kind, count, at).reshape(shape)
            at += size
        for _ in range(number("I")):
            alias = text()
            arrays[alias] = arrays[text()]
    except (struct.error, ValueError, KeyError):
        raise WaitinfoError(f"{path}: not a model of CTranslate2, or not complete") from None
    return arrays


def _words(folder: Path) -> list[str]:
    """The vocabulary, in the order of the ids."""
    for name in ("shared_vocabulary", "source_vocabulary"):
        path = folder / f"{name}.json"
        if path.is_file():
            words = json.loads(path.read_text("utf-8"))
            if name == "source_vocabulary":
                other = json.loads((folder / "target_vocabulary.json").read_text("utf-8"))
                if words != other:
                    raise WaitinfoError(
                        f"{folder}: two vocabularies; only models with a shared one can be read"
                    )
            return [str(word) for word in words]
        if path.with_suffix(".txt").is_file():
            return path.with_suffix(".txt").read_text("utf-8").splitlines()
    raise WaitinfoError(f"{folder}: no shared_vocabulary.json")


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / SETTINGS
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError:
        raise WaitinfoError(f"{path}: not JSON") from None
    return found if isinstance(found, dict) else {}


def _tokenizer_files(folder: Path) -> tuple[Path, Path]:
    """The SentencePiece files of both sides, in the folder or beside it."""
    for place in (folder, folder.parent):
        for source, target in (("sentencepiece.model",) * 2, ("source.spm", "target.spm")):
            if (place / source).is_file() and (place / target).is_file():
                return place / source, place / target
    raise WaitinfoError(f"{folder}: no sentencepiece.model, and no source.spm and target.spm")


def _languages(folder: Path) -> Languages:
    for path in (folder / METADATA, folder.parent / METADATA):
        if path.is_file():
            found = json.loads(path.read_text("utf-8"))
            return Languages(found.get("from_code"), found.get("to_code"))
    return Languages()


def write(
    folder: Path, config: ModelConfig, weights: dict[str, Array], vocabulary: Vocabulary,
    languages: Languages,
) -> None:  # fmt: skip
    """A plain model as CTranslate2 loads it, in float32, with its tokenizers beside it."""
    embedding = weights["source_embedding.weight"]
    at = torch.arange(POSITIONS)[None]
    table = sinusoids(at, config.width, config.positions == "closed")[0].numpy()
    arrays: dict[str, Any] = {
        "decoder/projection/weight": embedding,
        "decoder/projection/bias": own_bias(weights),
    }
    (activation,) = (n for n, name in ACTIVATIONS.items() if name == config.activation)
    for side, name in (("encoder", "embeddings_0"), ("decoder", "embeddings")):
        arrays |= {
            f"{side}/{name}/weight": embedding,
            f"{side}/position_encodings/encodings": table,
            f"{side}/num_heads": np.int16(config.heads),
            f"{side}/pre_norm": np.int8(config.norm == "pre"),
            f"{side}/activation": np.int8(activation),
            f"{side}/scale_embeddings": np.int8(1),
        }
    for ours, theirs in modules(config.encoder_layers, config.decoder_layers):
        first, second = ("gamma", "beta") if theirs.endswith("norm") else ("weight", "bias")
        if f"{ours}.weight" in weights:
            arrays[f"{theirs}/{first}"] = weights[f"{ours}.weight"]
            arrays[f"{theirs}/{second}"] = weights[f"{ours}.bias"]
    (folder / "model.bin").write_bytes(_encoded(arrays))
    settings = {
        "add_source_bos": False, "add_source_eos": True, "bos_token": "<s>", "eos_token": "</s>",
        "unk_token": "<unk>", "decoder_start_token": "<s>", "layer_norm_epsilon": config.epsilon,
    }  # fmt: skip
    words = shared_pieces(vocabulary, len(embedding))
    named = {"from_code": languages.source, "to_code": languages.target}
    files = {"shared_vocabulary.json": words, SETTINGS: settings, METADATA: named}
    write_files(folder, vocabulary, files)


def _encoded(arrays: dict[str, Array]) -> bytes:
    """Named arrays as `_arrays` reads them; one that has several names is stored once."""

    def text(name: str) -> bytes:
        return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"

    kinds = {np.dtype(kind): number for number, kind in TYPES.items()}
    first: dict[int, str] = {}
    for name, array in arrays.items():
        first.setdefault(id(array), name)
    stored = {name: np.asarray(arrays[name], order="C") for name in first.values()}
    out = [struct.pack("<I", VERSION), text("TransformerSpec"), struct.pack("<I", REVISION)]
    out.append(struct.pack("<I", len(stored)))
    for name, array in stored.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        kind = struct.pack("<BI", kinds[array.dtype], array.nbytes)
        out += [text(name), shape, kind, array.tobytes()]
    others = {name: first[id(array)] for name, array in arrays.items() if name not in stored}
    out.append(struct.pack("<I", len(others)))
    return b"".join([*out, *(text(a) + text(b) for a, b in others.items())])


def modules(encoder_layers: int, decoder_layers: int) -> Iterator[tuple[str, str]]:
    """Every linear layer and norm: what it is called here, and there."""
    for side, count in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for number in range(count):
            ours, theirs = f"{side}_layers.{number}", f"{side}/layer_{number}"
            yield f"{ours}.attention.project", f"{theirs}/self_attention/linear_0"
            yield f"{ours}.attention.out", f"{theirs}/self_attention/linear_1"
            yield f"{ours}.around_attention.norm", f"{theirs}/self_attention/layer_norm"
            if side == "decoder":
                yield f"{ours}.cross.queries", f"{theirs}/attention/linear_0"
                yield f"{ours}.cross.project", f"{theirs}/attention/linear_1"
                yield f"{ours}.cross.out", f"{theirs}/attention/linear_2"
                yield f"{ours}.around_cross.norm", f"{theirs}/attention/layer_norm"
            yield f"{ours}.feed_forward.inner", f"{theirs}/ffn/linear_0"
            yield f"{ours}.feed_forward.out", f"{theirs}/ffn/linear_1"
            yield f"{ours}.around_feed_forward.norm", f"{theirs}/ffn/layer_norm"
        yield f"{side}_norm", f"{side}/layer_norm"


class _ConvertedWeights:
    def __init__(self, arrays: dict[str, Array], path: Path) -> None:
        self.arrays, self.path = arrays, path

    def flag(self, name: str, default: int = 0) -> int:
        return int(self.arrays[name]) if name in self.arrays else default

    def shape(self) -> dict[str, Any]:
        for name, reason in (
            ("alibi", "ALiBi positions"), ("embeddings_merge", "source factors"),
            ("layernorm_embedding/gamma", "a norm of embeddings"),
            ("layer_0/self_attention/relative_position_keys", "relative positions"),
            ("layer_0/self_attention/rotary_dim", "rotary positions"),
        ):  # fmt: skip
            for side in ("encoder", "decoder"):
                array = self.arrays.get(f"{side}/{name}")
                if array is not None and (array.ndim or int(array)):
                    raise WaitinfoError(f"{self.path}: {reason} cannot be imported")
        activation = self.flag("decoder/activation")
        if activation not in ACTIVATIONS:
            raise WaitinfoError(f"{self.path}: activation {activation} cannot be imported; "
                                "only relu and swish can")  # fmt: skip
        if not self.flag("encoder/scale_embeddings", 1):
            raise WaitinfoError(f"{self.path}: embeddings that are not scaled cannot be imported")
        layers = {
            side: 1 + max(int(match[1]) for name in self.arrays
                          if (match := re.match(rf"{side}/layer_(\d+)/", name)))
            for side in ("encoder", "decoder")
        }  # fmt: skip
        return {
            "ffn": len(self.array("encoder/layer_0/ffn/linear_0/weight")),
            "encoder_layers": layers["encoder"],
            "decoder_layers": layers["decoder"],
            "heads": self.flag("encoder/num_heads", 8),
            "norm": "pre" if self.flag("encoder/pre_norm", 1) else "post",
            "encoder": "bidirectional",
            "activation": ACTIVATIONS[activation],
            "output_bias": True,
            "positions": self.positions(),
        }

    def positions(self) -> str:
        """The kind of sinusoids that the stored table has."""
        for side in ("encoder", "decoder"):
            if (name := f"{side}/position_encodings/encodings") not in self.arrays:
                raise WaitinfoError(f"{self.path}: no table of positions; others cannot be read")
            table = torch.from_numpy(self.arrays[name].astype(np.float32))
            at = torch.arange(len(table))[None]
            for kind in ("closed", "open"):
                if torch.allclose(sinusoids(at, table.shape[1], kind == "closed")[0], table,
                                  atol=1e-3):  # fmt: skip
                    found = kind
                    break
            else:
                raise WaitinfoError(f"{self.path}: positions that are learned cannot be imported")
        return found

    def all(self, encoder_layers: int, decoder_layers: int) -> dict[str, Array]:
        embedding = self.array("decoder/embeddings/weight")
        source = "encoder/embeddings_0/weight"
        if source in self.arrays and self.array(source).shape != embedding.shape:
            raise WaitinfoError(f"{self.path}: two embeddings; only a shared one can be imported")
        out = {"source_embedding.weight": embedding}
        bias = self.arrays.get("decoder/projection/bias")
        out["output_bias"] = np.zeros(len(embedding), np.float32) if bias is None else bias
        for ours, theirs in modules(encoder_layers, decoder_layers):
            if not theirs.endswith("layer_norm"):
                out |= self.linear(ours, theirs)
            elif "layers" in ours or f"{theirs}/gamma" in self.arrays:  # the last may be missing
                out[f"{ours}.weight"] = self.array(f"{theirs}/gamma")
                out[f"{ours}.bias"] = self.array(f"{theirs}/beta")
        return out

    def linear(self, ours: str, theirs: str) -> dict[str, Array]:
        weight, bias = self.array(f"{theirs}/weight"), self.arrays.get(f"{theirs}/bias")
        if bias is None:
            bias = np.zeros(len(weight), np.float32)
        return {f"{ours}.weight": weight, f"{ours}.bias": bias.astype(np.float32)}

    def array(self, name: str) -> Array:
        """A tensor in float32."""
        if name not in self.arrays:
            raise WaitinfoError(f"{self.path}: no array {name}")
        found = self.arrays[name].astype(np.float32)
        scale = self.arrays.get(f"{name}_scale")
        return found if scale is None else found / scale.astype(np.float32).reshape(-1, 1)
