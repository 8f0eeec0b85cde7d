"""Tokens that a slot has to write: the translation of an interrupted stream, written again.

A stream that continues elsewhere writes what was already accepted, at the same places, and goes on
by itself after that. Rounding that differs between machines cannot change what was accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Numbers = np.ndarray[Any, Any]
Path = Sequence[tuple[int, int]]  # target tokens, each with the source tokens read before it


class Forced:
    """By slot, the tokens that it still has to write."""

    def __init__(self) -> None:
        self._paths: dict[int, deque[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def __contains__(self, slot: int) -> bool:
        """Whether the next token of a slot is forced."""
        return slot in self._paths

    def put(self, slot: int, path: Path) -> None:
        if path:
            self._paths[slot] = deque(path)

    def drop(self, slot: int) -> None:
        self._paths.pop(slot, None)

    def mask(self, rows: Numbers) -> Numbers:
        """[R] whether the next token of a row is forced."""
        return np.array([slot in self._paths for slot in rows.tolist()], dtype=bool)

    def due(self, rows: Numbers, read: Numbers) -> Numbers:
        """[R] whether a row has read as much as it had when its next token was first written."""
        wanted = [self._paths[slot][0][1] if slot in self._paths else 0 for slot in rows.tolist()]
        return read >= np.array(wanted)

    def following(self, rows: Numbers) -> Numbers:
        """[2, R] the next token of each row and the tokens to read before it; 0 if not forced."""
        found = [self._paths[slot][0] if slot in self._paths else (0, 0) for slot in rows.tolist()]
        return np.array(found, dtype=np.int64).T

    def replace(self, rows: Numbers, tokens: Tensor) -> Tensor:
        """Tokens [R] with those of forced rows in their places."""
        chosen = [
            self._paths[slot][0][0] if slot in self._paths else token
            for slot, token in zip(rows.tolist(), tokens.tolist(), strict=True)
        ]
        return torch.tensor(chosen, device=tokens.device)

    def written(self, slots: Iterable[int]) -> None:
        """The next token of these slots was written."""
        for slot in slots:
            if slot in self._paths:
                self._paths[slot].popleft()
                if not self._paths[slot]:
                    del self._paths[slot]
