"""OPUS-MT and other Marian models in the files of `transformers`, read and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

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
from waitinfo.model.stored import load_stored
from waitinfo.text.languages import CODE, Languages, short
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

KIND = "marian"  # of model_type in config.json
ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu"}
EPSILON = 1e-5
POSITIONS = 1024  # of the longest sentence of a model that is written
NEEDED = {  # settings that this reader understands, each with what it is if not given
    "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "scale_embedding": True,
}


def read(folder: Path, config: dict[str, Any]) -> Published:
    for name, wanted in NEEDED.items():
        if config.get(name, wanted) != wanted:
            raise WaitinfoError(
                f"{folder}: {name} is {config[name]}; only {wanted} can be imported"
            )
    activation = config.get("activation_function", "gelu")
    if activation not in ACTIVATIONS:
        raise WaitinfoError(f"{folder}: {activation} cannot be imported; only swish and relu can")
    for name in ("attention_heads", "ffn_dim"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise WaitinfoError(f"{folder}: {name} differs between encoder and decoder")
    ids = json.loads(_file(folder, "vocab.json").read_text("utf-8"))
    start = config["decoder_start_token_id"]
    special = {ids["</s>"], ids["<unk>"], config["pad_token_id"], start}
    words = {number: word for word, number in ids.items() if number not in special}
    order = sorted(words)
    weights = read_weights(folder, config["encoder_layers"], config["decoder_layers"])
    for name in ("source_embedding.weight", "output_bias"):
        weights[name] = special_rows(weights[name], order, ids["</s>"], ids["<unk>"], start)
    source, target = (
        Tokenizer(PieceFile(path.read_bytes(), str(path)).reordered([words[n] for n in order]))
        for path in (_file(folder, "source.spm"), _file(folder, "target.spm"))
    )
    cover(weights, max(len(source), len(target)))
    size, width = weights["source_embedding.weight"].shape
    shape = {
        "source_vocabulary": size,
        "target_vocabulary": size,
        "width": width,
        "ffn": config["encoder_ffn_dim"],
        "encoder_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": config["encoder_attention_heads"],
        "norm": "post",
        "encoder": "bidirectional",
        "activation": ACTIVATIONS[activation],
        "positions": "open",
        "output_bias": True,
        "epsilon": EPSILON,
    }
    return Published(shape, weights, Vocabulary(source, target), _languages(folder))


def _file(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise WaitinfoError(f"{folder}: no {name}")
    return folder / name


def _languages(folder: Path) -> Languages:
    path = folder / "tokenizer_config.json"
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    codes = [str(found.get(f"{side}_lang") or "") for side in ("source", "target")]
    return Languages(*(short(code) if CODE.fullmatch(code) else None for code in codes))


def read_weights(folder: Path, encoder_layers: int, decoder_layers: int) -> dict[str, Array]:
    """The weights of BART's layers by our names, as Marian and M2M100 have them in transformers."""
    stored = {name: a.astype(np.float32) for name, a in load_stored(folder).items()}

    def array(name: str) -> Array:
        if name not in stored:
            raise WaitinfoError(f"{folder}: no tensor {name}")
        return stored[name]

    embedding = next(
        (n for n in stored if re.search(r"(shared|embed_tokens)\.weight$", n)),
        "model.shared.weight",
    )
    out = {"source_embedding.weight": array(embedding)}
    bias = stored.get("final_logits_bias")
    size = len(out["source_embedding.weight"])
    out["output_bias"] = np.zeros(size, np.float32) if bias is None else bias[0]
    for ours, theirs in modules(encoder_layers, decoder_layers):
        if "layers" in ours or f"{theirs[0]}.weight" in stored:  # the last norm may be missing
            for kind in ("weight", "bias"):
                parts = [array(f"{part}.{kind}") for part in theirs]
                out[f"{ours}.{kind}"] = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return out


def write(
    folder: Path, config: ModelConfig, weights: dict[str, Array], vocabulary: Vocabulary,
    languages: Languages,
) -> None:  # fmt: skip
    """A plain model as MarianMTModel and MarianTokenizer load it."""
    embedding = weights["source_embedding.weight"]
    stored = {"model.shared.weight": embedding, "final_logits_bias": own_bias(weights)[None]}
    for ours, theirs in modules(config.encoder_layers, config.decoder_layers):
        for kind in ("weight", "bias"):
            if (name := f"{ours}.{kind}") in weights:
                parts = np.split(weights[name], len(theirs))
                stored |= {f"{n}.{kind}": p for n, p in zip(theirs, parts, strict=True)}
    save_file(
        {name: np.ascontiguousarray(array) for name, array in stored.items()},
        folder / "model.safetensors", metadata={"format": "pt"},
    )  # fmt: skip
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers))
        for name, value in (
            ("layers", layers), ("attention_heads", config.heads), ("ffn_dim", config.ffn)
        )
    }  # fmt: skip
    tokens = {
        "pad_token_id": PAD, "eos_token_id": EOS, "forced_eos_token_id": None,
        "decoder_start_token_id": BOS,
    }  # fmt: skip
    settings = {
        "model_type": KIND, "architectures": ["MarianMTModel"], "is_encoder_decoder": True,
        "vocab_size": len(embedding), "decoder_vocab_size": len(embedding),
        "d_model": config.width, "activation_function": config.activation,
        "scale_embedding": True, "static_position_embeddings": True, "tie_word_embeddings": True,
        "max_position_embeddings": POSITIONS, "dropout": config.dropout, "torch_dtype": "float32",
        **sides, **tokens,
    }  # fmt: skip
    named = {"source_lang": languages.source, "target_lang": languages.target}
    files = {
        "config.json": settings,
        "generation_config.json": tokens,
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer", "model_max_length": POSITIONS, **named
        },
        "vocab.json": {p: n for n, p in enumerate(shared_pieces(vocabulary, len(embedding)))},
    }  # fmt: skip
    write_files(folder, vocabulary, files)


def modules(encoder_layers: int, decoder_layers: int) -> Iterator[tuple[str, list[str]]]:
    """Every linear layer and norm: its name here, and the names there, whose rows it joins."""
    for side, count in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for number in range(count):
            ours, theirs = f"{side}_layers.{number}", f"model.{side}.layers.{number}"
            yield f"{ours}.attention.project", [f"{theirs}.self_attn.{p}_proj" for p in "qkv"]
            yield f"{ours}.attention.out", [f"{theirs}.self_attn.out_proj"]
            yield f"{ours}.around_attention.norm", [f"{theirs}.self_attn_layer_norm"]
            if side == "decoder":
                yield f"{ours}.cross.queries", [f"{theirs}.encoder_attn.q_proj"]
                yield f"{ours}.cross.project", [f"{theirs}.encoder_attn.{p}_proj" for p in "kv"]
                yield f"{ours}.cross.out", [f"{theirs}.encoder_attn.out_proj"]
                yield f"{ours}.around_cross.norm", [f"{theirs}.encoder_attn_layer_norm"]
            yield f"{ours}.feed_forward.inner", [f"{theirs}.fc1"]
            yield f"{ours}.feed_forward.out", [f"{theirs}.fc2"]
            yield f"{ours}.around_feed_forward.norm", [f"{theirs}.final_layer_norm"]
        yield f"{side}_norm", [f"model.{side}.layer_norm"]
