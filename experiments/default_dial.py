"""Which dial the bundled models should have by default: `python -m experiments.default_dial`.

For each dial value: how many of the everyday sentences are right, as written and as spoken, and the
lag that it has on the development set (the model's calibration). Listeners are taken to accept a
lag of `--accept` words; interpreters are two to three seconds behind, which is six words or seven
of a calm speaker. The choice is the smallest dial from which no larger one, within that lag, is
better by more than a point in the mean of both directions. Writes a page with the figures.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from experiments.everyday import judged, read_set, summary
from waitinfo.errors import WaitinfoError
from waitinfo.trained.calibration import interpolate, read_calibration
from waitinfo.trained.folder import bundled_models
from waitinfo.trained.saving import load_model
from waitinfo.translation.decoding import TranslationOptions

DIALS = (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0)
ENOUGH = 1.0  # points of sentences that are right: less is not worth more lag


@dataclass(frozen=True)
class Found:
    """What one dial value of a model gives."""

    k: float
    lag: float
    written: float  # % right
    spoken: float

    @property
    def right(self) -> float:
        return (self.written + self.spoken) / 2


def measure(folder: Path) -> list[Found]:
    loaded = load_model(folder, "cpu", "auto")
    calibration = read_calibration(folder, loaded.system)
    items = read_set(loaded.languages.source or "", loaded.languages.target or "")
    found = []
    for k in DIALS:
        options = TranslationOptions(k=k)
        written, spoken = (
            summary(judged(loaded, items, spoken, options))[1] for spoken in (False, True)
        )
        lag = interpolate(k, calibration.dials, calibration.lags)
        found.append(Found(k, lag, written, spoken))
    return found


def choose(models: dict[str, list[Found]], accepted: float) -> float:
    """The smallest dial that larger ones within the accepted lag hardly improve on."""
    rows = [
        (points[0].k, sum(p.right for p in points) / len(points))
        for points in zip(*models.values(), strict=True)
        if max(point.lag for point in points) <= accepted
    ]
    if not rows:
        raise WaitinfoError(f"--accept {accepted:g}: every dial has a larger lag")
    best = max(right for _, right in rows)
    return next(k for k, right in rows if right >= best - ENOUGH)


def page(models: dict[str, list[Found]], accepted: float, chosen: float) -> str:
    lines = [
        "# The default dial",
        "",
        "Everyday sentences that are right, and the lag on newstest2013 (LAAL in words), by",
        f"`python -m experiments.default_dial --accept {accepted:g}`. Within a lag of {accepted:g} "
        f"words, no larger dial than",
        f"**{chosen:g}** is better by more than {ENOUGH:g} point.",
    ]
    for name, points in models.items():
        lines += ["", f"## {name}", "", "| dial | lag, words | right, % | as spoken, % |"]
        lines += ["|---|---|---|---|"]
        lines += [f"| {p.k:g} | {p.lag:.2f} | {p.written:.1f} | {p.spoken:.1f} |" for p in points]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accept", type=float, default=6.5, help="lag in words")
    parser.add_argument("--out", type=Path, default=Path("results/models/dial.md"))
    given = parser.parse_args()
    models = {name: measure(model.folder) for name, model in bundled_models().items()}
    chosen = choose(models, given.accept)
    given.out.write_text(page(models, given.accept, chosen), "utf-8")
    print(f"{chosen:g}; written: {given.out}")


if __name__ == "__main__":
    main()
