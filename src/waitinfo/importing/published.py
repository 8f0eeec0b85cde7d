"""What every reader of a published model returns: a shape, weights by our names, vocabularies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.text.special import BOS, EOS, SPECIALS, UNK
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
