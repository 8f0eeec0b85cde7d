"""Everyday sentences, translated and judged: `python experiments/everyday.py [MODEL]`.

    python experiments/everyday.py --k 5
    python experiments/everyday.py WORK/models/en-de --lag 4 --spoken --show all

Prints, for each subject and in all, how many of the sentences in
src/waitinfo/evaluation/data/everyday.de-en.tsv become one of their acceptable translations, and
chrF. Which way to translate follows from the model's languages. Full-sentence models use a beam.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from waitinfo.evaluation.everyday import Item, Verdict, judge_all, read_set, summary
from waitinfo.model.bundled import find_model
from waitinfo.model.saving import LoadedModel, load_model
from waitinfo.streaming.lag import Dials
from waitinfo.text.speech.marks import lower_without_punctuation
from waitinfo.translation.lines import translations
from waitinfo.translation.options import TranslationOptions

SHOWN = ("wrong", "right", "all", "none")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a folder or a bundled model [default: de-en]")
    dial = parser.add_mutually_exclusive_group()
    dial.add_argument("--k", type=float)
    dial.add_argument("--lag", type=float)
    parser.add_argument("--beam", type=int, default=5, help="of full-sentence models")
    parser.add_argument("--spoken", action="store_true", help="no capitals, no punctuation")
    parser.add_argument("--show", choices=SHOWN, default="wrong", help="sentences to print")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    loaded = load_model(find_model(given.model), given.device, "auto")
    languages = loaded.languages
    items = read_set(languages.source or "", languages.target or "")
    beam = 1 if loaded.system.simultaneous else given.beam
    k = given.k
    if given.lag is not None:
        k = Dials(loaded.folder, loaded.system).at_lag(given.lag)
    options = TranslationOptions(k=k, beam=beam)
    verdicts = judge_all(items, translate(loaded, sources_of(items, given.spoken), options))
    for verdict in verdicts:
        if given.show in ("all", "right" if verdict.right else "wrong"):
            mark = "+" if verdict.right else "-"
            print(f"{mark} {verdict.item.source}\n  {verdict.translation}  ({verdict.chrf:.0f})")
    print("\n".join(table(verdicts)))
    if given.json:
        chrf, right = summary(verdicts)
        record = {"chrF": chrf, "right": right, "sentences": len(verdicts), "k": k, "beam": beam,
                  "spoken": given.spoken}  # fmt: skip
        given.json.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
