"""How lines are translated."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from waitinfo.errors import WaitinfoError, unknown
from waitinfo.streaming.engine import ENDINGS
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.systems import System, check_dial


@dataclass(frozen=True)
class TranslationOptions:
    """Everything that a translation depends on, besides the model, its system and its text."""

    k: float | None = None  # the dial; None: the system's own
    ending: str = "guard"
    segment: str = "auto"  # where the sentences of a line end, as in a stream
    capacity: int = 256  # source tokens of the longest sentence, including end-of-sentence
    beam: int = 1
    penalty: float = 1.0  # the score is log p / length^penalty
    best: int = 1  # translations of each line
    temperature: float = 0.0  # of sampling; 0: the most probable token
    top_k: int = 0  # tokens to sample from; 0: all
    seed: int = 1  # of sampling
    scores: bool = False

    def __post_init__(self) -> None:
        if self.ending not in ENDINGS:
            raise unknown("ending", self.ending, ENDINGS)
        for name, least in (("beam", 1), ("best", 1), ("top_k", 0), ("capacity", 2)):
            if getattr(self, name) < least:
                raise WaitinfoError(f"{name} {getattr(self, name)}: must be at least {least}")
        if not 0 <= self.temperature < math.inf:
            raise WaitinfoError(f"temperature {self.temperature:g}: must be 0 or more, and finite")
        if not math.isfinite(self.penalty):
            raise WaitinfoError(f"penalty {self.penalty:g}: must be finite")
        if not -(2**63) <= self.seed < 2**63:
            raise WaitinfoError(f"seed {self.seed}: must fit into 64 bits")
        Segmentation.parse(self.segment)
        self._check_search()

    def _check_search(self) -> None:
        if self.samples and self.beam > 1:
            raise WaitinfoError("sampling and beam search exclude each other; give one of them")
        if self.top_k and not self.samples:
            raise WaitinfoError(f"top_k {self.top_k}: needs a temperature above 0")
        if not self.samples and self.best > self.beam:
            raise WaitinfoError(
                f"best {self.best}: more translations than beams ({self.beam}); "
                "use a wider beam, or sampling"
            )

    @property
    def samples(self) -> bool:
        return self.temperature > 0

    def dial(self, system: System) -> float:
        """The dial value, checked; also check that the system can do what is asked."""
        if system.simultaneous:
            asked = {"beam": self.beam > 1, "sampling": self.samples, "scores": self.scores}
            for name in (name for name, wanted in asked.items() if wanted):
                raise WaitinfoError(
                    f"{name}: only full-sentence models offer it; this is {system.name}"
                )
        return check_dial(system, self.k)

    def settings(self, system: System) -> dict[str, Any]:
        """All options, with the dial that is used."""
        return asdict(self) | {"k": self.dial(system) if system.dial else None}
