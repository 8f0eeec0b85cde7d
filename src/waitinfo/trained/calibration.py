"""Calibration: how the dial of a model relates to the lag of its translations.

`waitinfo evaluate --calibrate` measures it on a development set and stores it in the model folder,
for each system that the model was decoded with. Then a latency can be asked for by its name: a lag
in words, or in characters of a script without spaces.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from waitinfo.config import without_removed
from waitinfo.errors import WaitinfoError, number
from waitinfo.storage import write_file

if TYPE_CHECKING:
    from waitinfo.systems.base import Dial, System

FILE = "calibration.json"
FORMAT = 1
WORDS, CHARACTERS = "words", "characters"  # what lags are counted in; the latter without spaces


@dataclass(frozen=True)
class CalibrationPoint:
    """What one dial value gave on the development set."""

    k: float
    lag: float  # word-level LAAL
    measured: float  # the same as a stream measures it, without a reference
    BLEU: float


@dataclass(frozen=True)
class Calibration:
    """Dial values and lags, from the smallest dial value to the largest."""

    points: tuple[CalibrationPoint, ...]
    whole: bool  # the dial takes whole numbers only
    pace: float  # source words for each translated word
    source: str = WORDS  # what the source, and lags, are counted in
    target: str = WORDS

    def __post_init__(self) -> None:
        if len(self.points) < 2 or not self.lags[0] < self.lags[-1]:
            raise WaitinfoError(
                "a calibration needs two dial values or more, and lags that rise with them"
            )

    @property
    def dials(self) -> list[float]:
        return [point.k for point in self.points]

    @property
    def lags(self) -> list[float]:
        """Lags that never fall as the dial rises; noise is smoothed over."""
        return list(accumulate((point.lag for point in self.points), max))

    @property
    def measured(self) -> list[float]:
        return list(accumulate((point.measured for point in self.points), max))

    def check(self, lag: float) -> None:
        """Raise an error unless a lag is within what was calibrated."""
        if not self.lags[0] <= lag <= self.lags[-1]:
            raise WaitinfoError(
                f"--lag {lag:g}: this model is calibrated for lags from {self.lags[0]:.2f} to "
                f"{self.lags[-1]:.2f} {self.source}"
            )

    def dial(self, lag: float) -> float:
        """The dial value that gives a lag; of a whole dial the nearest."""
        self.check(lag)
        return self.round(interpolate(lag, self.lags, self.dials))

    def round(self, k: float) -> float:
        return float(round(k)) if self.whole else k

    def goal(self, lag: float) -> float:
        """What a stream measures when the lag is this."""
        self.check(lag)
        return interpolate(lag, self.lags, self.measured)


def interpolate(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """Piecewise linear; xs never fall. Outside their range, the value at the nearest end."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect_left(xs, x)
    share = (x - xs[right - 1]) / (xs[right] - xs[right - 1])
    return ys[right - 1] + share * (ys[right] - ys[right - 1])


def read_calibration(folder: Path, system: System) -> Calibration:
    """The stored calibration of a system; an error if there is none for it and its options."""
    found = _read(folder).get(system.name)
    how = f"waitinfo evaluate --calibrate --model {folder} …"
    if system.dial is None:
        raise WaitinfoError(f"lag: {system.name} translates whole sentences and has no dial")
    if found is None:
        raise WaitinfoError(
            f"{folder}: not calibrated for {system.name}, so a lag cannot be asked for; run {how}"
        )
    try:
        # Options that did not exist at the time had their defaults.
        options = asdict(type(system.options)())
        options |= without_removed(found["options"], "system", options)
        points = tuple(_point(point, system.dial) for point in found["points"])
        units = [_unit(unit) for unit in found.get("units", (WORDS, WORDS))]
        calibration = Calibration(points, system.dial.whole, _positive(found["pace"]), *units)
    except (KeyError, TypeError, ValueError, AttributeError, WaitinfoError) as error:
        raise WaitinfoError(f"{folder / FILE}: damaged ({error!r}); run {how} again") from None
    if options != (now := asdict(system.options)):
        others = (f"{name}={value}" for name, value in options.items() if now.get(name) != value)
        raise WaitinfoError(
            f"{folder}: {system.name} was calibrated with {', '.join(others)}; use that, or "
            "calibrate a copy of the model with the same options: waitinfo evaluate --calibrate "
            "--set …"
        )
    return calibration


def _point(stored: dict[str, Any], dial: Dial) -> CalibrationPoint:
    values = {name: number(name, value) for name, value in stored.items()}
    if not all(map(math.isfinite, values.values())):
        raise ValueError(stored)
    point = CalibrationPoint(**values)
    dial.check(point.k)
    return point


def _unit(name: object) -> str:
    if name not in (WORDS, CHARACTERS):
        raise ValueError(name)
    return str(name)


def _positive(pace: object) -> float:
    if not 0 < (value := number("pace", pace)) < math.inf:
        raise ValueError(pace)
    return value


def write_calibration(
    folder: Path, system: System, calibration: Calibration, facts: dict[str, Any]
) -> None:
    """Store a calibration and how it was made, next to those of other systems."""
    systems = _read(folder)
    systems[system.name] = {
        "options": asdict(system.options),
        "pace": calibration.pace,
        "units": [calibration.source, calibration.target],
        "points": [asdict(point) for point in calibration.points],
        **facts,
    }
    text = json.dumps({"format": FORMAT, "systems": systems}, indent=2)
    write_file(folder / FILE, text + "\n")


def _read(folder: Path) -> dict[str, Any]:
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
        if found["format"] == FORMAT:
            return dict(found["systems"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise WaitinfoError(f"{path}: cannot be read ({error})") from None
    raise WaitinfoError(f"{path}: written by another version of waitinfo; calibrate again")
