"""Info by part of speech: of whole words, and of words that are a single token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from waitinfo.analysis.study import Study
from waitinfo.analysis.summaries import Numbers, Table, cell, describe, percent
from waitinfo.analysis.tagger import CONTENT, FUNCTION, TAGS, Tagger
from waitinfo.analysis.words import Word, words_of
from waitinfo.text.tokenizer import Tokenizer

NAME, TITLE = "pos", "Info by part of speech"
SUM_EDGES = tuple(np.linspace(0, 6, 61).tolist())  # info of a whole word
SINGLE_EDGES = tuple(np.linspace(0, 2, 41).tolist())  # info of one token
KINDS = {"content words": CONTENT, "function words": FUNCTION}


def compute(study: Study) -> Numbers:
    vocabulary = study.main.evaluation.loaded.vocabulary
    sides = {
        "source": (vocabulary.source, study.sources, [pair.source for pair in study.infos]),
        "target": (vocabulary.target, study.references, [pair.target for pair in study.infos]),
    }
    found: Numbers = {"edges": {"word": SUM_EDGES, "single": SINGLE_EDGES}}
    for side, tagger in study.taggers.items():
        study.progress.stage(f"words of the {side}")
        tokenizer, texts, infos = sides[side]
        found[side] = {"tagger": tagger.about, **by_tag(tokenizer, texts, infos, tagger)}
    return found


def by_tag(
    tokenizer: Tokenizer, texts: Sequence[str], infos: Sequence[Sequence[float]], tagger: Tagger
) -> Numbers:
    """Numbers of every part of speech, and of content and function words together."""
    words = [words_of(tokenizer, text) for text in texts]
    tags = tagger.tag([[word.text for word in sentence] for sentence in words])
    groups: dict[str, list[tuple[Word, list[float]]]] = defaultdict(list)
    for sentence, sentence_tags, values in zip(words, tags, infos, strict=True):
        for word, tag in zip(sentence, sentence_tags, strict=True):
            groups[tag].append((word, [values[n] for n in word.tokens]))
    kinds = {kind: [w for tag in tags for w in groups[tag]] for kind, tags in KINDS.items()}
    return {
        "kinds": {kind: numbers(found) for kind, found in kinds.items() if found},
        "tags": {tag: numbers(groups[tag]) for tag in TAGS if groups[tag]},
    }


def numbers(words: Sequence[tuple[Word, list[float]]]) -> Numbers:
    tokens = [value for _, values in words for value in values]
    single = [values[0] for word, values in words if len(values) == 1 and word.whole]
    return {
        "words": len(words),
        "info_per_word": describe((sum(values) for _, values in words), SUM_EDGES),
        "info_per_token": sum(tokens) / len(tokens),
        "tokens_per_word": len(tokens) / len(words),
        "info_of_single_tokens": describe(single, SINGLE_EDGES),
    }


def tables(found: Numbers) -> list[Table]:
    made = []
    for side in ("source", "target"):
        if side not in found:
            continue
        rows = [
            [
                name,
                f"{each['words']:,}",
                cell(each["tokens_per_word"]),
                cell(each["info_per_word"]["mean"]),
                cell(each["info_per_token"]),
                f"{each['info_of_single_tokens']['count']:,}",
                cell(each["info_of_single_tokens"].get("mean")),
            ]
            for group in ("kinds", "tags")
            for name, each in found[side][group].items()
        ]
        heads = ["", "words", "tokens per word", "info per word", "info per token",
                 "single-token words", "their info"]  # fmt: skip
        made.append(Table(f"Info of the {side}'s words. {tagger_line(found[side])}", heads, rows))
    return made


def tagger_line(side: Numbers) -> str:
    about = side["tagger"]
    if "accuracy" not in about:
        return f"Tagged by {about['kind']}."
    return (
        f"Tagger: {about['kind']}, trained on {about['train']}; it tags "
        f"{percent(about['accuracy'])} of the words of {about['test']} correctly."
    )
