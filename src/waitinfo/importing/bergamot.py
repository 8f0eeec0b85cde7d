"""Firefox's translation models: Marian's binary file with 8-bit weights, and its vocabularies.

The file is a list of headers (length of the name, type, rank, bytes), the names, the shapes, and
the data. An 8-bit matrix is stored transposed, [out, in], and followed by its multiplier m: a
weight is the integer divided by m.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.importing.pieces import PieceFile
from waitinfo.importing.published import Array, Published, special_rows
from waitinfo.text.languages import Languages
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

FLOAT, INTEGERS, TEXT = 0x404, 0x4101, 0x101  # types of tensors
HEADER = struct.Struct("<QQQQ")
SETTINGS = "special:model.yml"
EPSILON = 1e-6  # of Marian's layer norms
NEEDED = {  # settings that this reader understands
    "type": ("transformer",),
    "tied-embeddings-all": ("true",),
    "transformer-preprocess": ('""', "n"),
    "transformer-postprocess": ("dan", "da"),
    "transformer-postprocess-emb": ("d", '""'),
    "transformer-postprocess-top": ('""', "n"),
    "transformer-decoder-autoreg": ("rnn", "self-attention"),
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-ffn-depth": ("2",),
    "transformer-no-projection": ("false",),
    "transformer-train-position-embeddings": ("false",),
    "lemma-dim-emb": ("0",),
    "dec-cell": ("ssru", "gru"),
}


def find(folder: Path) -> tuple[Path, list[Path]] | None:
    """The model and the vocabularies of a folder, if it holds a Firefox model."""
    models = _found(folder, "model*.bin")
    vocabularies = sorted(_found(folder, "*vocab*.spm"), key=lambda path: "trg" in path.name)
    return (models[0], vocabularies) if len(models) == 1 and vocabularies else None


def _found(folder: Path, pattern: str) -> list[Path]:
    """Files as they are published, packed or not."""
    return sorted(folder.glob(pattern)) or sorted(folder.glob(f"{pattern}.gz"))


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise WaitinfoError(f"{path}: cannot be unpacked ({error})") from None


def read(model: Path, vocabularies: list[Path]) -> Published:
    tensors = _tensors(model)
    settings = _settings(tensors, model)
    text, *others = map(_content, vocabularies)
    source = PieceFile(text, str(vocabularies[0]))
    if any(other != text for other in others):
        raise WaitinfoError(f"{model}: two vocabularies; only models with a joint one can be read")
    texts = [piece.text for piece in source.pieces]
    order = [n for n, piece in enumerate(source.pieces) if piece.text not in ("</s>", "<unk>")]
    special = {"eos": texts.index("</s>"), "unk": texts.index("<unk>"), "start": None}
    reader = _MarianWeights(tensors, model)
    weights = reader.all(int(settings["enc-depth"]), int(settings["dec-depth"]))
    for name in ("source_embedding.weight", "output_bias"):
        weights[name] = special_rows(weights[name], order, **special)  # type: ignore[arg-type]
    tokenizer = Tokenizer(source.reordered([texts[n] for n in order]))
    size, width = weights["source_embedding.weight"].shape
    shape: dict[str, Any] = {
        "source_vocabulary": size,
        "target_vocabulary": size,
        "width": width,
        "ffn": int(settings["transformer-dim-ffn"]),
        "encoder_layers": int(settings["enc-depth"]),
        "decoder_layers": int(settings["dec-depth"]),
        "heads": int(settings["transformer-heads"]),
        "norm": "pre" if "n" in settings["transformer-preprocess"] else "post",
        "encoder": "bidirectional",
        "activation": settings["transformer-ffn-activation"],
        "decoder": "ssru" if settings["transformer-decoder-autoreg"] == "rnn" else "attention",
        "output_bias": True,
        "epsilon": EPSILON,
    }
    return Published(shape, weights, Vocabulary(tokenizer, tokenizer), _languages(model))


def _languages(model: Path) -> Languages:
    """From the name of the file, as model.enpt.intgemm.alphas.bin."""
    found = re.fullmatch(r"model\.([a-z]{2})([a-z]{2})\..*", model.name)
    return Languages(*found.groups()) if found else Languages()


def _tensors(path: Path) -> dict[str, tuple[int, tuple[int, ...], memoryview]]:
    """Type, shape and data of every tensor."""
    data = memoryview(_content(path))
    try:
        version, count = struct.unpack_from("<QQ", data)
        if version != 1 or count > 100_000:
            raise ValueError
        heads = [HEADER.unpack_from(data, 16 + number * HEADER.size) for number in range(count)]
        at = 16 + count * HEADER.size
        names, shapes = [], []
        for length, _, _, _ in heads:
            names.append(bytes(data[at : at + length]).rstrip(b"\0").decode())
            at += length
        for _, _, rank, _ in heads:
            shapes.append(struct.unpack_from(f"<{rank}i", data, at))
            at += 4 * rank
        (padding,) = struct.unpack_from("<Q", data, at)
        at += 8 + padding
        found = {}
        for (_, kind, _, size), name, shape in zip(heads, names, shapes, strict=True):
            if at + size > len(data):
                raise ValueError
            found[name] = kind, shape, data[at : at + size]
            at += size
    except (ValueError, struct.error):
        raise WaitinfoError(f"{path}: not a binary file of Marian, or not complete") from None
    return found


def _settings(tensors: dict[str, Any], path: Path) -> dict[str, str]:
    if SETTINGS not in tensors:
        raise WaitinfoError(f"{path}: no {SETTINGS} in it; only Marian's Transformers can be read")
    text = bytes(tensors[SETTINGS][2]).rstrip(b"\0").decode()
    settings = dict(re.findall(r"^([\w-]+): *(.*?) *$", text, re.MULTILINE))
    for name, allowed in NEEDED.items():
        if settings.get(name, allowed[0]) not in allowed:
            wanted = " or ".join(allowed)
            raise WaitinfoError(
                f"{path}: {name} is {settings[name]}; only {wanted} can be imported"
            )
    return settings


class _MarianWeights:
    def __init__(self, tensors: dict[str, Any], path: Path) -> None:
        self.tensors, self.path = tensors, path

    def all(self, encoder_layers: int, decoder_layers: int) -> dict[str, Array]:
        out = {"source_embedding.weight": self.array("Wemb")}
        out["output_bias"] = self.array("decoder_ff_logit_out_b")[0]
        for number in range(encoder_layers):
            ours, theirs = f"encoder_layers.{number}", f"encoder_l{number + 1}"
            out |= self.attention(f"{ours}.attention", f"{theirs}_self")
            out |= self.norm(f"{ours}.around_attention", f"{theirs}_self_Wo")
            out |= self.feed_forward(ours, theirs)
        for number in range(decoder_layers):
            ours, theirs = f"decoder_layers.{number}", f"decoder_l{number + 1}"
            if f"{theirs}_rnn_W" in self.tensors:
                out |= self.recurrent_unit(f"{ours}.attention", f"{theirs}_rnn")
                out |= self.norm(f"{ours}.around_attention", f"{theirs}_rnn_ffn")
            else:
                out |= self.attention(f"{ours}.attention", f"{theirs}_self")
                out |= self.norm(f"{ours}.around_attention", f"{theirs}_self_Wo")
            cross = self.attention("", f"{theirs}_context")
            width = len(cross[".project.bias"]) // 3
            for kind in ("weight", "bias"):
                packed = cross[f".project.{kind}"]
                out[f"{ours}.cross.queries.{kind}"] = packed[:width]
                out[f"{ours}.cross.project.{kind}"] = packed[width:]
                out[f"{ours}.cross.out.{kind}"] = cross[f".out.{kind}"]
            out |= self.norm(f"{ours}.around_cross", f"{theirs}_context_Wo")
            out |= self.feed_forward(ours, theirs)
        return out

    def attention(self, ours: str, theirs: str) -> dict[str, Array]:
        return {
            f"{ours}.project.weight": np.concatenate([self.array(f"{theirs}_W{p}") for p in "qkv"]),
            f"{ours}.project.bias": np.concatenate(
                [self.array(f"{theirs}_b{p}")[0] for p in "qkv"]
            ),
            f"{ours}.out.weight": self.array(f"{theirs}_Wo"),
            f"{ours}.out.bias": self.array(f"{theirs}_bo")[0],
        }

    def recurrent_unit(self, ours: str, theirs: str) -> dict[str, Array]:
        """The forget gate, then the candidate, which has no bias."""
        forget, bias = self.array(f"{theirs}_Wf"), self.array(f"{theirs}_bf")[0]
        return {
            f"{ours}.project.weight": np.concatenate([forget, self.array(f"{theirs}_W")]),
            f"{ours}.project.bias": np.concatenate([bias, np.zeros_like(bias)]),
        }

    def feed_forward(self, ours: str, theirs: str) -> dict[str, Array]:
        found = self.norm(f"{ours}.around_feed_forward", f"{theirs}_ffn_ffn")
        for part, number in (("inner", 1), ("out", 2)):
            found[f"{ours}.feed_forward.{part}.weight"] = self.array(f"{theirs}_ffn_W{number}")
            found[f"{ours}.feed_forward.{part}.bias"] = self.array(f"{theirs}_ffn_b{number}")[0]
        return found

    def norm(self, ours: str, theirs: str) -> dict[str, Array]:
        return {
            f"{ours}.norm.weight": self.array(f"{theirs}_ln_scale")[0],
            f"{ours}.norm.bias": self.array(f"{theirs}_ln_bias")[0],
        }

    def array(self, name: str) -> Array:
        """A tensor in float32; a matrix as [out, in]."""
        if name not in self.tensors:
            raise WaitinfoError(f"{self.path}: no tensor {name}")
        kind, shape, data = self.tensors[name]
        count = int(np.prod(shape))
        if kind == FLOAT:
            values = np.frombuffer(data, np.float32, count).reshape(shape)
            return values.T.copy() if min(shape) > 1 and name != "Wemb" else values
        if kind == INTEGERS:
            integers = np.frombuffer(data, np.int8, count)
            (multiplier,) = np.frombuffer(data[count : count + 4], np.float32)
            shape = shape if name == "Wemb" else shape[::-1]
            return integers.reshape(shape).astype(np.float32) / multiplier
        raise WaitinfoError(f"{self.path}: {name} has a type that cannot be read ({kind:#x})")
