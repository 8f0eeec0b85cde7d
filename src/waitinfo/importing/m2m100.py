"""M2M100 and NLLB in the files of `transformers`: many languages, each named by a token.

The source of every sentence begins with the token of its language, and the translation with that of
the language to write.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.importing.opus import ACTIVATIONS, EPSILON, read_weights
from waitinfo.importing.pieces import CONTROL, UNKNOWN, PieceFile
from waitinfo.importing.published import NEVER, Published, cover, special_rows
from waitinfo.text.languages import short
from waitinfo.text.tokenizer import Tokenizer, Vocabulary

KIND = "m2m_100"  # of model_type in config.json, also of NLLB
PIECES = "sentencepiece.bpe.model"
FIRST_POSITION = 2  # behind that of padding


def read(folder: Path, config: dict[str, Any]) -> Published:
    _check(folder, config)
    path = folder / PIECES
    if not path.is_file():
        raise WaitinfoError(f"{folder}: no {PIECES}, which splits its text")
    pieces = PieceFile(path.read_bytes(), str(path))
    ids = _ids(folder, pieces)
    names = _language_ids(folder, max(ids.values()) + 1)
    weights = read_weights(folder, config["encoder_layers"], config["decoder_layers"])
    texts = sorted(ids, key=lambda text: ids[text])
    order = [*(ids[text] for text in texts), *names.values()]
    start, size = config["decoder_start_token_id"], len(weights["output_bias"])
    if max(order) >= size:
        raise WaitinfoError(f"{folder}: {size} embeddings for {max(order) + 1} tokens")
    for name in ("source_embedding.weight", "output_bias"):
        weights[name] = special_rows(weights[name], order, config["eos_token_id"], 3, start)
    first = len(weights["output_bias"]) - len(names)
    weights["output_bias"][first:] = NEVER  # languages are named, not written
    tokenizer = Tokenizer(pieces.reordered(texts, control=list(names)))
    found = {code: tokenizer.token(name) for name, code in _codes(names).items()}
    if sorted(found.values()) != list(range(first, len(tokenizer))):
        raise WaitinfoError(f"{folder}: {PIECES} has pieces that the vocabulary does not have")
    cover(weights, len(tokenizer))
    shape = {
        "source_vocabulary": len(tokenizer),
        "target_vocabulary": len(tokenizer),
        "width": config["d_model"],
        "ffn": config["encoder_ffn_dim"],
        "encoder_layers": config["encoder_layers"],
        "decoder_layers": config["decoder_layers"],
        "heads": config["encoder_attention_heads"],
        "norm": "pre",
        "encoder": "bidirectional",
        "activation": ACTIVATIONS[config["activation_function"]],
        "output_bias": True,
        "epsilon": EPSILON,
        "first_position": FIRST_POSITION,
    }
    return Published(shape, weights, Vocabulary(tokenizer, tokenizer), language_tokens=found)


def _check(folder: Path, config: dict[str, Any]) -> None:
    if config.get("activation_function") not in ACTIVATIONS:
        found = config.get("activation_function")
        raise WaitinfoError(f"{folder}: {found} cannot be imported; only swish and relu can")
    if not config.get("scale_embedding", True):
        raise WaitinfoError(f"{folder}: scale_embedding is false; only true can be imported")
    for name in ("attention_heads", "ffn_dim"):
        if config[f"encoder_{name}"] != config[f"decoder_{name}"]:
            raise WaitinfoError(f"{folder}: {name} differs between encoder and decoder")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise WaitinfoError(f"{path}: not JSON") from None


def _ids(folder: Path, pieces: PieceFile) -> dict[str, int]:
    """Rows of pieces: those of vocab.json (M2M100), or the places in the file, one later (NLLB)."""
    texts = [piece.text for piece in pieces.pieces if piece.kind not in (UNKNOWN, CONTROL)]
    stored = _json(folder / "vocab.json")
    if stored:
        return {text: stored[text] for text in texts if text in stored}
    places = {piece.text: place for place, piece in enumerate(pieces.pieces)}
    return {text: places[text] + 1 for text in texts}


def _language_ids(folder: Path, first: int) -> dict[str, int]:
    """Rows of languages by the names of their tokens."""
    added = _json(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    found = {token["content"]: int(number) for number, token in added.items()}
    for token in _json(folder / "tokenizer.json").get("added_tokens", []):
        found[token["content"]] = token["id"]
    if not any(map(_is_language, found)):
        listed = _json(folder / "special_tokens_map.json").get("additional_special_tokens", [])
        found = {name: first + place for place, name in enumerate(listed)}
    languages = {name: number for name, number in found.items() if _is_language(name)}
    if not languages:
        raise WaitinfoError(
            f"{folder}: names no languages; they stand in tokenizer.json or special_tokens_map.json"
        )
    return dict(sorted(languages.items(), key=lambda item: item[1]))


def _is_language(name: str) -> bool:
    return name.strip("_").replace("_", "").isalpha()


def _codes(names: dict[str, int]) -> dict[str, str]:
    """Codes of languages: __pt__ is pt, por_Latn is pt, and zho_Hans, one of two, is zh-Hans."""
    parts = {name: name.strip("_").split("_") for name in names}
    counts = Counter(language for language, *_ in parts.values())
    codes = {}
    for name, (language, *script) in parts.items():
        code = short(language)
        codes[name] = "-".join([code, *script]) if counts[language] > 1 else code
    return codes
