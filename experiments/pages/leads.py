"""Is there a setting with a lead of 1 BLEU over wait-k with the best constant for catch-up?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import Any

from experiments.pages.analyses import significance
from experiments.pages.figures import NO_LATENCY, numbers, points, signed, with_seeds
from waitinfo.evaluation.curves import Curve, make_curves
from waitinfo.evaluation.points import Point

LEAD_AL = [x / 2 for x in range(2, 21)]  # where leads are looked for
STEEP = 2.0  # BLEU from one dial to the next; a straight line then lies well below the curve


def is_steep(curve: Curve, x: float) -> bool:
    """Whether the score changes much between the points on both sides of a latency."""
    points = pairwise(sorted(zip(curve.xs, curve.ys, strict=True)))
    return any(a <= x <= b and abs(score - before) > STEEP for (a, before), (b, score) in points)


def lead(found: Sequence[Point], first: str, others: str) -> str:
    """The lead over the best curve at each latency: from … to …, and where it is largest.

    `others` is a pattern of names: wait-k, and wait-k with catch-up. Latencies that no curve with
    catch-up reaches do not count. Where one of the others is steep, the lead is less than it seems,
    so that the largest is not looked for there. Which curve is best is decided by the mean of the
    seeds.
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

    leads, fair = {}, []
    for x in LEAD_AL:
        best = {name: y for name in names if (y := at(name, x))}
        if (own := at(first, x)) and any("catch-up" in name for name in best):
            highest = max(best.values(), key=mean)
            leads[x] = [a - b for a, b in zip(own, highest, strict=True)]
            if not any(is_steep(curves[name, seed], x) for name in best for seed in seeds):
                fair.append(x)
    if not leads:
        return NO_LATENCY
    means = {x: mean(values) for x, values in leads.items()}
    top = max(fair or means, key=means.__getitem__)
    seen = f": {with_seeds(leads[top])}" if len(seeds) > 1 else ""
    low, high = signed(min(means.values())), signed(means[top])
    return f"{low} to {high}, largest at AL {top:g}{seen}"


def above_the_line(found: Sequence[Point], name: str) -> list[float]:
    """How far k = 2 lies above the line from k = 1 to k = 3, with every seed."""
    by_seed: dict[Any, dict[float, tuple[float, float]]] = defaultdict(dict)
    for p in found:
        if p["name"] == name and p["k"] in (1, 2, 3):
            by_seed[p["seed"]][p["k"]] = p["paper"]["AL"], p["quality"]["BLEU"]
    heights = []
    for at in by_seed.values():
        (a, low), (x, score), (b, high) = at[1], at[2], at[3]
        heights.append(score - low - (high - low) * (x - a) / (b - a))
    return heights


def lead_on_same_weights(*analyses: dict[str, Any]) -> str:
    """The same of analyses of one subject, with the interval of the largest lead.

    Latencies are those of the first analysis.
    """
    first, *_ = (found["significance"]["against"] for found in analyses)
    at: dict[float, list[dict[str, Any]]] = {
        each["latency"]: [] for other in first for each in other["at"]
    }
    for other in (other for found in analyses for other in found["significance"]["against"]):
        for each in other["at"]:
            if each["latency"] in at:
                at[each["latency"]].append(each)
    least = [min(each, key=lambda one: one["difference"]) for each in at.values()]
    best = max(least, key=lambda one: one["difference"])
    low = min(one["difference"] for one in least)
    return f"{signed(low)} to {signed(best['difference'])}, largest: {significance(best)}"


def baseline(run: str) -> str:
    """Multipath, plain and with catch-up, trained in the same way: with as many k per update."""
    four = re.search("four-(k|draws)$", "four-k" if run == "as-authors" else run)
    return rf"multipath{f'-{four[0]}' if four else ''}(-by-catch-up-of-\d+)?"


def leads() -> dict[str, str]:
    """Wait-info over wait-k with the best constant at each latency, wherever both are scored."""
    packed = points("de-en-packed", "set=newstest2015")
    news = [*points("de-en", "set=newstest2015", "name=wait-info"),
            *points("de-en", "set=newstest2015", "name=multipath"), *packed]  # fmt: skip
    news = [{**point, "seed": None} for point in news]
    constants = baseline("wait-info")
    made = {
        "lead, news, Base": lead(news, "wait-info", constants),
        "lead, news, Base, same weights": lead(
            packed, "base-by-wait-info", r"base-by-(wait-k|catch-up-of-\d+)"
        ),
        "lead, news, bundled shape": lead(points("de-en-systems"), "wait-info", constants),
        "lead, talks": lead(points("en-vi"), "wait-info", r"multipath-catch-up.*|multipath"),
        "lead, talks, same weights": lead(points("en-vi"), "wait-info", "wait-info-catch-up.*"),
    }
    theirs = points("authors-code", "set=test_2016_flickr")
    bends = [
        *above_the_line(points("multi30k"), "multipath"),
        *above_the_line(theirs, "authors-multipath"),
        *above_the_line(theirs, "authors-multipath-warm"),
    ]
    made["captions, k = 2 above the line from k = 1 to 3"] = f"{min(bends):.1f} to {max(bends):.1f}"
    for experiment in ("multi30k-authors", "europarl-178k"):
        found = points(experiment)
        for name in sorted({p["run"] for p in found if p["system"] == "wait-info"}):
            made[f"lead, {experiment}, {name}"] = lead(found, name, baseline(name))
            own = rf"{name}-by-(wait-k|catch-up-of-\d+)"
            if any(re.fullmatch(own, p["name"]) for p in found):
                made[f"lead, {experiment}, {name}, same weights"] = lead(found, name, own)
    policy = numbers("policy")
    for folder in ("analysis-small", "analysis"):
        for name, found in numbers(folder).items():
            if "significance" in found:
                both = filter(None, (found, policy.get(f"catch-up.{name}")))
                made[f"lead, {folder}, {name}"] = lead_on_same_weights(*both)
    for name, found in policy.items():
        if name.startswith("constants."):
            made[f"lead with a rate, {name}"] = lead_on_same_weights(found)
    return made
