"""The figures of docs/paper.md, computed from results/: `python experiments/paper/claims.py`.

Differences between two systems are means over the latencies that both cover, seed by seed. With
three or more seeds they have a 95% interval (Student's t), with fewer the seeds are named.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np

from waitinfo.evaluation.curves import difference, make_curves
from waitinfo.evaluation.points import Point, read_points, select

RESULTS = Path(__file__).resolve().parents[2] / "results"
OTHERS = ("multipath", "wait-k", "moe-wait-k", "adaptive-wait-k", "mma", "gma", "gsimt",
          "gsimt-style")  # fmt: skip
SWITCHES = (  # what the authors' code does differently, and beside what it is seen
    ("no-floor", "wait-info"), ("no-whole-source", "wait-info"), ("tiny-sum-loss", "wait-info"),
    ("sum-by-batch", "wait-info"), ("info-before-dropout", "wait-info"), ("four-k", "wait-info"),
    ("as-authors", "wait-info"), ("multipath-warm", "multipath"),
    ("multipath-four-k", "multipath"), ("wait-info", "wait-info-by-wait-k"),
)  # fmt: skip
NO_LATENCY = "no common latency"
CHANGES = {
    "plain-self-attention": "without info in self-attention",
    "plain-cross-attention": "without info in cross-attention",
    "source-info-one": "source info 1",
    "target-info-one": "target info 1",
    "zeta-source": "zeta of the source",
    "zeta-target": "zeta of the target",
    "no-sum-loss": "lambda 0",
    "lambda-0": "lambda 0",
    "lambda-1": "lambda 1",
    "info-by-frequency": "info by frequency",
    "info-by-norm": "info by norm",
    "multipath": "multipath",
}
MORE = ("VERB", "NOUN", "ADJ", "PROPN", "AUX")  # info of these, says the paper, is higher
LESS = ("CCONJ", "SCONJ", "ADP", "PART", "DET")  # than of these
SOME_AL = (3, 5, 7)  # where catch-up is shown
POOLED_AL = range(3, 9)  # where changes are compared all together
LEAD_AL = [x / 2 for x in range(2, 21)]  # where leads are looked for
STUDENT = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # 97.5% quantile by number of seeds


def signed(value: float, digits: int = 1) -> str:
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if float(text[1:]) else text[1:]  # zero has no sign


def with_seeds(values: Sequence[float]) -> str:
    """A mean with its interval or its seeds."""
    if not values:
        return NO_LATENCY
    if len(values) == 1:
        return f"{signed(values[0])} (one seed)"
    if len(values) == 2:
        return f"{signed(mean(values))} ({' and '.join(map(signed, values))})"
    half = STUDENT[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{signed(mean(values))} ± {half:.1f} ({len(values)} seeds)"


def points(experiment: str, *where: str) -> list[Point]:
    """Points of an experiment; none if it has not been made."""
    path = RESULTS / experiment / "points.jsonl"
    return select(read_points([path]), where) if path.exists() else []


def gap(found: Sequence[Point], first: str, second: str, x: str = "paper.AL") -> str:
    """Mean difference in BLEU at equal latency."""
    values = []
    for seed in sorted({p["seed"] for p in found if p["name"] == first}, key=str):
        here = {c.name: c for c in make_curves([p for p in found if p["seed"] == seed], x, "BLEU")}
        if first in here and second in here and (area := difference(here[first], here[second])):
            values.append(area.mean)
    return with_seeds(values)


def over_others(text: str, found: Sequence[Point]) -> dict[str, str]:
    """Wait-info less every other system that was scored at a latency of its own."""
    names = {point["name"] for point in found}
    gaps = {other: gap(found, "wait-info", other) for other in OTHERS if other in names}
    return {f"{text}, wait-info over {other}": figure for other, figure in gaps.items()
            if figure != NO_LATENCY}  # fmt: skip


def full_sentence(found: Sequence[Point], first: str, second: str) -> str:
    scores = {(p["name"], p["seed"]): p["quality"]["BLEU"] for p in found}
    seeds = sorted({seed for name, seed in scores if name == first})
    return with_seeds([scores[first, seed] - scores[second, seed] for seed in seeds])


def early(found: Sequence[Point], name: str) -> str:
    """Early stop at K or k = 1, 3, 5, 7, 9, mean of the seeds."""
    shares = []
    for k in (1, 3, 5, 7, 9):
        here = [p["early_stop"] for p in found if p["name"] == name and p["k"] == k]
        shares += [f"{100 * mean(here):.1f}"] if here else []
    return ", ".join(shares) + "%"


def field(found: Sequence[Point], name: str, part: str) -> str:
    return f"{mean(p[part] for p in found if p['name'] == name):.2f}"


def length_ratio(found: Sequence[Point], name: str) -> str:
    """Source tokens to tokens written, with end-of-sentence on both sides."""
    return f"{1 / mean(p['target_per_source'] for p in found if p['name'] == name):.2f}"


def analysis(folder: str) -> dict[str, Any]:
    """The numbers of analyses by their name; none if they have not been made."""
    path = RESULTS / folder / "measurements.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def from_analyses() -> dict[str, str]:
    """What the analyses found, each under the name of its model."""
    models = {"small": analysis("de-en-analysis")["newstest2015"], **analysis("box-analysis")}
    return {
        f"{model}: {name}": figure
        for model, found in models.items()
        if "significance" in found
        for name, figure in from_analysis(found).items()
    }


def from_analysis(found: dict[str, Any]) -> dict[str, str]:
    made = {
        "info ratio": f"{found['ratio']['info_ratio']:.2f}",
        "length ratio": f"{found['ratio']['length_ratio']:.2f}",
        "total of a source less that of its reference": (
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


def claims() -> dict[str, str]:
    """Every figure by its name."""
    captions, before = points("multi30k"), points("multi30k-norm-before")
    news = points("de-en", "set=newstest2015")
    taught = points("de-en-ingredients", "set=newstest2015")
    packed = points("de-en-packed", "set=newstest2015")
    parts = points("de-en-ablations", "seed=1")
    small = points("multi30k-ablations")
    talks = points("en-vi")
    theirs = points("authors-code")
    cost = json.loads((RESULTS / "multi30k" / "measurements.json").read_text("utf-8"))["cost"]
    relative = {name: f"{found['relative']:.1f}" for name, found in cost["systems"].items()}
    made = {
        **over_others("captions", captions),
        **over_others("talks", talks),
        **over_others("news, bundled shape", points("de-en-systems", "set=newstest2015")),
        **over_others("news, Big", points("de-en-big", "set=newstest2015")),
    }
    made |= {
        "captions, norm before, over multipath": gap(before, "wait-info", "multipath"),
        "news, over multipath": gap(news, "wait-info", "multipath"),
        "news, over multipath by DAL": gap(news, "wait-info", "multipath", "paper.DAL"),
        "news, students' text, over multipath": gap(taught, "all", "multipath"),
        "news, students' text, over multipath by DAL": gap(taught, "all", "multipath", "paper.DAL"),
        "news, students' text, over wait-k, same weights": gap(taught, "all", "all-by-wait-k"),
        "newstest2013, over multipath": gap(parts, "wait-info", "multipath"),
        "newstest2013, over multipath by DAL": gap(parts, "wait-info", "multipath", "paper.DAL"),
        "wait-k, same weights": gap(packed, "base-by-wait-info", "base-by-wait-k"),
        "catch-up of 6, same weights": gap(packed, "base-by-wait-info", "base-by-catch-up-of-6"),
        "catch-up of 10, same weights": gap(packed, "base-by-wait-info", "base-by-catch-up-of-10"),
        "catch-up of −8, talks": gap(talks, "wait-info", "wait-info-catch-up.-8"),
        "early stop, news, wait-info": early(news, "wait-info-allow"),
        "early stop, news, multipath": early(news, "multipath-allow"),
        "early stop, captions, wait-info": early(captions, "wait-info-allow"),
        "early stop, talks, wait-info": early(talks, "wait-info-allow"),
        "early stop, authors' code, captions": early(
            [p for p in theirs if p["set"] == "test_2016_flickr"], "authors-wait-info"
        ),
        "early stop, authors' code, Europarl": early(
            [p for p in theirs if p["set"] == "europarl-178k.test"], "authors-wait-info"
        ),
        "authors' code, captions": gap(
            [p for p in theirs if p["set"] == "test_2016_flickr"],
            "authors-wait-info",
            "authors-multipath",
        ),
        "authors' code, Europarl": gap(
            [p for p in theirs if p["set"] == "europarl-178k.test"],
            "authors-wait-info",
            "authors-multipath",
        ),
        "info ratio, talks": field(talks, "wait-info", "info_ratio"),
        "info ratio, captions": field(captions, "wait-info", "info_ratio"),
        "length ratio, talks": length_ratio(talks, "wait-info"),
        "length ratio, captions": length_ratio(captions, "wait-info"),
        "without info in cross-attention, news": gap(parts, "plain-cross-attention", "wait-info"),
        "source info 1, news": gap(parts, "source-info-one", "wait-info"),
        "source info 1, news, by DAL": gap(parts, "source-info-one", "wait-info", "paper.DAL"),
        "info of the target alone over multipath, news": gap(parts, "source-info-one", "multipath"),
        "zeta of the source, news": gap(parts, "zeta-source", "wait-info"),
        "zeta of the source, news, by DAL": gap(parts, "zeta-source", "wait-info", "paper.DAL"),
        "frequency, captions": gap(before, "wait-info-frequency", "wait-info"),
        "cost of wait-info": f"{relative['wait-info']} times",
        "cost of MMA and GSiMT": f"{relative['mma']} and {relative['gsimt']} times",
    }
    made |= ablations(small, "captions")
    made |= ablations(points("de-en-parts"), "newstest2013")
    return made | from_analyses() | as_authors() | leads()


def as_authors() -> dict[str, str]:
    """Ours with the settings of the authors' code, its switches, and that code."""
    made = {}
    theirs = points("authors-code")
    for experiment, text in (("multi30k-authors", "captions"), ("europarl-178k", "Europarl")):
        found = points(experiment)
        sets = {point["set"] for point in found}
        beside = [*found, *(point for point in theirs if point["set"] in sets)]
        names = {point["name"] for point in found}
        for axis, by in (("paper.AL", ""), ("paper.DAL", " by DAL")):
            made[f"authors' settings, {text}, over multipath{by}"] = gap(
                found, "wait-info", "multipath", axis
            )
        for first, second in SWITCHES:
            if first in names:
                made[f"authors' settings, {text}, {first} over {second}"] = gap(
                    found, first, second
                )
        for system in ("wait-info", "multipath"):
            made[f"authors' settings, {text}, early stop, {system}"] = early(
                found, f"{system}-allow"
            )
            made[f"authors' settings, {text}, {system}, ours less theirs"] = beside_theirs(
                beside, system
            )
        made[f"authors' code, {text}, over multipath-warm"] = gap(
            beside, "authors-wait-info", "authors-multipath-warm"
        )
    return {name: figure for name, figure in made.items() if figure not in (NO_LATENCY, "%")}


def beside_theirs(found: Sequence[Point], system: str) -> str:
    """Each of our seeds less the one of the authors' code, with endings allowed in both."""
    theirs = [p for p in found if p["name"] == f"authors-{system}"]
    ours = [p for p in found if p["name"] == f"{system}-allow"]
    gaps = []
    for seed in sorted({p["seed"] for p in ours}):
        here = [*(p for p in ours if p["seed"] == seed), *theirs]
        curves = {c.name: c for c in make_curves(here, "paper.AL", "BLEU")}
        area = difference(curves[f"{system}-allow"], curves[f"authors-{system}"])
        gaps += [area.mean] if area else []
    return ", ".join(map(signed, gaps)) or NO_LATENCY


def full_sentences(found: Sequence[Point], text: str) -> dict[str, str]:
    """Full-sentence translation with info less that without."""
    names = {point["name"] for point in found}
    made = {}
    for decoder, first, second in (("greedy", "full-info", "full"),
                                   ("beam of 5", "full-info-beam5", "full-beam5")):  # fmt: skip
        if first in names:
            made[f"full-sentence, {text}, {decoder}"] = full_sentence(found, first, second)
    return made


def ablations(found: Sequence[Point], text: str) -> dict[str, str]:
    """Changes of wait-info, three seeds each, as far as they have been trained."""
    names = {point["name"] for point in found}
    made = {}
    for name, what in CHANGES.items():
        if name in names:
            made[f"{what}, {text}"] = gap(found, name, "wait-info")
            made[f"{what}, {text}, by DAL"] = gap(found, name, "wait-info", "paper.DAL")
            made[f"early stop, {what}, {text}"] = early(found, f"{name}-allow")
    for side, name in (("source", "target-info-one"), ("target", "source-info-one")):
        if {name, "multipath"} <= names:
            made[f"info of the {side} alone over multipath, {text}"] = gap(found, name, "multipath")
    if len(names & {"wait-info", *CHANGES} - {"multipath"}) > 1:
        made[f"changes, all together, {text}"] = pooled(found)
    if "wait-info-allow" in names:
        made[f"early stop, {text}, three seeds"] = early(found, "wait-info-allow")
    for name in ("wait-info", "plain-cross-attention"):
        if name in names:
            made[f"AL at K = 3, {name}, {text}"] = at_dial(found, name, 3)
    made |= full_sentences(found, text)
    return made


def pooled(found: Sequence[Point]) -> str:
    """How far wait-info and its changes differ, all together, as a table of systems by seeds.

    The interval of every difference is that of the residuals, which all of them share. The p-value
    is the share of permutations within the seeds that spread the systems' means as far.
    """
    runs: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in found:
        if point["name"] in {"wait-info", *CHANGES} - {"multipath"}:
            runs[point["name"]][point["seed"]].append(point)
    levels = [[level(seeds[seed]) for seed in sorted(seeds)] for seeds in runs.values()]
    blocks = max(map(len, levels))
    scores = np.array([found for found in levels if len(found) == blocks and None not in found])
    systems = len(scores)
    free = (systems - 1) * (blocks - 1)
    left = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    half = student(free) * np.sqrt(2 / blocks * (left**2).sum() / free)
    random = np.random.default_rng(1)
    spread = [random.permuted(scores, axis=0).mean(1).var() for _ in range(10_000)]
    p = np.mean(np.array(spread) >= scores.mean(1).var())
    return f"±{half:.1f} ({systems} systems, {blocks} seeds), p = {p:.1f}"


def level(found: Sequence[Point]) -> float | None:
    """Mean BLEU over the latencies of POOLED_AL; None for a curve that does not reach them all."""
    (curve,) = make_curves(found, "paper.AL", "BLEU")
    scores = [curve.at(x) for x in POOLED_AL]
    return None if None in scores else float(np.mean(scores))


def student(free: int) -> float:
    """The 97.5% quantile of Student's t, from the normal one (good from 10 degrees on)."""
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / 4 / free + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / free**2


def at_dial(found: Sequence[Point], name: str, k: int) -> str:
    """Average lagging at one dial, mean of the seeds."""
    return f"{mean(p['paper']['AL'] for p in found if p['name'] == name and p['k'] == k):.2f}"


# Is there a setting with a lead of 1 BLEU over wait-k with the best constant?


def lead(found: Sequence[Point], first: str, others: str) -> str:
    """The lead over the best curve at each latency: from … to …, and where it is largest.

    `others` is a pattern of names: wait-k, and wait-k with catch-up. Latencies that no curve with
    catch-up reaches do not count. Which curve is best is decided by the mean of the seeds.
    """
    names = {p["name"] for p in found if re.fullmatch(others, p["name"])}
    seeds = sorted(
        {p["seed"] for p in found if p["name"] in names and "catch-up" in p["name"]}
        & {p["seed"] for p in found if p["name"] == first},
        key=str,
    )
    curves = {
        (c.name, seed): c
        for seed in seeds
        for c in make_curves([p for p in found if p["seed"] == seed], "paper.AL", "BLEU")
    }

    def at(name: str, x: float) -> list[float]:
        """Its score with each seed; nothing if it has not all of them."""
        scores = [curves[name, s].at(x) if (name, s) in curves else None for s in seeds]
        return [] if None in scores else [y for y in scores if y is not None]

    leads = {}
    for x in LEAD_AL:
        best = {name: y for name in names if (y := at(name, x))}
        if (own := at(first, x)) and any("catch-up" in name for name in best):
            highest = max(best.values(), key=mean)
            leads[x] = [a - b for a, b in zip(own, highest, strict=True)]
    if not leads:
        return NO_LATENCY
    means = {x: mean(values) for x, values in leads.items()}
    top = max(means, key=means.__getitem__)
    seen = f": {with_seeds(leads[top])}" if len(seeds) > 1 else ""
    low, high = signed(min(means.values())), signed(means[top])
    return f"{low} to {high}, largest at AL {top:g}{seen}"


def lead_on_same_weights(found: dict[str, Any]) -> str:
    """The same of an analysis, with the interval of the largest lead."""
    against = found["significance"]["against"]
    at: dict[float, list[dict[str, Any]]] = {}
    for other in against:
        for each in other["at"]:
            at.setdefault(each["latency"], []).append(each)
    least = [min(each, key=lambda one: one["difference"]) for each in at.values()]
    best = max(least, key=lambda one: one["difference"])
    low = min(one["difference"] for one in least)
    return f"{signed(low)} to {signed(best['difference'])}, largest: {significance(best)}"


def leads() -> dict[str, str]:
    """Wait-info over wait-k with the best constant at each latency, wherever both are scored."""
    packed = points("de-en-packed", "set=newstest2015")
    news = [*points("de-en", "set=newstest2015", "name=wait-info"),
            *points("de-en", "set=newstest2015", "name=multipath"), *packed]  # fmt: skip
    news = [{**point, "seed": None} for point in news]
    constants = r"multipath(-by-catch-up-of-\d+)?"
    made = {
        "lead, news, Base": lead(news, "wait-info", constants),
        "lead, news, Base, same weights": lead(
            packed, "base-by-wait-info", r"base-by-(wait-k|catch-up-of-\d+)"
        ),
        "lead, talks": lead(points("en-vi"), "wait-info", r"multipath-catch-up.*|multipath"),
        "lead, talks, same weights": lead(points("en-vi"), "wait-info", "wait-info-catch-up.*"),
    }
    for experiment in ("multi30k-authors", "europarl-178k"):
        found = points(experiment)
        for name in sorted({p["run"] for p in found if p["system"] == "wait-info"}):
            made[f"lead, {experiment}, {name}"] = lead(found, name, constants)
            own = rf"{name}-by-(wait-k|catch-up-of-\d+)"
            if any(re.fullmatch(own, p["name"]) for p in found):
                made[f"lead, {experiment}, {name}, same weights"] = lead(found, name, own)
    for folder in ("de-en-analysis", "box-analysis"):
        for name, numbers in analysis(folder).items():
            if "significance" in numbers:
                made[f"lead, {folder}, {name}"] = lead_on_same_weights(numbers)
    return made


def main() -> None:
    for name, figure in claims().items():
        print(f"{name:50} {figure}")


if __name__ == "__main__":
    main()
