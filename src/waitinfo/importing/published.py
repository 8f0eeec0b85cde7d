"""What readers of published models return, a shape, weights by our names, vocabularies; and the way
back, for models that are written for others.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.text.special import BOS, EOS, PAD, SPECIALS, UNK
from waitinfo.text.tokenizer import Vocabulary

Array = NDArray[Any]
NEVER = -1e4  # the bias of tokens that are never written


@dataclass(frozen=True)
class Published:
    """A published model in our terms."""

    shape: dict[str, Any]  # settings of `ModelConfig`
    weights: dict[str, Array]
    vocabulary: Vocabulary
    languages: Languages = UNKNOWN
    language_tokens: dict[str, int] = field(default_factory=dict)  # of a model of many languages


def special_rows(matrix: Array, order: list[int], eos: int, unk: int, start: int | None) -> Array:
    """The rows of a published embedding or bias in our order: special tokens, then `order`.

    start: the row of the first decoder input; None: zeros. A bias lets no special token but the end
    be written.
    """
    if matrix.ndim == 1:
        first = np.array([NEVER] * SPECIALS, np.float32)
        first[EOS] = matrix[eos]
        return np.concatenate([first, matrix[order].astype(np.float32)])
    rows = np.zeros((SPECIALS + len(order), *matrix.shape[1:]), matrix.dtype)
    rows[SPECIALS:] = matrix[order]
    rows[EOS], rows[UNK] = matrix[eos], matrix[unk]
    if start is not None:
        rows[BOS] = matrix[start]
    return rows


def cover(weights: dict[str, Array], size: int) -> None:
    """Give pieces that only the tokenizer has the embedding of unknown words; none is written."""
    embedding, bias = weights["source_embedding.weight"], weights["output_bias"]
    missing = size - len(embedding)
    if missing > 0:
        weights["source_embedding.weight"] = np.concatenate(
            [embedding, np.repeat(embedding[[UNK]], missing, 0)]
        )
        weights["output_bias"] = np.concatenate([bias, np.full(missing, NEVER, np.float32)])


# The way back


def own_bias(weights: dict[str, Array]) -> Array:
    """The output bias, which also says what is never written; zeros where there is none."""
    size = len(weights["source_embedding.weight"])
    bias = weights.get("output_bias", np.zeros(size, np.float32)).copy()
    bias[[PAD, BOS]] = NEVER
    return bias


def shared_pieces(vocabulary: Vocabulary, size: int) -> list[str]:
    """The text of every row of a shared embedding.

    Rows that only one of two tokenizers has, or none, are never written and embed what <unk> does.
    """
    sides = [
        [side.piece(token) for token in range(min(size, len(side)))]
        for side in (vocabulary.source, vocabulary.target)
    ]
    same = [a if a == b else "" for a, b in zip(*sides, strict=False)]
    same += [""] * (size - len(same))
    return [piece or f"<unused {row}>" for row, piece in enumerate(same)]


def write_files(folder: Path, vocabulary: Vocabulary, files: dict[str, Any]) -> None:
    """JSON files by name, and the tokenizers of both sides."""
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=1) + "\n"
        (folder / name).write_text(text, "utf-8")
    vocabulary.source.save(folder / "source.spm")
    vocabulary.target.save(folder / "target.spm")
