"""The card of a bundled model, from its figures and the text in card.md."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from experiments.pages.bundled import word_lag
from experiments.pages.tables import table
from waitinfo.evaluation.points import Point
from waitinfo.trained.folder import read_config

TEXTS = Path(__file__).resolve().parent
NAMES = {"de": "German", "en": "English"}
# Spoken at K = 1 and 9 on the card.
SENTENCES = {
    "de": "Wir müssen dringend etwas gegen den Klimawandel unternehmen, bevor es zu spät ist.",
    "en": "We urgently need to do something about climate change before it is too late.",
}
WIDTH = 120
NEWS, PARLIAMENT = "newstest2015", "europarl.test-german"
USES = {
    "parallel": "Parallel text",
    "english": "English sentences, with German ones that a model wrote",
    "german": "German sentences, with English ones that a model wrote",
    "vocabulary": "Only the vocabulary was learned from",
}
CONDITIONS = {
    "": "as written", "-lower": "lower case, no punctuation", "-errors-5": "5% word errors",
    "-errors-10": "10% word errors", "-errors-15": "15% word errors",
    "-documents": "documents", "-documents-lower": "documents, no sentence ends",
}  # fmt: skip


@dataclass(frozen=True)
class Facts:
    """What the card of a model is made of."""

    name: str
    languages: dict[str, str]
    packed: Path
    points: list[Point]
    measured: dict[str, Any]

    def at(self, set_name: str, k: float = 5.0) -> Point | None:
        """The point of a test set at a dial value."""
        found = (p for p in self.points if (p["name"], p["set"]) == (self.name, set_name))
        return next((p for p in found if p["k"] == k), None)

    def dials(self, *set_names: str) -> list[float]:
        """Dial values with points, in order."""
        own = (p for p in self.points if p["name"] == self.name)
        return sorted({p["k"] for p in own if p["set"] in set_names})


def figures(point: Point | None, columns: Iterable[str]) -> list[str]:
    """BLEU and latencies, empty where there is no point."""
    if point is None:
        return ["" for _ in columns]
    known = {
        "BLEU": point["quality"]["BLEU"],
        "AL": point["paper"]["AL"],
        "LAAL": word_lag(point),
    }
    return [f"{known[column]:.1f}" for column in columns]


WHOLE, SHORT = ("BLEU", "AL", "LAAL"), ("BLEU", "LAAL")


def scores(facts: Facts) -> str:
    """BLEU, AL and LAAL as written, BLEU and LAAL as spoken, at every K."""
    parts = {
        NEWS: (NEWS, WHOLE),
        f"{NEWS}-lower": (f"{NEWS}, spoken", SHORT),
        PARLIAMENT: ("Europarl test", WHOLE),
        f"{PARLIAMENT}-lower": ("Europarl test, spoken", SHORT),
    }
    return by_dial(facts, parts)


def documents(facts: Facts) -> str:
    """BLEU and LAAL of streams of many sentences, if they were scored."""
    parts = {
        f"{name}-{kind}": (f"{title}{ends}", SHORT)
        for name, title in ((NEWS, NEWS), (PARLIAMENT, "Europarl test"))
        for kind, ends in (("documents", ""), ("documents-lower", ", no sentence ends"))
    }
    if not facts.dials(*parts):
        return ""
    return (
        "**Unsegmented text.** 25 sentences at a time are one stream; *no sentence ends*: without "
        "any sign of where one ends. LAAL is LongLAAL: over the whole stream.\n\n"
        f"{by_dial(facts, parts)}\n\n"
    )


def by_dial(facts: Facts, parts: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """Columns of those sets that have points: their titles, and what is shown of each."""
    known = {name: part for name, part in parts.items() if facts.dials(name)}
    heads = ["K"]
    for title, columns in known.values():
        heads += [f"{title}: {columns[0]}", *columns[1:]]
    rows = []
    for k in facts.dials(*known):
        cells = (figures(facts.at(name, k), columns) for name, (_, columns) in known.items())
        rows.append([f"{k:g}", *chain(*cells)])
    return table(heads, rows).strip()


def conditions(facts: Facts) -> str:
    rows = []
    for suffix, title in CONDITIONS.items():
        if point := facts.at(NEWS + suffix):
            length = f"{point['length_ratio']:.2f}"
            rows.append(
                [
                    title,
                    *figures(point, ("BLEU", "LAAL")),
                    f"{point['quality']['chrF']:.1f}",
                    length,
                ]
            )
    return table(["", "BLEU", "LAAL", "chrF", "length / reference"], rows).strip()


def data(facts: Facts) -> str:
    """Tables of the sources, by what they were used for."""
    sources = tomllib.loads((TEXTS / "sources.toml").read_text("utf-8"))["source"]
    parts = []
    for use, title in USES.items():
        rows = [
            [source["title"], source["amount"], source["licence"]]
            for source in sources
            if source["use"] == use and facts.name in source.get("models", [facts.name])
        ]
        if rows:
            parts.append(table([title, "amount", "source, licence"], rows))
    return "\n".join(parts).strip()


def training(facts: Facts) -> str:
    """Sentences about updates, text and time, where they are known."""
    found = facts.measured.get("training")
    if found is None:
        return ""
    before = [f"with {amount(run)}, then " for run in facts.measured.get("before", [])]
    machine = found["environment"].get("gpu") or "a CPU"
    return f"It was trained on one {machine} {''.join(before)}with {amount(found)}. "


def amount(run: dict[str, Any]) -> str:
    """How much a run has learned from, and for how long."""
    last, settings = run["last"], run["settings"]["training"]
    pairs = run["corpus"]["splits"]["train"]["pairs"]
    return (
        f"{last['update']:,} updates of {settings['batch_tokens']:,} tokens in "
        f"{last['minutes']:.0f} minutes ({last['epoch']:.1f} epochs of {pairs:,} pairs, copies "
        "included)"
    )


def packing(facts: Facts) -> str:
    """What packing costs."""
    points = [point for point in facts.points if (point["set"], point["k"]) == (NEWS, 5.0)]
    whole = next((p for p in points if p["name"] == f"{facts.name}-float32"), None)
    if whole is None:
        return ""
    packed = next((p for p in points if p is not whole and p["system"] == whole["system"]), None)
    if packed is None:
        return ""
    before, after = (point["quality"]["BLEU"] for point in (whole, packed))
    return (
        f"**Packing** changes BLEU from {before:.2f} to {after:.2f} (newstest2015, K = 5, "
        f"{whole['system']}).\n\n"
    )


def timing(facts: Facts) -> str:
    timed = next((p["timed"] for p in facts.points if p.get("timed")), None)
    if timed is None:
        return ""
    return (
        "**On one CPU core**, as `waitinfo translate` runs it, the model takes "
        f"{timed['ms_per_source_word']:.1f} ms per source word on average (95th percentile "
        f"{timed['ms_per_source_word_95th']:.1f} ms). In fast speech, three words a second, a "
        "word takes 333 ms. The last words of a sentence appear "
        f"{timed['ms_behind_at_the_end']:.0f} ms after its end "
        "(K = 5, 300 sentences of the Europarl test).\n\n"
    )


def weaknesses(facts: Facts) -> str:
    """What the figures show, and what is written by hand for all models or for this one."""
    lines = []
    everyday, spoken = (facts.measured[name] for name in ("everyday", "everyday-spoken"))
    lines.append(
        f"- Of {everyday['sentences']} everyday sentences, {100 - everyday['right']:.0f}% do not "
        f"become an acceptable translation ({100 - spoken['right']:.0f}% without capitals and "
        "punctuation)."
    )
    written, lower = facts.at(NEWS), facts.at(f"{NEWS}-lower")
    if written and lower:
        before, after = (point["quality"]["BLEU"] for point in (written, lower))
        lines.append(
            f"- Without capitals and punctuation, BLEU is {after:.1f} instead of {before:.1f} "
            "(newstest2015, K = 5)."
        )
    if written:
        ratio = 100 * (written["length_ratio"] - 1)
        kind = "longer" if ratio > 0 else "shorter"
        lines.append(f"- Its output is {abs(ratio):.1f}% {kind} than the reference there.")
    by_hand = (TEXTS / "weaknesses.md", TEXTS / f"weaknesses.{facts.name}.md")
    lines += [path.read_text("utf-8").strip() for path in by_hand if path.exists()]
    return "\n".join(lines)


def transcript(facts: Facts) -> str:
    """What `waitinfo translate` prints at two latencies."""
    sentence = SENTENCES[facts.languages["source"]]
    model = "" if facts.name == "de-en" else f"--model {facts.name} "
    lines = []
    for k in ("1", "9"):
        command = ["translate", "--model", str(facts.packed), "--k", k, sentence]
        done = subprocess.run(
            [sys.executable, "-m", "waitinfo", *command], capture_output=True, text=True, check=True
        )
        lines += [f'$ waitinfo translate {model}--k {k} "{sentence}"', done.stdout.strip()]
    return "\n".join(lines)


def lags(facts: Facts) -> list[float]:
    """The calibrated lags, smallest and largest, in tenths that can be asked for."""
    systems = json.loads((facts.packed / "calibration.json").read_text("utf-8"))["systems"]
    points = systems[read_config(facts.packed)["system"]["name"]]["points"]
    found = [point["lag"] for point in points]
    return [math.ceil(10 * min(found)) / 10, math.floor(10 * max(found)) / 10]


def wrapped(text: str) -> str:
    """Paragraphs in lines of a fixed width; tables, lists, headings and code stay as they are."""
    blocks = [
        block if re.match(r"[|#`-]", block) else textwrap.fill(block, WIDTH, break_on_hyphens=False)
        for block in text.strip().split("\n\n")
    ]
    return "\n\n".join(blocks) + "\n"


def make_card(facts: Facts, examples: Path) -> str:
    shape = read_config(facts.packed)["model"]
    size = sum(path.stat().st_size for path in facts.packed.glob("*.safetensors"))
    source, target = (NAMES[facts.languages[side]] for side in ("source", "target"))
    swapped = "" if facts.languages["source"] == "de" else "Their English sides are the sources. "
    least, most = lags(facts)
    text = (TEXTS / "card.md").read_text("utf-8").format(
        source_code=facts.languages["source"], target_code=facts.languages["target"],
        name=facts.name, source=source, target=target, transcript=transcript(facts),
        width=shape["width"], heads=shape["heads"], ffn=shape["ffn"],
        encoder_layers=shape["encoder_layers"], decoder_layers=shape["decoder_layers"],
        vocabulary=f"{shape['source_vocabulary']:,}",
        parameters=f"{facts.points[0]['model']['parameters'] / 1e6:.1f}",
        megabytes=f"{size / 1e6:.0f}", least_lag=f"{least:.1f}", most_lag=f"{most:.1f}",
        training=training(facts), data=data(facts), scores=scores(facts),
        documents=documents(facts), conditions=conditions(facts), packing=packing(facts),
        timing=timing(facts), examples=examples.read_text("utf-8").strip(),
        weaknesses=weaknesses(facts), direction_note=swapped,
    )  # fmt: skip
    return wrapped(text)
