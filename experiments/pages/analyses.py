"""Analyses in results: their tables and pictures, and the figures that the paper's page quotes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from experiments.pages.figures import numbers, signed
from experiments.pages.tables import (
    AnalysisPicture,
    Outputs,
    Panels,
    Picture,
    find,
    numbers_of,
    place,
    table,
)
from waitinfo.analysis.analyses import ANALYSES
from waitinfo.evaluation.curves import Curve, CurvePoint

MORE = ("VERB", "NOUN", "ADJ", "PROPN", "AUX")  # info of these, says the paper, is higher
LESS = ("CCONJ", "SCONJ", "ADP", "PART", "DET")  # than of these
TABLED = ("pos", "ratio", "early-stop", "attention", "difficulty", "significance")
PICTURES = (  # file of numbers, name in it, analysis, its picture, and the picture's file
    ("analysis-small", "newstest2015", "ratio", "ratio", "analysis-small.ratio"),
    ("analysis-small", "newstest2015", "attention", "attention", "analysis-small.attention"),
    ("analysis", "de-en", "pos", "pos-words", "analysis.pos-words"),
    ("analysis", "de-en", "early-stop", "early-stop", "analysis.early-stop"),
    ("analysis", "de-en", "significance", "significance", "analysis.significance.de-en"),
    ("analysis", "en-de", "significance", "significance", "analysis.significance.en-de"),
    ("analysis", "case", "case", "case-staircase", "analysis.case"),
    ("policy", "parts.de-en", "significance", "significance", "policy"),
)
BEYOND = (  # comparisons of the veto: their names, the model, the panel's title
    ("head", "de-en", "German → English, newstest2015"),
    ("head", "en-de", "English → German, newstest2015"),
    ("head-europarl", "de-en", "German → English, Europarl"),
)
SIGNIFICANT = 0.05  # p-values below it
SOME_AL = (3, 5, 7)  # where catch-up is shown


def analyses(results: Path) -> Outputs:
    """Tables of every analysis, and the pictures that pages show."""
    found: Outputs = {}
    for name in dict.fromkeys(name for name, *_ in PICTURES):
        if path := find(results, name, ".json"):
            found[f"{place(path)}.md#{name}"] = tables(numbers_of(results, name))
            found |= pictures(path)
    return found | beyond(numbers_of(results, "policy"))


def beyond(measured: dict[str, Any]) -> Outputs:
    """The veto beside wait-info and constants: curves, of what they have at equal lags."""
    panels = []
    for text, model, title in BEYOND:
        parts = [
            measured[name]["significance"]
            for name in (f"{text}-by-LAAL.{model}", f"{text}-constants-by-LAAL.{model}")
            if name in measured
        ]
        scores: dict[str, dict[float, float]] = {}
        for part in parts:
            for other in part["against"]:
                for at in other["at"]:
                    shown = other["name"].replace("multipath", "wait-k").replace("_", "-")
                    for name, bleu in zip(("veto", shown), at["BLEU"], strict=True):
                        scores.setdefault(name, {})[at["latency"]] = bleu
        curves = [
            Curve(name, [CurvePoint(x, y, y, y, "") for x, y in sorted(ys.items())])
            for name, ys in scores.items()
        ]
        if curves:
            panels.append(Picture(curves, title, x="word.LAAL"))
    return {"ablations/veto.svg": Panels(panels)} if panels else {}


def tables(measured: dict[str, Any]) -> str:
    parts = []
    for name, found in measured.items():
        tabled = [what for what in TABLED if what in found]
        if tabled:
            parts.append(f"### {name}\n\n{found['facts']['test']['sentences']:,} sentences.\n")
        for what in tabled:
            parts.append(f"#### {name}: {ANALYSES[what].title}\n")
            made = ANALYSES[what].tables(found[what])
            parts += [f"{each.title}:\n\n{table(each.heads, each.rows)}" for each in made]
    return "\n".join(parts)


def pictures(path: Path) -> Outputs:
    measured = numbers_of(path.parents[1], path.stem)
    return {
        f"{path.parent.name}/{file}.svg": AnalysisPicture(what, picture, measured[name][what])
        for owner, name, what, picture, file in PICTURES
        if owner == path.stem and what in measured.get(name, {})
    }


# Figures


def from_analyses() -> dict[str, str]:
    """What the analyses found, each under the name of its model."""
    models = {"small": numbers("analysis-small")["newstest2015"], **numbers("analysis")}
    return {
        f"{model}: {name}": figure
        for model, found in models.items()
        if "significance" in found
        for name, figure in from_analysis(found).items()
    }


def from_policy() -> dict[str, str]:
    """What parts of the policy give, on the weights of the bundled models."""
    return {
        f"policy, {name}: over {other['name']}": span(other["at"], found["significance"]["latency"])
        for name, found in numbers("policy").items()
        if not name.startswith("choice.")  # on the development set
        for other in found["significance"]["against"]
        if other["at"]
    }


def span(found: Sequence[dict[str, Any]], latency: str) -> str:
    """From where to where differences at several latencies lie, and which are significant."""
    gaps = [at["difference"] for at in found]
    certain = [f"{at['latency']:g}" for at in found if at["p"] < SIGNIFICANT]
    low, high = signed(min(gaps)), signed(max(gaps))
    shown = low if low == high else f"{low} to {high}"
    name = latency.rpartition(".")[2]
    return f"{shown}, significant {f'at {name} ' + ', '.join(certain) if certain else 'nowhere'}"


def from_analysis(found: dict[str, Any]) -> dict[str, str]:
    made = {
        "info ratio": f"{found['ratio']['info_ratio']:.2f}",
        "length ratio": f"{found['ratio']['length_ratio']:.2f}",
        "total of a source minus that of its reference": (
            f"{signed(found['ratio']['difference']['mean'])}, deviation "
            f"{found['ratio']['difference']['deviation']:.1f}"
        ),
    }
    for at in found["ratio"]["reference_path_ends"]:
        if at["k"] == 5 and (off := at.get("from_even_path")):
            shares = f"{100 * off['within_1']:.0f}% and {100 * off['within_2']:.0f}%"
            made["tokens from an even path at K = 5"] = (
                f"{off['mean']:.1f}, within 1 and 2: {shares}"
            )
    made["total of a reference to that of its source"] = f"{found['ratio']['totals_ratio']:.2f}"
    for side in ("source", "target"):
        content, function = (
            found["pos"][side]["kinds"][kind] for kind in ("content words", "function words")
        )
        for name, part in (("words", "info_per_word"), ("single tokens", "info_of_single_tokens")):
            made[f"{side}, {name}"] = (
                f"{content[part]['mean']:.2f} and {function[part]['mean']:.2f}"
            )
        tags = found["pos"][side]["tags"]
        made[f"{side}, single tokens, the paper's groups"] = (
            f"{of_tags(tags, MORE):.2f} and {of_tags(tags, LESS):.2f}"
        )
        per_token = (f"{kind['info_per_token']:.2f}" for kind in (content, function))
        made[f"{side}, per token"] = " and ".join(per_token)
    if "attention" in found:
        layers = [*found["attention"]["encoder"], *found["attention"]["decoder"]]
        weights = [layer["correlation"] for layer in layers]
        made["own weight and info, correlation"] = f"{min(weights):.2f} to {max(weights):.2f}"
        pairs = mean(layer["mean_distance"] for layer in found["attention"]["cross"])
        for name, part in (("", "attended_distance"),
                           (", without info", "attended_distance_without_info")):  # fmt: skip
            near = [layer[part] for layer in found["attention"]["cross"]]
            made[f"distance in info of what is attended to, and of all{name}"] = (
                f"{min(near):.2f} to {max(near):.2f} and {pairs:.2f}"
            )
    if "difficulty" in found:
        for name, bin_ in (("shortest", 0), ("longest", -1)):
            here = found["difficulty"]["length"][bin_]
            scores = " and ".join(f"{each['BLEU']:.1f}" for each in here["subjects"])
            made[f"{name} sentences, wait-info and wait-k"] = (
                f"{here['from']:.0f} to {here['to']:.0f} words: {scores}"
            )
    made |= split(found["early-stop"])
    for other in found["significance"]["against"]:
        every = "catch_up" not in other["name"]
        shown = [at for at in other["at"] if every or at["latency"] in SOME_AL]
        made[f"wait-info over {other['name']}"] = "; ".join(map(significance, shown))
    return made


def of_tags(tags: dict[str, Any], names: Sequence[str]) -> float:
    """Mean info of words of one token that have these tags."""
    single = [tags[name]["info_of_single_tokens"] for name in names if name in tags]
    counts = [each.get("count", 0) for each in single]
    return float(np.average([each.get("mean", 0) for each in single], weights=counts))


def split(found: dict[str, Any]) -> dict[str, str]:
    """How far below the others the translations that stop early are, where there are enough."""
    made = {}
    for subject in found["subjects"]:
        gaps = [
            at["split"]["early"]["allow"] - at["split"]["complete"]["allow"]
            for at in subject["dials"]
            if at["sentences"]["early"] >= 50
        ]
        made[f"BLEU of early stops, {subject['name']}"] = signed(mean(gaps)) if gaps else "few"
        shares = ", ".join(f"{100 * at['early_stop']:.1f}" for at in subject["dials"])
        made[f"early stops, {subject['name']}"] = f"{shares}%"
    return made


def significance(at: dict[str, Any]) -> str:
    low, high = (signed(bound) for bound in at["interval"])
    return f"{signed(at['difference'])} ({low} to {high}) at AL {at['latency']:g}"


MAKE = (analyses,)
