"""The special tokens, whose ids are the same in every vocabulary."""

from __future__ import annotations

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = 4  # number of special tokens; all other tokens have higher ids
NAMES = frozenset(("<pad>", "<unk>", "<s>", "</s>"))  # reserved by SentencePiece
