"""Tables and pictures of the experiments that are the paper's, which summary.py draws."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np

from tables import (
    ALLOW,
    COLUMNS,
    HEADS,
    Analysis,
    Output,
    Picture,
    all_points,
    by_name,
    by_seed,
    picture,
    place,
    score,
    table,
)
from waitinfo.analysis.analyses import ANALYSES
from waitinfo.evaluation.curves import Curve, value
from waitinfo.evaluation.points import Point, read_points, select

SEED_AL = range(3, 9)
CHANGES = {  # pictures of the ablations: what is changed in wait-info
    "parts": ("plain-self-attention", "plain-cross-attention", "plain-attentions",
              "source-info-one", "target-info-one"),
    "information": ("info-by-frequency", "info-by-norm"),
    "total-info": ("zeta-source", "zeta-target", "no-sum-loss", "lambda-1"),
}  # fmt: skip
TITLES = {
    "parts": "wait-info without parts of it",
    "information": "info by attention, frequency and norm",
    "total-info": "the total of info (ζ), and its weight (λ)",
}
TABLED = ("pos", "ratio", "early-stop", "attention", "difficulty", "significance")
ANALYSED = {  # pictures, and the analyses that they are of
    "de-en-analysis": {
        "pos-words": "pos", "pos-single-tokens": "pos", "ratio": "ratio",
        "early-stop": "early-stop", "attention": "attention", "difficulty": "difficulty",
        "significance": "significance", "case-staircase": "case",
    },
    "box-analysis": {
        "pos-words": "pos", "early-stop": "early-stop", "significance": "significance",
        "case-staircase": "case",
    },
    "policy": {"significance": "significance"},
}  # fmt: skip
PICTURED = {"policy": ("parts.de-en",)}  # of these analyses only
AUTHORS = {  # by test set: the picture, its title, and experiments of ours to be shown beside
    "test_2016_flickr": ("curves.svg", "Multi30k German → English",
                         ("multi30k-authors", "multi30k")),
    "europarl-178k.test": ("curves.europarl.svg", "Europarl German → English, 178,000 pairs",
                           ("europarl-178k",)),
}  # fmt: skip
SIDE_BY_SIDE = ("wait-info-allow", "multipath-allow", "as-authors-allow", "multipath-four-k-allow",
                "authors-wait-info", "authors-multipath", "authors-multipath-warm")  # fmt: skip
PAPER = {
    "multi30k-authors": "Multi30k German → English with the authors' settings",
    "europarl-178k": "Europarl German → English, 178,000 pairs, with the authors' settings",
    "de-en-systems": "German → English, newstest2015, 3,000 updates",
    "de-en-parts": "German → English, newstest2013, 3,000 updates",
    "de-en-continued": "German → English, newstest2015, the bundled model continued",
    "de-en-big": "German → English, newstest2015, Transformer-Big",
}


AS_AUTHORS = ("four-k", "multipath-four-k", "four-draws", "multipath-four-draws", "sum-by-batch",
              "as-authors")  # in the first picture  # fmt: skip
BOTH = ("wait-info", "multipath")  # in every picture


def multi30k_ablations(results: Path) -> dict[str, Output]:
    points = read_points([results / "multi30k-ablations" / "points.jsonl"])
    groups: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if not point["name"].endswith(ALLOW):
            groups[point["name"]][point["seed"]].append(point)
    whole, streamed = [], []
    for name, seeds in sorted(groups.items(), key=lambda item: place(item[0])):
        if name.startswith("full"):
            scores = [found["quality"]["BLEU"] for seed in sorted(seeds) for found in seeds[seed]]
            whole.append([name, *map(score, (*scores, float(np.mean(scores))))])
            continue
        curves = {seed: by_name(found)[name] for seed, found in seeds.items()}
        streamed += [[name, *cells] for cells in by_seed(curves, SEED_AL)]
    heads = ["system", *(f"seed {seed}" for seed in sorted(groups["full"])), "mean"]
    by_al = table(["AL", "seed", *map(str, SEED_AL)], streamed)
    made = f"{table(heads, whole)}\nBLEU at equal AL:\n\n{by_al}"
    return {"multi30k-ablations/table.md": made, **pictures_of_changes(by_name(points))}


def pictures_of_changes(curves: dict[str, Curve]) -> dict[str, Output]:
    """Wait-info with each change of a group, as far as they have been trained."""
    found: dict[str, Output] = {}
    for group, names in CHANGES.items():
        shown = [curves[name] for name in ("wait-info", *names, "multipath") if name in curves]
        title = f"Multi30k German → English, test 2016: {TITLES[group]}"
        if any(curve.name in names for curve in shown):
            found[f"multi30k-ablations/curves.{group}.svg"] = Picture(shown, title, bands=True)
    return found


def is_shown(curve: Curve) -> bool:
    """Curves of several latencies by a system's own policy."""
    other = re.search("-by-(wait-k|catch-up|threshold)|-at-rate-|-streamed-", curve.name)
    return len(curve.points) > 1 and not other


def paper_runs(results: Path) -> dict[str, Output]:
    """Experiments that exist only for the paper: every point, and curves without catch-up.

    Those with the authors' settings have two pictures: their way of training, and other switches.
    """
    found: dict[str, Output] = {}
    for name, title in PAPER.items():
        path = results / name / "points.jsonl"
        if not path.exists():
            continue
        curves = by_name(read_points([path]))
        found[f"{name}/table.md"] = all_points(curves)
        shown = {each: curve for each, curve in curves.items() if is_shown(curve)}
        switches = {each: shown[each] for each in shown if each not in AS_AUTHORS}
        if len(switches) < len(shown):
            found[f"{name}/curves.switches.svg"] = picture(switches, f"{title}: switches")
            shown = {each: shown[each] for each in (*BOTH, *AS_AUTHORS) if each in shown}
        found[f"{name}/curves.svg"] = picture(shown, title)
    return found


def authors_code(results: Path) -> dict[str, Output]:
    """The authors' code, and beside it ours with their settings; endings are allowed in both."""
    theirs = read_points([results / "authors-code" / "points.jsonl"])
    rows = [
        [p["set"], p["name"], f"{p['k']:g}", *(f"{value(p, axis):.2f}" for axis in COLUMNS[:5]),
         f"{100 * p['early_stop']:.1f}%"]
        for p in sorted(theirs, key=lambda p: (p["set"], p["name"], p["k"]))
    ]  # fmt: skip
    heads = ["set", "system", "dial", *HEADS[:5], "early stop"]
    found: dict[str, Output] = {"authors-code/table.md": table(heads, rows)}
    for set_name, (name, text, ours) in AUTHORS.items():
        path = next((p for p in (results / o / "points.jsonl" for o in ours) if p.exists()), None)
        if path:
            here = select(theirs, [f"set={set_name}"])
            curves = by_name([*here, *read_points([path])])
            shown = [curves[name] for name in SIDE_BY_SIDE if name in curves]
            title = f"{text}: the authors' code and ours"
            found[f"authors-code/{name}"] = Picture(shown, title)
    return found


def analyses(results: Path) -> dict[str, Output]:
    """Tables of every analysis, and pictures: of each direction, if there are two."""
    found: dict[str, Output] = {}
    for folder, shown in ANALYSED.items():
        path = results / folder / "measurements.json"
        measured = json.loads(path.read_text("utf-8")) if path.exists() else {}
        parts = []
        for name, numbers in measured.items():
            tabled = [what for what in TABLED if what in numbers]
            if tabled:
                count = numbers["facts"]["test"]["sentences"]
                parts.append(f"# {name}\n\n{count:,} sentences.\n")
            for what in tabled:
                parts.append(f"## {ANALYSES[what].title}\n")
                made = ANALYSES[what].tables(numbers[what])
                parts += [f"{each.title}:\n\n{table(each.heads, each.rows)}" for each in made]
            ending = "" if len(measured) == 1 or name == "case" else f".{name}"
            found |= {
                f"{folder}/{picture}{ending}.svg": Analysis(what, picture, numbers[what])
                for picture, what in shown.items()
                if what in numbers and name in PICTURED.get(folder, measured)
            }
        if parts:
            found[f"{folder}/table.md"] = "\n".join(parts)
    return found


EXPERIMENTS = (multi30k_ablations, paper_runs, authors_code, analyses)
