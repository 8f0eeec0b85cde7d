"""Tables and pictures of experiments that train: systems, ablations, the authors' settings."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from experiments.pages.tables import (
    ALLOW,
    COLUMNS,
    HEADS,
    Outputs,
    Panels,
    Picture,
    all_points,
    by_name,
    by_seed,
    cell,
    in_order,
    is_own,
    numbers_of,
    picture,
    points_of,
    score,
    table,
)
from waitinfo.evaluation.curves import Curve, value
from waitinfo.evaluation.points import Point, select

CATCH_UP = "-catch-up"
GERMAN = "europarl.test-german"
SETS = ("newstest2015", "europarl.test", GERMAN)
SEED_COLUMNS = ("k", "paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "early_stop")
ABLATION_AL, ABLATION_DAL = range(2, 8), range(4, 10)  # latencies that all of them have
SEED_AL = range(3, 9)
CHANGES = {  # pictures of the ablations on captions: their titles, and what is changed in wait-info
    "parts": ("wait-info without parts of it", (
        "plain-self-attention", "plain-cross-attention", "plain-attentions", "source-info-one",
        "target-info-one")),
    "information": ("info by attention, frequency and norm", (
        "info-by-frequency", "info-by-norm")),
    "total-info": ("the total of info (ζ), and its weight (λ)", (
        "zeta-source", "zeta-target", "no-sum-loss", "lambda-1")),
}  # fmt: skip
WITH_ALL_POINTS = {  # experiments whose page has every point and one picture
    "systems/de-en-systems": "German → English, newstest2015, 3,000 updates",
    "systems/de-en-big": "German → English, newstest2015, Transformer-Big",
    "ablations/de-en-parts": "German → English, newstest2013, 3,000 updates",
    "ablations/de-en-continued": "German → English, newstest2015, the bundled model continued",
    "paper/multi30k-authors": "Multi30k German → English with the authors' settings",
    "paper/europarl-178k": "Europarl German → English, 178,000 pairs, with the authors' settings",
}
PUBLISHED = {
    "en-pt": "English → Portuguese, Firefox's student",
    "pt-en": "Portuguese → English, Firefox's student",
    "zh-en": "Chinese → English, Argos' model",
}
AS_AUTHORS = ("wait-info", "multipath", "four-k", "multipath-four-k", "four-draws",
              "multipath-four-draws", "sum-by-batch", "as-authors")  # in the picture  # fmt: skip
AUTHORS = {  # by test set: the title, and the experiment shown beside
    "test_2016_flickr": ("Multi30k, test 2016", "multi30k-authors"),
    "europarl-178k.test": ("Europarl, 178,000 pairs", "europarl-178k"),
}
SIDE_BY_SIDE = ("wait-info-allow", "multipath-allow", "as-authors-allow", "multipath-four-k-allow",
                "authors-wait-info", "authors-multipath", "authors-multipath-warm")  # fmt: skip


def with_all_points(results: Path) -> Outputs:
    """Every point, and curves without catch-up, of the experiments that have been made."""
    found: Outputs = {}
    for name, title in WITH_ALL_POINTS.items():
        _, short = name.split("/")
        curves = by_name(points_of(results, short))
        shown = {each: curve for each, curve in curves.items() if is_own(curve)}
        if name.startswith("paper/"):
            shown = {each: shown[each] for each in AS_AUTHORS if each in shown}
        if curves:
            found[f"{name}.md#{short}"] = all_points(curves)
            found[f"{name}.svg"] = picture(shown, title)
    return found


def imported(results: Path) -> Outputs:
    """Published models by pair and part of the text, as far as they have been scored."""
    found: Outputs = {}
    points = points_of(results, "imported")
    for part in ("dev", "test"):
        panels = []
        for pair, title in PUBLISHED.items():
            here = [p for p in points if p["run"] == pair and p["set"].endswith(part)]
            if curves := by_name(here):
                found[f"models/imported.md#{pair}.{part}"] = all_points(curves)
                panels.append(picture(curves, title))
        if panels:
            found[f"models/imported.{part}.svg"] = Panels(panels)
    return found


def multi30k(results: Path) -> Outputs:
    curves = by_name(points_of(results, "multi30k"))
    cost = numbers_of(results, "measurements")["systems/cost"]
    rows = [
        [name, f"{found['seconds_per_1000_updates']:.1f}", f"{found['relative']:.2f}"]
        for name, found in cost["systems"].items()
    ]
    title = f"Training cost, {cost['device']} (`benchmarks/training_cost.py`):\n\n"
    costs = table(["system", "seconds per 1,000 updates", "relative to wait-k"], rows)
    return {
        "systems/multi30k.md#multi30k": all_points(curves),
        "systems/multi30k.md#cost": title + costs,
        "systems/multi30k.svg": picture(curves, "Multi30k German → English, test 2016"),
    }


def norm_before(results: Path) -> Outputs:
    """With the norm before the sublayers: every point of every seed."""
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in points_of(results, "multi30k-norm-before"):
        groups[point["name"], point["seed"]].append(point)
    rows = [
        [name, str(seed), *(cell(point, axis) for axis in SEED_COLUMNS)]
        for name, seed in sorted(groups)
        for point in sorted(groups[name, seed], key=lambda p: p["paper"]["AL"])
    ]
    heads = ["system", "seed", *(axis.removeprefix("paper.") for axis in SEED_COLUMNS)]
    return {"systems/multi30k.md#multi30k-norm-before": table(heads, rows)}


def de_en(results: Path) -> Outputs:
    """The German part was scored with the packed models of wait-info only."""
    points, packed = (points_of(results, name) for name in ("de-en", "de-en-packed"))
    found: Outputs = {}
    for name in SETS:
        here = select(points, [f"set={name}"])
        here += select(packed, [f"set={name}"]) if name == GERMAN else []
        curves = by_name(here)
        found[f"systems/de-en.md#{name}"] = all_points(curves)
        if name != "europarl.test":  # a part of it is in other languages
            found[f"systems/de-en.{name}.svg"] = picture(curves, f"German → English, {name}")
    return found


def en_vi(results: Path) -> Outputs:
    """Full-sentence models are in the table only: just one of them learned to translate."""
    curves = by_name(points_of(results, "en-vi"))
    systems = {name: curve for name, curve in curves.items() if CATCH_UP not in name}
    others = {name: curve for name, curve in curves.items() if CATCH_UP in name}
    title = "\nThe same weights decoded by wait-k with catch-up:\n\n"
    shown = {name: curve for name, curve in systems.items() if not name.startswith("full")}
    return {
        "systems/en-vi.md#en-vi": all_points(systems) + title + all_points(others),
        "systems/en-vi.svg": picture(shown, "English → Vietnamese, TED tst2013"),
    }


def de_en_ablations(results: Path) -> Outputs:
    """BLEU at equal AL, and its mean distance to multipath's there and at equal DAL."""
    points = select(points_of(results, "de-en-ablations"), ["seed=1"])
    by_al, by_dal = (
        {name: [curve.at(x) for x in at] for name, curve in by_name(points, axis).items()}
        for axis, at in (("paper.AL", ABLATION_AL), ("paper.DAL", ABLATION_DAL))
    )
    rows = []
    for name, found in sorted(by_al.items(), key=lambda item: in_order(item[0])):
        gaps = (
            f"{np.subtract(scores[name], scores['multipath']).mean():+.2f}"
            for scores in (by_al, by_dal)
        )
        rows.append([name, *(f"{score:.2f}" for score in found), *gaps])
    heads = ["AL", *map(str, ABLATION_AL), "over AL", "over DAL"]
    return {"ablations/de-en-ablations.md#de-en-ablations": table(heads, rows)}


def multi30k_ablations(results: Path) -> Outputs:
    points = points_of(results, "multi30k-ablations")
    groups: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        if not point["name"].endswith(ALLOW):
            groups[point["name"]][point["seed"]].append(point)
    whole, streamed = [], []
    for name, seeds in sorted(groups.items(), key=lambda item: in_order(item[0])):
        if name.startswith("full"):
            scores = [found["quality"]["BLEU"] for seed in sorted(seeds) for found in seeds[seed]]
            whole.append([name, *map(score, (*scores, float(np.mean(scores))))])
            continue
        curves = {seed: by_name(found)[name] for seed, found in seeds.items()}
        streamed += [[name, *cells] for cells in by_seed(curves, SEED_AL)]
    heads = ["system", *(f"seed {seed}" for seed in sorted(groups["full"])), "mean"]
    by_al = table(["AL", "seed", *map(str, SEED_AL)], streamed)
    made = f"{table(heads, whole)}\nBLEU at equal AL:\n\n{by_al}"
    page = "ablations/multi30k-ablations"
    return {f"{page}.md#multi30k-ablations": made, **pictures_of_changes(page, by_name(points))}


def pictures_of_changes(page: str, curves: dict[str, Curve]) -> Outputs:
    """Wait-info with each change of a group, as far as they have been trained."""
    found: Outputs = {}
    for group, (what, names) in CHANGES.items():
        shown = [curves[name] for name in ("wait-info", *names, "multipath") if name in curves]
        title = f"Multi30k German → English, test 2016: {what}"
        if any(curve.name in names for curve in shown):
            found[f"{page}.{group}.svg"] = Picture(shown, title, bands=True)
    return found


def authors_code(results: Path) -> Outputs:
    """The authors' code, and beside it ours with their settings; endings are allowed in both."""
    theirs = points_of(results, "authors-code")
    rows = [
        [p["set"], p["name"], f"{p['k']:g}", *(f"{value(p, axis):.2f}" for axis in COLUMNS[:5]),
         f"{100 * p['early_stop']:.1f}%"]
        for p in sorted(theirs, key=lambda p: (p["set"], p["name"], p["k"]))
    ]  # fmt: skip
    heads = ["set", "system", "dial", *HEADS[:5], "early stop"]
    found: Outputs = {"paper/authors-code.md#authors-code": table(heads, rows)}
    panels = []
    for set_name, (title, ours) in AUTHORS.items():
        here = select(theirs, [f"set={set_name}"])
        curves = by_name([*here, *points_of(results, ours)])
        shown = [curves[name] for name in SIDE_BY_SIDE if name in curves]
        panels.append(Picture(shown, f"{title}: the authors' code and ours"))
    return found | {"paper/authors-code.svg": Panels(panels)}


MAKE = (multi30k, norm_before, de_en, en_vi, de_en_ablations, multi30k_ablations, authors_code,
        with_all_points, imported)  # fmt: skip
