"""The figures of docs/paper.md, from results/: `python -m experiments.pages.claims`.

Differences between two systems are means over the latencies that both cover, seed by seed. With
three or more seeds they have a 95% interval (Student's t), with fewer the seeds are named.
With `--results MINE`, runs in that folder take the place of published ones, and the figures that
they change are printed beside the published ones.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.pages.analyses import from_analyses, from_policy
from experiments.pages.figures import (
    MINE,
    NO_LATENCY,
    at_dial,
    early,
    early_at,
    field,
    full_sentence,
    gap,
    length_ratio,
    numbers,
    points,
    signed,
    student,
)
from experiments.pages.leads import leads
from waitinfo.evaluation.curves import difference, make_curves, published_curves
from waitinfo.evaluation.points import Point

OTHERS = ("multipath", "wait-k", "moe-wait-k", "adaptive-wait-k", "mma", "gma",
          "gsimt-style")  # fmt: skip
SWITCHES = (  # what the authors' code does differently, and beside what it is seen
    ("no-floor", "wait-info"), ("no-whole-source", "wait-info"), ("tiny-sum-loss", "wait-info"),
    ("sum-by-batch", "wait-info"), ("info-before-dropout", "wait-info"), ("four-k", "wait-info"),
    ("four-draws", "wait-info"), ("as-authors", "wait-info"), ("multipath-warm", "multipath"),
    ("multipath-four-k", "multipath"), ("multipath-four-draws", "multipath"),
    ("wait-info", "wait-info-by-wait-k"),
)  # fmt: skip
AHEAD = (  # wait-info with switches, and multipath trained in the same way
    ("wait-info", "multipath"), ("sum-by-batch", "multipath"), ("no-floor", "multipath"),
    ("four-k", "multipath-four-k"), ("as-authors", "multipath-four-k"),
    ("four-draws", "multipath-four-draws"),
)  # fmt: skip
CHANGES = {
    "plain-self-attention": "without info in self-attention",
    "plain-cross-attention": "without info in cross-attention",
    "plain-attentions": "without info in both attentions",
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
OURS, THEIRS = ("wait-info-allow", "multipath-allow"), ("authors-wait-info", "authors-multipath")
CONTINUED_PARTS = ("wait-info", "source-info-one", "target-info-one", "plain-attentions",
                   "source-info-one-at-rate-1.06", "target-info-one-at-rate-1.06")  # fmt: skip
OWN_PATHS = (("multipath", "wait-info-by-wait-k"),  # continued along the paths, and not
             ("multipath-catch-up-of-6", "wait-info-by-catch-up-of-6"))  # fmt: skip
CONTINUED_AL = (3, 4, 5, 6)
POOLED_AL = range(3, 9)  # where changes are compared all together
STOPS = ("wait-info", "target-info-one", "source-info-one", "info-by-norm", "info-by-frequency",
         "multipath")  # fmt: skip
EQUAL_AL = (1, 2, 5)  # where early stops are compared
PAPER = {  # the paper's names
    "multipath": "Efficient Wait-k", "wait-k": "Wait-k", "moe-wait-k": "MoE Wait-k",
    "adaptive-wait-k": "Adaptive Wait-k", "mma": "MMA", "gma": "GMA", "gsimt": "GSiMT",
}  # fmt: skip


def over_others(text: str, found: Sequence[Point], axis: str = "paper.AL") -> dict[str, str]:
    """Wait-info less every other system that was scored at a latency of its own."""
    names = {point["name"] for point in found}
    gaps = {other: gap(found, "wait-info", other, axis) for other in OTHERS if other in names}
    return {f"{text}, wait-info over {other}": figure for other, figure in gaps.items()
            if figure != NO_LATENCY}  # fmt: skip


def stops_of_all(text: str, found: Sequence[Point]) -> dict[str, str]:
    """Early stops of every system that was scored with endings allowed."""
    names = dict.fromkeys(point["name"] for point in found if point["name"].endswith("-allow"))
    return {f"early stop, {text}, {name.removesuffix('-allow')}": early(found, name)
            for name in names}  # fmt: skip


def claims() -> dict[str, str]:
    """Every figure by its name."""
    captions, before = points("multi30k"), points("multi30k-norm-before")
    news = points("de-en", "set=newstest2015")
    taught = points("de-en-ingredients", "set=newstest2015")
    packed = points("de-en-packed", "set=newstest2015")
    parts = points("de-en-ablations", "seed=1")
    small = points("multi30k-ablations")
    talks = points("en-vi")
    systems = points("de-en-systems", "set=newstest2015")
    big = points("de-en-big", "set=newstest2015")
    cost = numbers("measurements")["systems/cost"]
    relative = {name: f"{found['relative']:.1f}" for name, found in cost["systems"].items()}
    made = {
        **over_others("captions", captions),
        **over_others("talks", talks),
        **over_others("news, bundled shape", systems),
        **over_others("news, bundled shape, by DAL", systems, "paper.DAL"),
        **over_others("news, Big", big),
        **over_others("news, Big, by DAL", big, "paper.DAL"),
        **stops_of_all("news, bundled shape", systems),
        **stops_of_all("news, Big", big),
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
        "early stop, captions, multipath": early(captions, "multipath-allow"),
        "early stop, talks, wait-info": early(talks, "wait-info-allow"),
        "early stop, talks, multipath": early(talks, "multipath-allow"),
        "early stop, news, at equal AL": early_at(
            news, ["wait-info-allow", "multipath-allow"], EQUAL_AL
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
    made |= {
        "full sentences, captions": whole(captions, "full"),
        "full sentences, news": whole(news, "full"),
        "full sentences, talks": whole(talks, "full-small-start"),
        "full sentences, talks, norm before": whole(talks, "full-norm-before"),
    }
    three = points("de-en-parts")
    made |= {
        f"newstest2013, 3,000 updates, over multipath{by}": gap(
            three, "wait-info", "multipath", axis
        )
        for axis, by in (("paper.AL", ""), ("paper.DAL", ", by DAL"))
    }
    made |= full_sentences(talks, "talks, norm before", "-norm-before")
    made |= ablations(small, "captions")
    made |= ablations(three, "newstest2013, 3,000 updates")
    made |= continued(points("de-en-continued"))
    return made | from_analyses() | from_policy() | as_authors() | leads() | in_the_paper()


def continued(found: Sequence[Point]) -> dict[str, str]:
    """The bundled model continued as another system or without a part, less it as wait-info."""
    names = dict.fromkeys(point["name"] for point in found)
    made = {
        f"continued, {name} minus wait-info": figure
        for name in names
        if name != "wait-info" and (figure := gap(found, name, "wait-info")) != NO_LATENCY
    }
    made |= full_sentences(found, "continued")
    for name in (name for name in CONTINUED_PARTS if name in names):
        ratio = field([p for p in found if p["k"] == 5], name, "info_ratio")
        made[f"continued, {name}, info ratio at K = 5"] = ratio
        made[f"continued, {name} less multipath"] = gap(found, name, "multipath")
        if name != "wait-info":
            by_dal = gap(found, name, "wait-info", "paper.DAL")
            made[f"continued, {name} minus wait-info, by DAL"] = by_dal
    curves = {c.name: c for c in make_curves(found, "paper.AL", "BLEU")}  # means of the seeds
    for one, other in OWN_PATHS if found else ():
        gaps = (np.subtract(curves[one].at(x), curves[other].at(x)) for x in CONTINUED_AL)
        made[f"continued, {one} less {other}, by AL"] = ", ".join(signed(float(g)) for g in gaps)
    return made


def as_authors() -> dict[str, str]:
    """Ours with the settings of the authors' code, its switches, and that code."""
    made = {}
    theirs = points("authors-code")
    for experiment, text in (("multi30k-authors", "captions"), ("europarl-178k", "Europarl")):
        found = points(experiment)
        sets = {point["set"] for point in found}
        beside = [*found, *(point for point in theirs if point["set"] in sets)]
        ours = {
            **switched(found),
            **{f"early stop, {name}": early(found, f"{name}-allow")
               for name in ("wait-info", "multipath", "as-authors", "sum-by-batch")},
            **{f"{system}, ours less theirs": beside_theirs(beside, system)
               for system in ("wait-info", "multipath")},
        }  # fmt: skip
        made |= {f"authors' settings, {text}, {name}": figure for name, figure in ours.items()}
        for other in ("multipath", "multipath-warm"):
            made[f"authors' code, {text}, over {other}"] = gap(
                beside, "authors-wait-info", f"authors-{other}"
            )
        for system in ("wait-info", "multipath"):
            made[f"authors' code, {text}, early stop, {system}"] = early(
                beside, f"authors-{system}"
            )
        if text == "Europarl":
            for who, names in (("ours", OURS), ("the authors' code", THEIRS)):
                made[f"authors' settings, {text}, early stop at AL 2, 6, {who}"] = early_at(
                    beside, names, (2, 6)
                )
    return {name: figure for name, figure in made.items() if figure not in (NO_LATENCY, "%")}


def switched(found: Sequence[Point]) -> dict[str, str]:
    """What each switch changes, and how far wait-info is then ahead of multipath."""
    pairs = [
        *((pair, axis, by) for pair in AHEAD
          for axis, by in (("paper.AL", ""), ("paper.DAL", ", by DAL"))),
        *((pair, "paper.AL", "") for pair in SWITCHES),
    ]  # fmt: skip
    names = {point["name"] for point in found}
    return {
        f"{first} over {second}{by}": gap(found, first, second, axis)
        for (first, second), axis, by in pairs
        if first in names
    }


def beside_theirs(found: Sequence[Point], system: str) -> str:
    """Each of our seeds less the one of the authors' code, with endings allowed in both."""
    return seeds_over_one(found, f"{system}-allow", f"authors-{system}")


def seeds_over_one(found: Sequence[Point], first: str, second: str) -> str:
    one = [p for p in found if p["name"] == second]
    several = [p for p in found if p["name"] == first]
    gaps = []
    for seed in sorted({p["seed"] for p in several}):
        here = [*(p for p in several if p["seed"] == seed), *one]
        curves = {c.name: c for c in make_curves(here, "paper.AL", "BLEU")}
        area = difference(curves[first], curves[second])
        gaps += [area.mean] if area else []
    return ", ".join(map(signed, gaps)) or NO_LATENCY


def whole(found: Sequence[Point], name: str) -> str:
    """BLEU of full sentences, greedy and with a beam of 5, mean of the seeds."""
    scores = ([p["quality"]["BLEU"] for p in found if p["name"] == each]
              for each in (name, f"{name}-beam5"))  # fmt: skip
    return " and ".join(f"{np.mean(each):.1f}" for each in scores)


def full_sentences(found: Sequence[Point], text: str, kind: str = "") -> dict[str, str]:
    """Full-sentence translation with info less that without."""
    names = {point["name"] for point in found}
    made = {}
    for decoder, beam in (("greedy", ""), ("beam of 5", "-beam5")):
        first, second = (f"{name}{kind}{beam}" for name in ("full-info", "full"))
        if first in names:
            made[f"full-sentence, {text}, {decoder}"] = full_sentence(found, first, second)
    return made


def ablations(found: Sequence[Point], text: str) -> dict[str, str]:
    """Changes of wait-info, three seeds each, as far as they have been trained."""
    names = {point["name"] for point in found}
    if names & CHANGES.keys() <= {"multipath"}:
        return {}
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
    return made | stops(found, text) | full_sentences(found, text)


def stops(found: Sequence[Point], text: str) -> dict[str, str]:
    """Early stops at equal AL, as far as they have been scored."""
    names = {point["name"] for point in found}
    return {
        f"early stop at AL 2.5, {name}, {text}": early_at(found, [f"{name}-allow"], [2.5])
        for name in STOPS
        if f"{name}-allow" in names
    }


def pooled(found: Sequence[Point]) -> str:
    """How far wait-info and its changes differ, all together, as a table of systems by seeds.

    The interval of every difference is that of the residuals, which all of them share. The p-value
    is the share of permutations within the seeds that spread the systems' means as far.
    """
    runs: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(list))
    for point in found:
        if point["name"] in {"wait-info", *CHANGES} - {"multipath"}:
            runs[point["name"]][point["seed"]].append(point)
    counts = Counter(seed for seeds in runs.values() for seed in seeds)
    shared = sorted(seed for seed, count in counts.items() if 2 * count > len(runs))
    levels = [[level(seeds[seed]) for seed in shared] for seeds in runs.values()
              if seeds.keys() >= set(shared)]  # fmt: skip
    scores = np.array([found for found in levels if None not in found])
    systems, blocks = len(scores), len(shared)
    free = (systems - 1) * (blocks - 1)
    if free < 1:
        return NO_LATENCY
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


def in_the_paper() -> dict[str, str]:
    """From where to where wait-info is above the others in the paper's tables, at equal AL."""
    made = {}
    for setting in ("de-en base", "de-en big", "en-vi small"):
        curves = {c.name: c for c in published_curves(setting, "paper.AL", "BLEU_lowercase")}
        own = curves["Wait-info"]
        for name, theirs in PAPER.items():
            if theirs not in curves:
                continue
            gaps = [
                own_score - other_score
                for x in sorted({*own.xs, *curves[theirs].xs})
                if (own_score := own.at(x)) is not None
                and (other_score := curves[theirs].at(x)) is not None
            ]
            made[f"the paper, {setting}, over {name}"] = (
                f"{signed(min(gaps))} to {signed(max(gaps))}"
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, help="a folder of yours, beside what is published")
    mine = parser.parse_args().results
    published = claims()
    if mine is None:
        for name, figure in published.items():
            print(f"{name:50} {figure}")
        return
    if not mine.is_dir():
        sys.exit(f"no folder {mine}: --results of experiments.run makes one")
    MINE.append(mine)
    own = claims()
    changed = [name for name in own | published if own.get(name) != published.get(name)]
    for name in changed:
        figures = (found.get(name, "nothing") for found in (own, published))
        print("{:50} {:40} published: {}".format(name, *figures))
    if not changed:
        print(f"no figure differs: no run in {mine} is complete, or all are the same")


if __name__ == "__main__":
    main()
