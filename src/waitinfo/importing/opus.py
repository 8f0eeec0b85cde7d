"""OPUS-MT and other Marian models in the files of `transformers`: safetensors, vocab.json, .spm."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.importing.pieces import PieceFile
from waitinfo.importing.published import Array, Published, cover, special_rows
from waitinfo.model.stored import load_stored
from waitinfo.text.languages import CODE, Languages
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

KIND = "marian"  # of model_type in config.json
ACTIVATIONS = {"swish": "swish", "silu": "swish", "relu": "relu"}
EPSILON = 1e-5
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
    special = {ids["</s>"], ids["<unk>"], config["pad_token_id"]}
    words = {number: word for word, number in ids.items() if number not in special}
    order = sorted(words)
    weights = read_weights(folder, config["encoder_layers"], config["decoder_layers"])
    for name in ("source_embedding.weight", "output_bias"):
        weights[name] = special_rows(
            weights[name], order, ids["</s>"], ids["<unk>"], config["decoder_start_token_id"]
        )
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
    return Languages(*(code if CODE.fullmatch(code) else None for code in codes))


def read_weights(folder: Path, encoder_layers: int, decoder_layers: int) -> dict[str, Array]:
    """The weights of BART's layers by our names, as Marian and M2M100 have them in transformers."""
    stored = {name: a.astype(np.float32) for name, a in load_stored(folder).items()}

    def array(name: str) -> Array:
        if name not in stored:
            raise WaitinfoError(f"{folder}: no tensor {name}")
        return stored[name]

    def both(ours: str, theirs: str) -> dict[str, Array]:
        return {f"{ours}.{kind}": array(f"{theirs}.{kind}") for kind in ("weight", "bias")}

    def joined(ours: str, theirs: str, parts: str) -> dict[str, Array]:
        return {
            f"{ours}.{kind}": np.concatenate([array(f"{theirs}.{p}_proj.{kind}") for p in parts])
            for kind in ("weight", "bias")
        }

    embedding = next(
        (n for n in stored if re.search(r"(shared|embed_tokens)\.weight$", n)),
        "model.shared.weight",
    )
    out = {"source_embedding.weight": array(embedding)}
    bias = stored.get("final_logits_bias")
    size = len(out["source_embedding.weight"])
    out["output_bias"] = np.zeros(size, np.float32) if bias is None else bias[0]
    for side in ("encoder", "decoder"):
        if f"model.{side}.layer_norm.weight" in stored:
            out |= both(f"{side}_norm", f"model.{side}.layer_norm")
    for side, count in (("encoder", encoder_layers), ("decoder", decoder_layers)):
        for number in range(count):
            ours, theirs = f"{side}_layers.{number}", f"model.{side}.layers.{number}"
            out |= joined(f"{ours}.attention.project", f"{theirs}.self_attn", "qkv")
            out |= both(f"{ours}.attention.out", f"{theirs}.self_attn.out_proj")
            out |= both(f"{ours}.around_attention.norm", f"{theirs}.self_attn_layer_norm")
            if side == "decoder":
                out |= both(f"{ours}.cross.queries", f"{theirs}.encoder_attn.q_proj")
                out |= joined(f"{ours}.cross.project", f"{theirs}.encoder_attn", "kv")
                out |= both(f"{ours}.cross.out", f"{theirs}.encoder_attn.out_proj")
                out |= both(f"{ours}.around_cross.norm", f"{theirs}.encoder_attn_layer_norm")
            out |= both(f"{ours}.feed_forward.inner", f"{theirs}.fc1")
            out |= both(f"{ours}.feed_forward.out", f"{theirs}.fc2")
            out |= both(f"{ours}.around_feed_forward.norm", f"{theirs}.final_layer_norm")
    return out
