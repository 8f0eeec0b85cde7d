"""Where an interrupted stream continues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waitinfo.errors import WaitinfoError
from waitinfo.text.special import BOS, PAD


@dataclass(frozen=True)
class Replay:
    """What a stream had written of its present sentence when it was interrupted.

    A stream opened with it gets the source again from the beginning of that sentence. It reads and
    writes the same tokens at the same places, and then goes on as if it had not been interrupted.
    """

    path: Sequence[tuple[int, int]] = ()  # tokens written, each with the source tokens read before
    sentence: int = 0  # number of the present sentence
    seconds: float = 0.0  # age of the stream when it was interrupted

    def check(self, vocabulary: int) -> None:
        """Raise unless every token is one that a model with this vocabulary can write."""
        for token, read in self.path:
            if not 0 <= token < vocabulary or token in (BOS, PAD) or read < 0:
                raise WaitinfoError(
                    f"replay: token {token} after {read} cannot have been written by this model"
                )
