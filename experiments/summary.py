"""Draw the tables and pictures in results/ from the points there: `python experiments/summary.py`.

`python experiments/summary.py MINE` does so in another folder, as of `make.py --results MINE`:
every points.jsonl there becomes a table and a picture, whatever else is missing.

Each points.jsonl becomes a table.md in the form of the paper's appendix and a curves.svg, one of
each per test set for German-English. Points of several seeds are averaged. The early-stop rate is
that of the same model at the same dial where it may end before its source does (curves whose name
ends in -allow). The ablations' table has BLEU at equal latency, that of the runs with the norm
before the sublayers and that of the ablations on Multi30k have a row for every seed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from waitinfo.evaluation.conditions import ALL
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.points import Point, read_points, select

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "paper")]
import drawn  # noqa: E402

import gains  # noqa: E402
from tables import (  # noqa: E402
    Output,
    Picture,
    all_points,
    by_name,
    picture,
    place,
    seed_cell,
    table,
)

RESULTS = HERE.parent / "results"
CATCH_UP = "-catch-up"
SEED_COLUMNS = ("k", "paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "early_stop")
ABLATION_AL, ABLATION_DAL = range(2, 8), range(4, 10)  # latencies that all of them have
BOX_COLUMNS = ("BLEU", "chrF", "paper.AL")
SETS = ("newstest2015", "europarl.test", "europarl.test-german")
CONDITION_HEADS = ("model", "set", "condition", "K", "BLEU", "of clean", "of sentences",
                   "words alone", "of clean", "chrF", "LAAL", "length",
                   "repeated 4-grams")  # fmt: skip
LAG_HEADS = ("model", "set", "lag asked for", "sentences: LAAL", "stream: LongLAAL", "within 10%",
             "stream: StreamLAAL", "BLEU of the stream",
             "BLEU of a fixed dial at its LongLAAL")  # fmt: skip
WINDOWS = ("32", "48", "64", "96", "128")  # source tokens
MARGIN = 0.1  # how far a held lag may be from its target


# The experiments


def multi30k(results: Path) -> dict[str, Output]:
    curves = by_name(read_points([results / "multi30k" / "points.jsonl"]))
    measured = json.loads((results / "multi30k" / "measurements.json").read_text("utf-8"))
    cost = measured["cost"]
    rows = [
        [name, f"{found['seconds_per_1000_updates']:.1f}", f"{found['relative']:.2f}"]
        for name, found in cost["systems"].items()
    ]
    title = f"\nTraining cost, {cost['device']} (`benchmarks/training_cost.py`):\n\n"
    costs = table(["system", "seconds per 1,000 updates", "relative to wait-k"], rows)
    return {
        "multi30k/table.md": all_points(curves) + title + costs,
        "multi30k/curves.svg": picture(curves, "Multi30k German → English, test 2016"),
    }


def de_en(results: Path) -> dict[str, Output]:
    """The German part was scored with the packed models of wait-info only."""
    points = read_points([results / "de-en" / "points.jsonl"])
    packed = read_points([results / "de-en-packed" / "points.jsonl"])
    found: dict[str, Output] = {}
    for name in SETS:
        here = select(points, [f"set={name}"])
        if name == "europarl.test-german":
            here += select(packed, [f"set={name}"])
        curves = by_name(here)
        found[f"de-en/table.{name}.md"] = all_points(curves)
        found[f"de-en/curves.{name}.svg"] = picture(curves, f"German → English, {name}")
    return found


def ablations(results: Path) -> dict[str, Output]:
    """BLEU at equal AL, and its mean distance to multipath's there and at equal DAL."""
    points = select(read_points([results / "de-en-ablations" / "points.jsonl"]), ["seed=1"])
    by_al, by_dal = (
        {name: [curve.at(x) for x in at] for name, curve in by_name(points, axis).items()}
        for axis, at in (("paper.AL", ABLATION_AL), ("paper.DAL", ABLATION_DAL))
    )
    rows = []
    for name, found in sorted(by_al.items(), key=lambda item: place(item[0])):
        gaps = (
            f"{np.subtract(scores[name], scores['multipath']).mean():+.2f}"
            for scores in (by_al, by_dal)
        )
        rows.append([name, *(f"{score:.2f}" for score in found), *gaps])
    heads = ["AL", *map(str, ABLATION_AL), "over AL", "over DAL"]
    return {"de-en-ablations/table.md": table(heads, rows)}


def norm_before(results: Path) -> dict[str, Output]:
    points = read_points([results / "multi30k-norm-before" / "points.jsonl"])
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in points:
        groups[point["name"], point["seed"]].append(point)
    rows = [
        [name, str(seed), *(seed_cell(point, axis) for axis in SEED_COLUMNS)]
        for name, seed in sorted(groups)
        for point in sorted(groups[name, seed], key=lambda p: p["paper"]["AL"])
    ]
    heads = ["system", "seed", *(axis.removeprefix("paper.") for axis in SEED_COLUMNS)]
    curves = by_name(points)
    shown = [curves[name] for name in ("wait-info", "full", "wait-k", "multipath")]
    title = "Multi30k German → English, test 2016, norm before the sublayers"
    return {
        "multi30k-norm-before/table.md": table(heads, rows),
        "multi30k-norm-before/curves.svg": Picture(shown, title, bands=True),
    }


def en_vi(results: Path) -> dict[str, Output]:
    """Full-sentence models, of which one alone learned to translate, are in the table only."""
    curves = by_name(read_points([results / "en-vi" / "points.jsonl"]))
    systems = {name: curve for name, curve in curves.items() if CATCH_UP not in name}
    others = {name: curve for name, curve in curves.items() if CATCH_UP in name}
    title = "\nThe same weights decoded by wait-k with catch-up:\n\n"
    shown = {name: curve for name, curve in systems.items() if not name.startswith("full")}
    return {
        "en-vi/table.md": all_points(systems) + title + all_points(others),
        "en-vi/curves.svg": picture(shown, "English → Vietnamese, TED tst2013"),
    }


def ingredients(results: Path) -> dict[str, Output]:
    """What each ingredient of the students gives, once it has been measured."""
    path = results / "de-en-ingredients" / "points.jsonl"
    if not path.exists():
        return {}
    points = read_points([path])
    parts = (f"{title}\n\n{table(heads, rows)}" for title, heads, rows in gains.tables(points))
    here = select(points, [f"set={gains.TEST}"])
    shown = [{**p, "name": gains.SYSTEMS[p["name"]]} for p in here if p["name"] in gains.SYSTEMS]
    title = f"German → English, {gains.TEST}, the same text and 3,000 updates"
    return {
        "de-en-ingredients/table.md": "\n".join(parts),
        "de-en-ingredients/curves.svg": picture(by_name(shown), title),
    }


def word_lag(point: Point) -> float:
    """LAAL in words; of documents that of the whole stream."""
    return (point.get("documents") or {}).get("LongLAAL", point["word"]["LAAL"])


def boxed(folder: Path) -> dict[str, Output]:
    """Every point of each model in the box, and curves of written and spoken text."""
    path, found = folder / "points.jsonl", dict[str, Output]()
    points = read_points([path]) if path.exists() else []
    for model in sorted({point["run"] for point in points}):
        # Each test set is a curve; timed points and those in float32 are on the card only.
        here = [{**p, "name": p["set"]} for p in points if p["run"] == p["name"] == model]
        here = sorted((p for p in here if not p.get("timed")), key=lambda p: (p["name"], p["k"]))
        rows = [
            [p["name"], f"{p['k']:g}", *(seed_cell(p, axis) for axis in BOX_COLUMNS),
             f"{word_lag(p):.2f}", f"{p['length_ratio']:.2f}"]
            for p in here
        ]  # fmt: skip
        heads = ["set", "K", "BLEU", "chrF", "AL", "LAAL (words)", "length / reference"]
        found[f"table.{model}.md"] = table(heads, rows)
        sentences = [p for p in here if not re.search("-(documents|errors)", p["name"])]
        title = f"{model}, written and in lower case without punctuation"
        found[f"curves.{model}.svg"] = picture(by_name(sentences), title)
    return found


def box(results: Path) -> dict[str, Output]:
    return {f"box/{name}": made for name, made in boxed(results / "box").items()}


def before_and_after(results: Path) -> dict[str, Output]:
    """The bundled model of release 0.1, and the one that took its place."""
    curves = []
    for run, folder, name in (("de-en", "box", "bundled now"),
                              ("wait-info-small", "de-en", "bundled in release 0.1")):  # fmt: skip
        points = read_points([results / folder / "points.jsonl"])
        here = select(points, ["set=newstest2015", f"run={run}", f"name={run}"])
        curves += by_name({**point, "name": name} for point in here).values()
    title = "German → English, newstest2015: the model in the box"
    return {"de-en/curves.before-and-after.svg": Picture(curves, title)}


# Spoken text


def by_condition(points: list[Point]) -> dict[tuple[str, str], dict[str, list[Point]]]:
    """Points by run, by set, and by the condition that the name of the set ends in."""
    found: dict[tuple[str, str], dict[str, list[Point]]] = {}
    for point in points:
        ends = sorted((c for c in ALL if point["set"].endswith(f"-{c}")), key=len)
        condition = ends[-1] if ends else "clean"
        name = point["set"].removesuffix(f"-{condition}")
        found.setdefault((point["run"], name), {}).setdefault(condition, []).append(point)
    return found


def of(score: float | None, whole: float | None) -> str:
    return f"{100 * score / whole:.0f}%" if score is not None and whole else ""


def condition_rows(points: list[Point]) -> Iterator[list[str]]:
    """BLEU under each condition, to that of clean text, and of documents to that of sentences.

    Each with the same dial.
    """
    for (run, name), found in by_condition(points).items():
        scores, alone = (
            {(c, p["k"]): p["quality"].get(metric) for c, here in found.items() for p in here}
            for metric in ("BLEU", "BLEU_words")
        )
        for condition in (c for c in ALL if c in found):
            for point in found[condition]:
                quality, words, k = point["quality"], point["word"], point["k"]
                ends = condition.removeprefix("documents").removeprefix("-") or "clean"
                repeats = point.get("documents", {}).get("repeated_4grams")
                yield [
                    run, name, condition, f"{k:g}",
                    f"{quality['BLEU']:.2f} ± {quality['BLEU_interval']:.2f}",
                    of(quality["BLEU"], scores.get(("clean", k))),
                    of(quality["BLEU"], scores.get((ends, k))) if ends != condition else "",
                    f"{quality['BLEU_words']:.2f}" if "BLEU_words" in quality else "",
                    of(quality.get("BLEU_words"), alone.get(("clean", k))),
                    f"{quality['chrF']:.2f}", f"{words['LAAL']:.2f}",
                    f"{point['length_ratio']:.2f}",
                    "" if repeats is None else f"{100 * repeats:.1f}%",
                ]  # fmt: skip


def off(lag: float | None, target: float) -> str:
    return "" if lag is None else f"{lag:.2f} ({100 * (lag / target - 1):+.0f}%)"


def lag_rows(points: list[Point]) -> Iterator[list[str]]:
    """Lags asked for and achieved; BLEU beside that of a fixed dial at the same lag."""
    for (run, name), found in by_condition(points).items():
        streams = found.get("documents", [])
        curves = make_curves([p for p in streams if p["dial"] != "lag"], "word.LAAL", "BLEU")
        single = {p["k"]: p["word"]["LAAL"] for p in found.get("clean", []) if p["dial"] == "lag"}
        for point in sorted((p for p in streams if p["dial"] == "lag"), key=lambda p: p["k"]):
            target, held, quality = point["k"], point["documents"], point["quality"]
            fixed = curves[0].at(held["LongLAAL"]) if curves else None
            within = abs(held["LongLAAL"] / target - 1) <= MARGIN
            yield [
                run, name, f"{target:g}", off(single.get(target), target),
                off(held["LongLAAL"], target), "yes" if within else "no",
                off(held["StreamLAAL"], target),
                f"{quality['BLEU']:.2f} ± {quality['BLEU_interval']:.2f}",
                "" if fixed is None else f"{fixed:.2f} ({quality['BLEU'] - fixed:+.2f})",
            ]  # fmt: skip


def conditions(results: Path) -> dict[str, str]:
    points = read_points([results / "conditions" / "points.jsonl"])
    return {"conditions/table.md": table(CONDITION_HEADS, condition_rows(points))}


def students(results: Path) -> dict[str, str]:
    """The models in the box before and after they went on, on the development sets."""
    points = read_points([results / "students" / "points.jsonl"])
    return {"students/table.md": table(CONDITION_HEADS, condition_rows(points))}


def windows(results: Path) -> dict[str, str]:
    """BLEU and lag by the size of the window, for streams without sentence ends."""
    points = read_points([results / "windows" / "points.jsonl"])
    rows = []
    for (run, name), found in by_condition(points).items():
        sizes = {p["name"]: p for p in found["documents-lower"]}
        cells = (
            f"{sizes[n]['quality']['BLEU']:.2f} at {sizes[n]['documents']['LongLAAL']:.2f}"
            if n in sizes else "" for n in WINDOWS
        )  # fmt: skip
        rows.append([run, name, *cells])
    return {"windows/table.md": table(["model", "set", *WINDOWS], rows)}


def held_lags(results: Path) -> dict[str, str]:
    points = read_points([results / "lag" / "points.jsonl"])
    return {"lag/table.md": table(LAG_HEADS, lag_rows(points))}


def outputs(results: Path = RESULTS) -> dict[str, Output]:
    """Every table and picture by its path under results/."""
    found: dict[str, Output] = {}
    for experiment in (multi30k, norm_before, de_en, ablations, en_vi, ingredients, conditions,
                       students, windows, held_lags, box, before_and_after,
                       *drawn.EXPERIMENTS):  # fmt: skip
        found |= experiment(results)
    return found


def own_outputs(results: Path) -> dict[str, Output]:
    """Every point and curve of each experiment that a folder has, and its analyses."""
    found: dict[str, Output] = {}
    for path in sorted(results.glob("*/points.jsonl")):
        points = read_points([path])
        sets = sorted({point["set"] for point in points})
        for name in sets:
            ending = f".{name}" if len(sets) > 1 else ""
            curves = by_name(select(points, [f"set={name}"]))
            place = f"{path.parent.name}/{{}}{ending}"
            found[f"{place.format('table')}.md"] = all_points(curves)
            shown = {each: curve for each, curve in curves.items() if drawn.is_shown(curve)}
            if shown:
                title = f"{path.parent.name}, {name}"
                found[f"{place.format('curves')}.svg"] = picture(shown, title)
    return found | drawn.analyses(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    results = parser.parse_args().results.resolve()
    if not results.is_dir():
        sys.exit(f"no folder {results}: make.py --results makes one")
    for name, output in (outputs() if results == RESULTS else own_outputs(results)).items():
        if isinstance(output, str):
            (results / name).write_text(output, "utf-8")
        else:
            output.draw(results / name)
        print(name)


if __name__ == "__main__":
    main()
