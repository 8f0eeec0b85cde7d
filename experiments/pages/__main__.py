"""Draw the tables and pictures in results/ from the points there: `python -m experiments.pages`.

`python -m experiments.pages MINE` does so in another folder, as of `--results MINE`: all points
there become tables and pictures, whatever else is missing.

Points of several seeds are averaged. The early-stop rate is that of the same model at the same dial
where it may end before its source does (curves whose name ends in -allow).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.pages import analyses, bundled, ingredients, over_multipath, systems
from experiments.pages.tables import (
    RESULTS,
    Outputs,
    all_points,
    by_name,
    is_own,
    picture,
    place,
    write,
)
from waitinfo.evaluation.points import read_points, select

MAKE = (*systems.MAKE, *bundled.MAKE, *ingredients.MAKE, *analyses.MAKE,
        *over_multipath.MAKE)  # fmt: skip


def outputs(results: Path = RESULTS) -> Outputs:
    """Every table and picture by its place under results/."""
    found: Outputs = {}
    for make in MAKE:
        found |= make(results)
    return found


def own_outputs(results: Path) -> Outputs:
    """Every point and curve of each experiment that a folder has, and its analyses."""
    found: Outputs = {}
    for path in sorted(results.glob("*/*.jsonl")):
        points, name = read_points([path]), place(path)
        sets = sorted({point["set"] for point in points})
        for set_name in sets:
            ending = f".{set_name}" if len(sets) > 1 else ""
            curves = by_name(select(points, [f"set={set_name}"]))
            found[f"{name}.md#{path.stem}{ending}"] = all_points(curves)
            if shown := {each: curve for each, curve in curves.items() if is_own(curve)}:
                found[f"{name}{ending}.svg"] = picture(shown, f"{path.stem}, {set_name}")
    return found | analyses.analyses(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    results = parser.parse_args().results.resolve()
    if not results.is_dir():
        sys.exit(f"no folder {results}: --results of experiments.run makes one")
    made = outputs() if results == RESULTS else own_outputs(results)
    write(made, results)
    print("\n".join(made))


if __name__ == "__main__":
    main()
