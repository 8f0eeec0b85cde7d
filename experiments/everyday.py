"""Everyday sentences, translated and judged: `python -m experiments.everyday [MODEL]`.

    python -m experiments.everyday --k 5
    python -m experiments.everyday WORK/models/en-de --lag 4 --spoken --show all
    python -m experiments.everyday en-de --into README.md

Prints, for each subject and in all, how many of the sentences in experiments/data become
one of their acceptable translations, and chrF. Which way to translate follows from the
model's languages. Full-sentence models use a beam. `--table` prints ten sentences at equal
distances in the set as a table instead, as written and without capitals and punctuation; `--into`
puts it into a page, between `<!-- everyday de-en -->` and `<!-- end -->`.

Each line of the files has both languages: the first sentence of one is the source of all sentences
of the other. English to German has a file of its own, and that of German to English the other way
round. A translation is right if it is one of the acceptable ones, except for capitals, punctuation,
contractions and digits; chrF shows how far off others are.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

from experiments.pages.tables import put_into
from waitinfo.distillation.filters import chrf
from waitinfo.errors import unknown
from waitinfo.streaming.lag import Dials
from waitinfo.text.speech.speaker import lower_without_punctuation
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import LoadedModel, load_model
from waitinfo.translation.decoding import TranslationOptions
from waitinfo.translation.lines import translations

DATA = Path(__file__).parent / "data"
# The files of each direction; a file is named after its columns.
FILES = {"de-en": ("de-en",), "en-de": ("en-de", "de-en")}
PATTERN = re.compile(r"\[([^\]]*)\]")
CLOSEST = 16  # acceptable translations compared by chrF, those with the most words in common
CONTRACTIONS = {
    "can't": "can not", "cannot": "can not", "won't": "will not", "let's": "let us",
    "geht's": "geht es", "gibt's": "gibt es",
}  # fmt: skip
ENDINGS = {
    "n't": " not", "'re": " are", "'ve": " have", "'ll": " will", "'m": " am", "'d": " would",
    "'s": " is",
}  # fmt: skip
DIGITS = {
    "one": "1", "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7",
    "eight": "8", "nine": "9", "ten": "10", "twelve": "12", "zwei": "2", "drei": "3", "vier": "4",
    "fünf": "5", "sechs": "6", "sieben": "7", "acht": "8", "neun": "9", "zehn": "10", "zwölf": "12",
}  # fmt: skip


class Item(NamedTuple):
    """A sentence and all its acceptable translations."""

    subject: str
    source: str
    translations: list[str]


def expand(text: str) -> list[str]:
    """All sentences of a pattern: `a [b|c] d || e` is `a b d`, `a c d` and `e`."""
    found = []
    for pattern in text.split(" || "):
        parts = PATTERN.split(pattern)  # every other part is a list of alternatives
        choices = [part.split("|") if n % 2 else [part] for n, part in enumerate(parts)]
        found += [" ".join("".join(chosen).split()) for chosen in product(*choices)]
    return list(dict.fromkeys(found))


def read_set(source: str = "de", target: str = "en") -> list[Item]:
    """The sentences from one language to the other."""
    direction = f"{source}-{target}"
    if direction not in FILES:
        raise unknown("languages", direction, FILES)
    items = []
    for name in FILES[direction]:
        text = (DATA / f"everyday.{name}.tsv").read_text("utf-8")
        for line in text.splitlines():
            if not line.startswith("#"):
                subject, *sides = line.split("\t")
                sentences = dict(zip(name.split("-"), map(expand, sides), strict=True))
                items.append(Item(subject, sentences[source][0], sentences[target]))
    return items


def plain(text: str) -> str:
    """What is compared: lower case, no punctuation, no contractions, small numbers as digits."""
    words = []
    for word in lower_without_punctuation(text.replace("’", "'")).split():
        full = CONTRACTIONS.get(word)
        if full is None:
            ending = next((e for e in ENDINGS if word.endswith(e) and word != e), "")
            full = word.removesuffix(ending) + ENDINGS.get(ending, "")
        words += [DIGITS.get(part, part) for part in full.split()]
    return " ".join(words)


@dataclass(frozen=True)
class Verdict:
    """What became of one sentence."""

    item: Item
    translation: str
    right: bool
    chrf: float  # against the closest acceptable translation


def judge(item: Item, translation: str) -> Verdict:
    """Whether a translation is acceptable, and its chrF."""
    given = plain(translation)
    right = given in {plain(text) for text in item.translations}
    known = set(given.split())
    # A few references with the most words in common: the closest one is among them.
    distance = {text: len(known ^ set(plain(text).split())) for text in item.translations}
    closest = sorted(item.translations, key=lambda text: distance[text])[:CLOSEST]
    return Verdict(item, translation, right, max(chrf(text)(translation) for text in closest))


def judge_all(items: Sequence[Item], translations: Sequence[str]) -> list[Verdict]:
    return [judge(*pair) for pair in zip(items, translations, strict=True)]


def summary(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """Mean chrF, and the share of right translations, both in percent."""
    count = len(verdicts)
    right = sum(verdict.right for verdict in verdicts)
    return sum(verdict.chrf for verdict in verdicts) / count, 100 * right / count


SHOWN = ("wrong", "right", "all", "none")
EXAMPLES = 10  # rows of the table
NAMES = {"de": "German", "en": "English"}
MARKS = {True: "✓", False: "✗"}


def translate(loaded: LoadedModel, sources: list[str], options: TranslationOptions) -> list[str]:
    found = {number: text for number, text, _ in translations(loaded, sources, options)}
    return [found[number] for number in range(len(sources))]


def sources_of(items: list[Item], spoken: bool) -> list[str]:
    sources = [item.source for item in items]
    return list(map(lower_without_punctuation, sources)) if spoken else sources


def table(verdicts: list[Verdict]) -> Iterator[str]:
    subjects = dict.fromkeys(verdict.item.subject for verdict in verdicts)
    for subject in (*subjects, "all"):
        some = [v for v in verdicts if subject in (v.item.subject, "all")]
        chrf, _ = summary(some)
        right = sum(verdict.right for verdict in some)
        yield f"{subject:12} {right:4} of {len(some):4} right   chrF {chrf:5.1f}"


def judged(
    loaded: LoadedModel, items: list[Item], spoken: bool, options: TranslationOptions
) -> list[Verdict]:
    return judge_all(items, translate(loaded, sources_of(items, spoken), options))


def in_short(verdicts: list[Verdict]) -> str:
    chrf, right = summary(verdicts)
    return f"{right:.0f}% right, chrF {chrf:.1f}"


def examples(written: list[Verdict], spoken: list[Verdict], direction: str) -> str:
    """A table of a few sentences at equal distances, and a line about all of them."""
    step = len(written) / EXAMPLES
    rows = [int(n * step) for n in range(EXAMPLES)]
    source, target = (NAMES[code] for code in direction.split("-"))
    heads = [source, target, f"{target}, from lower case without punctuation"]
    lines = [f"| {' | '.join(heads)} |", "|---|---|---|"]
    for row in rows:
        cells = [f"{MARKS[v.right]} {v.translation}" for v in (written[row], spoken[row])]
        lines.append(f"| {' | '.join([written[row].item.source, *cells])} |")
    lines.append(f"\nAll {len(written)}: {in_short(written)}; without capitals and punctuation: ")
    return "\n".join(lines) + f"{in_short(spoken)}.\n"


def refresh(page: Path, direction: str, made: str) -> None:
    """Replace what a page has between the marks of a direction."""
    mark = f"everyday {direction}"
    text = put_into(page.read_text("utf-8"), mark, made)
    if text is None:
        places = f"<!-- {mark} --> and <!-- end -->"
        sys.exit(f"{page}: has no place for the table: {places}, each on a line")
    page.write_text(text, "utf-8")


def report(verdicts: list[Verdict], shown: str) -> None:
    for verdict in verdicts:
        if shown in ("all", "right" if verdict.right else "wrong"):
            mark = "+" if verdict.right else "-"
            print(f"{mark} {verdict.item.source}\n  {verdict.translation}  ({verdict.chrf:.0f})")
    print("\n".join(table(verdicts)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder or a bundled model [default: de-en]")
    dial = parser.add_mutually_exclusive_group()
    dial.add_argument("--k", type=float)
    dial.add_argument("--lag", type=float)
    parser.add_argument("--beam", type=int, default=5, help="of full-sentence models")
    parser.add_argument("--spoken", action="store_true", help="no capitals, no punctuation")
    parser.add_argument("--show", choices=SHOWN, default="wrong", help="sentences to print")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--table", action="store_true", help="print ten sentences as a table")
    parser.add_argument("--into", type=Path, help="put that table into this page")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> None:
    given = parse()
    loaded = load_model(find_model(given.model), given.device, "auto")
    source, target = loaded.languages.source or "", loaded.languages.target or ""
    items = read_set(source, target)
    beam = 1 if loaded.system.simultaneous else given.beam
    k = given.k
    if given.lag is not None:
        k = Dials(loaded.folder, loaded.system).at_lag(given.lag)
    options = TranslationOptions(k=k, beam=beam)
    if given.table or given.into:
        both = (judged(loaded, items, spoken, options) for spoken in (False, True))
        made = examples(*both, f"{source}-{target}")
        if given.into:
            refresh(given.into, f"{source}-{target}", made)
        else:
            print(made, end="")
        return
    verdicts = judged(loaded, items, given.spoken, options)
    report(verdicts, given.show)
    if given.json:
        chrf, right = summary(verdicts)
        record = {"chrF": chrf, "right": right, "sentences": len(verdicts), "k": k, "beam": beam,
                  "spoken": given.spoken}  # fmt: skip
        given.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
