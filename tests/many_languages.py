"""M2M100 and NLLB as transformers saves them, with random weights, for tests."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from tests.conftest import toy_pairs
from waitinfo.importing.pieces import PieceFile

NAMES = {"m2m100": ["__de__", "__en__", "__pt__"], "nllb": ["deu_Latn", "eng_Latn", "zho_Hans"]}


@cache
def pieces() -> bytes:
    """A vocabulary as theirs: <unk>, <s> and </s> come first, and no letter is bytes."""
    model = io.BytesIO()
    lines = [f"{side}." for pair in toy_pairs(400) for side in pair]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=60, minloglevel=2,
        model_type="bpe", hard_vocab_limit=False,
    )  # fmt: skip
    return model.getvalue()


def saved(folder: Path, kind: str) -> Any:
    """A folder as transformers saves it, with random weights; the model."""
    transformers = pytest.importorskip("transformers", reason="needs the extra dev")
    torch.manual_seed(3)
    texts = [piece.text for piece in PieceFile(pieces()).pieces][3:]
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(pieces())
    first = 4 + len(texts)
    if kind == "m2m100":  # the rows of its pieces may have another order
        words = ["<s>", "<pad>", "</s>", "<unk>", *texts[::-1]]
        vocabulary = {word: number for number, word in enumerate(words)}
        (folder / "vocab.json").write_text(json.dumps(vocabulary), "utf-8")
        special = {"additional_special_tokens": NAMES[kind]}
        (folder / "special_tokens_map.json").write_text(json.dumps(special), "utf-8")
    else:
        added = [{"id": first + n, "content": name} for n, name in enumerate(NAMES[kind])]
        added.append({"id": first + len(added), "content": "<mask>"})
        (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": added}), "utf-8")
    config = transformers.M2M100Config(
        vocab_size=first + 8, d_model=32, encoder_layers=2, decoder_layers=2, init_std=0.3,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_position_embeddings=70, activation_function="relu",
    )  # fmt: skip
    theirs = transformers.M2M100ForConditionalGeneration(config).eval().requires_grad_(False)
    theirs.save_pretrained(folder)
    return theirs
