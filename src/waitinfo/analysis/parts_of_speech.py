"""Info by part of speech: of whole words, and of words that are a single token."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waitinfo.analysis.study import Study
from waitinfo.analysis.summaries import (
    GREY,
    Numbers,
    Table,
    cell,
    describe,
    legend_below,
    percent,
    say,
)
from waitinfo.analysis.tagger import CONTENT, FUNCTION, TAGS, Tagger
from waitinfo.evaluation.plot import COLOURS
from waitinfo.text.files import normalise
from waitinfo.text.tokenizer import SPACE, Tokenizer

NAME, TITLE = "pos", "Info by part of speech"
SUM_EDGES = tuple(np.linspace(0, 6, 61).tolist())  # info of a whole word
SINGLE_EDGES = tuple(np.linspace(0, 2, 41).tolist())  # info of one token
KINDS = {"content words": CONTENT, "function words": FUNCTION}
FEWEST = 5  # words of a part of speech
# Numbers with their separators; English clitics; runs of letters and digits; single other signs.
WORD = re.compile(
    r"\d+(?:[.,:]\d+)*(?!\w)"
    r"|[^\W\d_]+(?=n['’]t\b)|n['’]t\b|['’](?:s|re|ve|ll|d|m)\b"
    r"|\w+|[^\w\s]",
    re.IGNORECASE,
)
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class TokenizedWord:
    """A word and the positions of its tokens in the sentence.

    `whole` says that its tokens hold nothing else: a token may also span a clitic's border.
    """

    text: str
    tokens: tuple[int, ...]
    whole: bool


def token_spans(tokenizer: Tokenizer, chunk: str) -> list[tuple[int, int]]:
    """Start and end of every token of a chunk without spaces, in characters."""
    spans = []
    at, held = 0, b""  # held: bytes of a character that is not complete
    for token in tokenizer.encode(chunk):
        piece = tokenizer.piece(token)
        found = BYTE.fullmatch(piece)
        held = held + bytes.fromhex(found[1]) if found else b""
        if found:
            try:
                length = len(held.decode("utf-8"))
                held = b""
            except UnicodeDecodeError:
                length = 0
        elif piece == "<unk>":
            length = len(chunk) - at
        else:
            length = len(piece.removeprefix(SPACE))
        spans.append((at, min(at + length, len(chunk))))
        at = spans[-1][1]
    return spans


def words_of(tokenizer: Tokenizer, text: str) -> list[TokenizedWord]:
    """The words of a text; a token belongs to the word that its first character is in.

    A word without a token of its own, because one token spans it and the word before, is left out.
    """
    found: list[TokenizedWord] = []
    first = 0  # position of the chunk's first token in the sentence
    for chunk in normalise(text).split():
        spans = token_spans(tokenizer, chunk)
        for match in WORD.finditer(chunk):
            start, end = match.span()
            own = [n for n, (a, b) in enumerate(spans) if start <= a < end or (a == b == start)]
            if own:
                exact = spans[own[0]][0] == start and spans[own[-1]][1] == end
                found.append(TokenizedWord(match[0], tuple(first + n for n in own), exact))
        first += len(spans)
    return found


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
    groups: dict[str, list[tuple[TokenizedWord, list[float]]]] = defaultdict(list)
    for sentence, sentence_tags, values in zip(words, tags, infos, strict=True):
        for word, tag in zip(sentence, sentence_tags, strict=True):
            groups[tag].append((word, [values[n] for n in word.tokens]))
    kinds = {kind: [w for tag in tags for w in groups[tag]] for kind, tags in KINDS.items()}
    return {
        "kinds": {kind: numbers(found) for kind, found in kinds.items() if found},
        "tags": {tag: numbers(groups[tag]) for tag in TAGS if groups[tag]},
    }


def numbers(words: Sequence[tuple[TokenizedWord, list[float]]]) -> Numbers:
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


# Pictures


def tag_style(tag: str) -> dict[str, Any]:
    if tag in CONTENT:
        return {"facecolor": "#F3B58E", "edgecolor": COLOURS[0]}
    if tag in FUNCTION:
        return {"facecolor": "#9CC6E3", "edgecolor": COLOURS[1], "hatch": "////"}
    return {"facecolor": "0.9", "edgecolor": GREY}


def draw_words(plt: Any, found: Numbers) -> Any:
    label = "info of a word (its tokens' sum)"
    return draw_violins(plt, found, "info_per_word", "word", "words", label)


def draw_single_tokens(plt: Any, found: Numbers) -> Any:
    what = "single-token words"
    return draw_violins(plt, found, "info_of_single_tokens", "single", what, f"info of {what}")


def draw_violins(plt: Any, found: Numbers, field: str, edges: str, what: str, label: str) -> Any:
    sides = [side for side in ("source", "target") if side in found]
    figure, panels = plt.subplots(
        len(sides), 1, figsize=(7.2, 3.0 * len(sides) + 0.3), layout="constrained", squeeze=False
    )
    for side, axes in zip(sides, panels[:, 0], strict=True):
        tags = {
            tag: each[field]
            for tag, each in found[side]["tags"].items()
            if each[field]["count"] and tag not in ("SYM", "X")  # as in the paper
        }
        axes.set_title(side, fontsize=10, pad=14)
        axes.set_ylabel(label)
        # The info of a word has no limit; that of a token is below 2.
        draw_tags(axes, tags, found["edges"][edges], what, limited=edges == "single")
    names = {"content words": "NOUN", "function words": "DET", "others": "X"}
    proxies = [
        plt.Rectangle((0, 0), 1, 1, **tag_style(tag), linewidth=0.8, label=name)
        for name, tag in names.items()
    ]
    legend_below(figure, proxies, len(proxies))
    return figure


def draw_tags(
    axes: Any, tags: dict[str, Numbers], edges: Sequence[float], what: str, limited: bool
) -> None:
    """A violin for each part of speech with enough words, sorted by mean info."""
    order = [tag for tag in tags if tags[tag]["count"] >= FEWEST]
    order.sort(key=lambda tag: -tags[tag]["mean"])
    if not order:
        say(axes, f"no part of speech has {FEWEST} {what} or more")
        return
    for x, tag in enumerate(order):
        violin(axes, x, tags[tag], edges if limited else edges[:-1], tag)
    axes.set_xticks(range(len(order)), order, fontsize=7.5)
    for tick, tag in zip(axes.get_xticklabels(), order, strict=True):
        tick.set_color(tag_style(tag)["edgecolor"])
    axes.axhline(1, color=GREY, linewidth=0.8, linestyle=":", zorder=0)
    if not limited:
        beyond = [tags[tag]["histogram"][-1] for tag in order]
        count_beyond(axes, beyond, f"{what} above {edges[-2]:g}")
    if few := [f"{tag} {each['count']}" for tag, each in tags.items() if tag not in order]:
        text = f"not drawn, fewer than {FEWEST} {what}: {', '.join(few)}"
        axes.set_xlabel(text, fontsize=7, color=GREY)


def violin(axes: Any, x: float, found: Numbers, edges: Sequence[float], tag: str) -> None:
    """A violin from a histogram, with the quartiles as a bar and the median as a dot."""
    counts = np.asarray(found["histogram"][: len(edges) - 1], np.float64)
    middles = (np.asarray(edges[1:]) + np.asarray(edges[:-1])) / 2
    smooth = np.convolve(counts, [0.25, 0.5, 0.25], "same")
    half = 0.42 * smooth / max(smooth.max(), 1e-9)
    shown = np.flatnonzero(half > 0.004)
    if len(shown):
        inside = slice(shown[0], shown[-1] + 1)
        axes.fill_betweenx(
            middles[inside], x - half[inside], x + half[inside], linewidth=0.8, **tag_style(tag)
        )
    quantiles = found["quantiles"]
    axes.vlines(x, quantiles["25"], quantiles["75"], color="black", linewidth=2.6, zorder=3)
    axes.plot(
        x, quantiles["50"], "o", color="white", markeredgecolor="black", markersize=4, zorder=4
    )


def count_beyond(axes: Any, beyond: Sequence[int], what: str) -> None:
    """The last bin also holds everything above it: its words are counted, not drawn."""
    for x, count in enumerate(beyond):
        if count:
            axes.text(
                x, 1.01, f"+{count}", transform=axes.get_xaxis_transform(), ha="center",
                va="bottom", fontsize=6.5, color=GREY,
            )  # fmt: skip
    if any(beyond):
        axes.set_title(f"+n: {what}, not drawn", loc="right", fontsize=7, color=GREY, pad=14)
