"""Draw the tables and pictures in results/ from the points there: `python experiments/summary.py`.

Each points.jsonl becomes a table.md in the form of the paper's appendix and a curves.svg, one of
each per test set for German-English. Points of several seeds are averaged. The early-stop rate is
that of the same model at the same dial where it may end before its source does (curves whose name
ends in -allow). The ablations' table has BLEU at equal latency, that of the runs with the norm
before the sublayers and that of the ablations on Multi30k have a row for every seed.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import gains
from waitinfo.analysis.pictures import figures
from waitinfo.analysis.run import ANALYSES
from waitinfo.evaluation.conditions import ALL
from waitinfo.evaluation.curves import Curve, CurvePoint, make_curves, value
from waitinfo.evaluation.plot import draw, save_figure
from waitinfo.evaluation.points import Point, read_points, select

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLUMNS = ("paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "word.AL", "word.LAAL")
HEADS = ("CW", "AP", "AL", "DAL", "BLEU", "AL (words)", "LAAL (words)", "early stop, if allowed")
ORDER = ("full", "full-beam5", "wait-k", "multipath", "adaptive-wait-k", "moe-wait-k", "mma", "gma",
         "gsimt", "wait-info")  # fmt: skip
ALLOW, CATCH_UP = "-allow", "-catch-up"
SEED_COLUMNS = ("k", "paper.CW", "paper.AP", "paper.AL", "paper.DAL", "BLEU", "early_stop")
ABLATION_AL, ABLATION_DAL = range(2, 8), range(4, 10)  # latencies that all of them have
SEED_AL = range(3, 9)
BOX_COLUMNS = ("BLEU", "chrF", "paper.AL")
SHOWN = {
    "pos": ("pos-words", "pos-single-tokens"), "ratio": ("ratio",), "early-stop": ("early-stop",),
    "attention": ("attention",), "difficulty": ("difficulty",), "significance": ("significance",),
}  # fmt: skip
PAPER = {
    "multi30k-authors": "Multi30k German → English with the authors' settings",
    "europarl-178k": "Europarl German → English, 178,000 pairs, with the authors' settings",
    "de-en-systems": "German → English, newstest2015, 3,000 updates",
    "de-en-parts": "German → English, newstest2013, 3,000 updates",
    "de-en-big": "German → English, newstest2015, Transformer-Big",
}
SETS = ("newstest2015", "europarl.test", "europarl.test-german")
CONDITION_HEADS = ("model", "set", "condition", "K", "BLEU", "of clean", "of sentences", "chrF",
                   "LAAL", "length", "repeated 4-grams")  # fmt: skip
LAG_HEADS = ("model", "set", "lag asked for", "sentences: LAAL", "stream: LongLAAL", "within 10%",
             "stream: StreamLAAL", "BLEU of the stream",
             "BLEU of a fixed dial at its LongLAAL")  # fmt: skip
MARGIN = 0.1  # how far a held lag may be from its target


@dataclass(frozen=True)
class Picture:
    """Curves of BLEU against Average Lagging."""

    curves: list[Curve]
    title: str
    bands: bool = False  # the spread of several seeds

    def draw(self, out: Path) -> None:
        draw(self.curves, "paper.AL", "BLEU", out, self.title, labels=False, bands=self.bands)


@dataclass(frozen=True)
class Analysis:
    """A picture of `waitinfo analyse`, drawn from its numbers."""

    what: str
    name: str
    numbers: dict[str, Any]

    def draw(self, out: Path) -> None:
        for name, figure in figures(self.what, self.numbers):
            if name == self.name:
                save_figure(figure, out)


Output = str | Picture | Analysis


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [row(heads), "|---" * len(heads) + "|", *map(row, rows)]
    return "\n".join(lines) + "\n"


def place(name: str) -> tuple[int, str]:
    """Systems in the paper's order, then others by name."""
    return (ORDER.index(name) if name in ORDER else len(ORDER)), name


def by_name(points: Iterable[Point], x: str = "paper.AL") -> dict[str, Curve]:
    return {curve.name: curve for curve in make_curves(points, x, "BLEU")}


# Every point of a test set


def mean(point: CurvePoint, axis: str) -> float:
    values = [found for p in point.points if (found := value(p, axis)) is not None]
    return sum(values) / len(values)


def setting(point: CurvePoint) -> str:
    """What the model was trained and decoded with, except for how it may end."""
    settings = point.points[0]["settings"]
    return json.dumps([settings["options"], settings["k"]])


def all_points(curves: dict[str, Curve]) -> str:
    rows = []
    for name in sorted((n for n in curves if not n.endswith(ALLOW)), key=place):
        ends = {setting(p): p for p in curves.get(name + ALLOW, Curve("", [])).points}
        for point in curves[name].points:
            allowed = ends.get(setting(point))
            cells = [f"{mean(point, column):.2f}" for column in COLUMNS]
            early = "" if allowed is None else f"{100 * mean(allowed, 'early_stop'):.1f}%"
            rows.append([name, point.label, *cells, early, str(len(point.points))])
    return table(["system", "dial", *HEADS, "seeds"], rows)


def picture(curves: dict[str, Curve], title: str) -> Picture:
    shown = [n for n in sorted(curves, key=place) if not n.endswith(ALLOW) and n != "full-beam5"]
    shown.sort(key=lambda name: name != "wait-info")  # the first colour and mark
    return Picture([curves[name] for name in shown], title)


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
    """The full-sentence model did not learn to translate: it is in the table only."""
    curves = by_name(read_points([results / "en-vi" / "points.jsonl"]))
    systems = {name: curve for name, curve in curves.items() if CATCH_UP not in name}
    others = {name: curve for name, curve in curves.items() if CATCH_UP in name}
    title = "\nThe same weights decoded by wait-k with catch-up:\n\n"
    shown = {name: curve for name, curve in systems.items() if not name.startswith("full")}
    return {
        "en-vi/table.md": all_points(systems) + title + all_points(others),
        "en-vi/curves.svg": picture(shown, "English → Vietnamese, TED tst2013"),
    }


def score(value: float | None) -> str:
    """A cell of a table, empty where the curve does not reach."""
    return "" if value is None else f"{value:.2f}"


def by_seed(seeds: dict[int, Curve], at: Iterable[int]) -> list[list[str]]:
    """BLEU at each latency: a row for every seed, and one of means where all seeds reach."""
    found = {seed: [curve.at(x) for x in at] for seed, curve in sorted(seeds.items())}
    columns = zip(*found.values(), strict=True)
    means = [None if None in column else float(np.mean(column)) for column in columns]
    rows = [*((str(seed), values) for seed, values in found.items()), ("mean", means)]
    return [[name, *map(score, values)] for name, values in rows]


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
    return {"multi30k-ablations/table.md": f"{table(heads, whole)}\nBLEU at equal AL:\n\n{by_al}"}


def paper_runs(results: Path) -> dict[str, Output]:
    """Experiments that exist only for the paper: every point, and curves without catch-up."""
    found: dict[str, Output] = {}
    for name, title in PAPER.items():
        path = results / name / "points.jsonl"
        if not path.exists():
            continue
        curves = by_name(read_points([path]))
        shown = {each: curve for each, curve in curves.items() if "-by-" not in each}
        shown = {each: curve for each, curve in shown.items() if "-streamed-" not in each}
        found[f"{name}/table.md"] = all_points(curves)
        found[f"{name}/curves.svg"] = picture(shown, title)
    return found


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


def authors_code(results: Path) -> dict[str, Output]:
    """The authors' code beside ours, on the same captions; endings are allowed in both."""
    theirs = read_points([results / "authors-code" / "points.jsonl"])
    ours = read_points([results / "multi30k" / "points.jsonl"])
    rows = [
        [p["set"], p["name"], f"{p['k']:g}", *(f"{value(p, axis):.2f}" for axis in COLUMNS[:5]),
         f"{100 * p['early_stop']:.1f}%"]
        for p in sorted(theirs, key=lambda p: (p["set"], p["name"], p["k"]))
    ]  # fmt: skip
    curves = by_name([*select(theirs, ["set=test_2016_flickr"]), *ours])
    shown = ("wait-info-allow", "multipath-allow", "authors-wait-info", "authors-multipath",
             "authors-multipath-warm")  # fmt: skip
    title = "Multi30k German → English: the authors' code and this one, endings allowed"
    heads = ["set", "system", "dial", *HEADS[:5], "early stop"]
    return {
        "authors-code/table.md": table(heads, rows),
        "authors-code/curves.svg": Picture([curves[name] for name in shown], title),
    }


def de_en_analysis(results: Path) -> dict[str, Output]:
    """Tables of every analysis of the bundled model, and pictures of that of newstest2015."""
    path = results / "de-en-analysis" / "measurements.json"
    measured = json.loads(path.read_text("utf-8"))
    parts = []
    for set_name, found in measured.items():
        parts.append(f"# {set_name}\n\n{found['facts']['test']['sentences']:,} sentences.\n")
        for what in SHOWN:
            parts.append(f"## {ANALYSES[what].title}\n")
            made = ANALYSES[what].tables(found[what])
            parts += [f"{each.title}:\n\n{table(each.heads, each.rows)}" for each in made]
    pictures: dict[str, Output] = {
        f"de-en-analysis/{name}.svg": Analysis(what, name, measured["newstest2015"][what])
        for what, names in SHOWN.items()
        for name in names
    }
    return {"de-en-analysis/table.md": "\n".join(parts), **pictures}


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


def seed_cell(point: Point, axis: str) -> str:
    found = value(point, axis)
    if found is None:
        return ""
    if axis == "k":
        return f"{found:.3g}"
    return f"{100 * found:.1f}%" if axis == "early_stop" else f"{found:.2f}"


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


def of(score: float, whole: float | None) -> str:
    return f"{100 * score / whole:.0f}%" if whole else ""


def condition_rows(points: list[Point]) -> Iterator[list[str]]:
    """BLEU under each condition, to that of clean text, and of documents to that of sentences."""
    for (run, name), found in by_condition(points).items():
        scores = {c: point["quality"]["BLEU"] for c, (point, *_) in found.items()}
        for condition in (c for c in ALL if c in found):
            for point in found[condition]:
                quality, words = point["quality"], point["word"]
                ends = condition.removeprefix("documents").removeprefix("-") or "clean"
                repeats = point.get("documents", {}).get("repeated_4grams")
                yield [
                    run, name, condition, f"{point['k']:g}",
                    f"{quality['BLEU']:.2f} ± {quality['BLEU_interval']:.2f}",
                    of(quality["BLEU"], scores.get("clean")),
                    of(quality["BLEU"], scores.get(ends)) if ends != condition else "",
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


def held_lags(results: Path) -> dict[str, str]:
    points = read_points([results / "lag" / "points.jsonl"])
    return {"lag/table.md": table(LAG_HEADS, lag_rows(points))}


def outputs(results: Path = RESULTS) -> dict[str, Output]:
    """Every table and picture by its path under results/."""
    found: dict[str, Output] = {}
    for experiment in (multi30k, norm_before, multi30k_ablations, de_en, ablations, en_vi,
                       paper_runs, ingredients, authors_code, de_en_analysis,
                       conditions, held_lags, box):  # fmt: skip
        found |= experiment(results)
    return found


def main() -> None:
    for name, output in outputs().items():
        if isinstance(output, str):
            (RESULTS / name).write_text(output, "utf-8")
        else:
            output.draw(RESULTS / name)
        print(name)


if __name__ == "__main__":
    main()
