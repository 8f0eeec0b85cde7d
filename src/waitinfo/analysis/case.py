"""Case study: what each policy had read when it wrote each token of one sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from waitinfo.analysis.study import Study, Subject, Translated
from waitinfo.analysis.summaries import Numbers, Table, cell, legend_below, titled
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.plot import COLOURS, curve_style, plain, style_numbers
from waitinfo.text.tokenizer import SPACE, Tokenizer

NAME, TITLE = "case", "Case study"
LENGTHS = range(10, 25)  # tokens of a sentence that fits on a page
END = "⏎"  # end-of-sentence
CONTINUED = "·"  # a byte after the first of a character
MORE, LESS, NONE = "#B03A00", "#00508C", "black"  # info above and below the average
# Sizes of the columns, in inches
LINE = 0.21
READ, WRITTEN = 1.0, 2.6  # least widths
BETWEEN, GAP = 0.16, 0.07  # between the two, and between written tokens
MARGIN, HEADING, CAPTION = 0.15, 0.35, 0.3
FONT = 7.5
SPARE = 1.05  # the same text in a similar font
MOST_ROWS = 250
# Sizes of the staircase, in inches
WIDTHS, HEIGHTS = (7.2, 14.0), (4.8, 9.0)
AROUND = 1.0, 1.9  # beside and above the steps
TREAD, RISE = 0.14, 0.085  # of a step, while the picture can grow

Layout = list[tuple[Numbers, list[list[Numbers]]]]  # each source token, and lines of written ones


def choose(study: Study) -> int:
    """The sentence asked for, or the first of a length that fits on a page."""
    lengths = [len(tokens) for tokens in study.main.evaluation.tokenized]
    if study.case is None:
        return next((i for i, n in enumerate(lengths) if n in LENGTHS), 0)
    for index in range(len(lengths)):
        if study.line(index) == study.case:
            return index
    raise WaitinfoError(
        f"--case {study.case}: is not among the {len(lengths):,} sentences analysed"
    )


def pieces(tokenizer: Tokenizer, tokens: Sequence[int], infos: Sequence[float]) -> list[Numbers]:
    """Tokens as text, with their info; a token that continues a word begins with a hyphen."""
    found = [
        {"token": text, "info": infos[number] if number < len(infos) else None}
        for number, text in enumerate(spelt(tokenizer, tokens))
    ]
    return [*found, {"token": END, "info": None}]


def spelt(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[str]:
    """The text of each token. Of a character's bytes, the first shows the character."""
    found: list[str] = []
    for are_bytes, run in groupby(tokens, tokenizer.is_byte):
        if are_bytes:
            code = bytes(int(tokenizer.piece(token)[3:-1], 16) for token in run)
            found += [f"-{text}" if text else CONTINUED for text in characters(code)]
            continue
        for token in run:
            piece = tokenizer.piece(token)
            text = piece.removeprefix(SPACE) if tokenizer.starts_word(token) else f"-{piece}"
            found.append(text or "␣")
    return found


def characters(code: bytes) -> list[str]:
    """The character at its first byte, nothing at the others; U+FFFD for bytes of no character."""
    found: list[str] = []
    while len(found) < len(code):
        rest = code[len(found) :]
        text, length = next(
            ((rest[:n].decode(), n) for n in range(1, 5) if is_character(rest[:n])), ("\ufffd", 1)
        )
        if not text.isprintable():
            text = f"U+{ord(text):04X}"
        found += [text, *[""] * (length - 1)]
    return found


def is_character(code: bytes) -> bool:
    try:
        return len(code.decode()) == 1
    except UnicodeDecodeError:
        return False


def compute(study: Study) -> Numbers:
    index = choose(study)
    return {
        "line": study.line(index),
        "latency": study.x,
        "subjects": [
            told(subject, decoded, index)
            for subject, decoded in zip(study.subjects, study.matched(), strict=True)
        ],
        "reference": study.references[index],
    }


def told(subject: Subject, decoded: Translated, index: int) -> Numbers:
    evaluation, hypothesis = subject.evaluation, decoded.hypotheses[index]
    vocabulary = evaluation.loaded.vocabulary
    written = pieces(vocabulary.target, hypothesis.tokens, hypothesis.target_info)
    return {
        "name": subject.name,
        "dial": (dial.name if (dial := evaluation.loaded.system.dial) else ""),
        "k": subject.shown(decoded.k),
        "latency": float(decoded.latencies[index]),
        "text": decoded.texts[index],
        "source": pieces(vocabulary.source, evaluation.tokenized[index], hypothesis.source_info),
        "written": [
            {**piece, "read": read} for piece, read in zip(written, hypothesis.path, strict=False)
        ],
    }


def steps(subject: Numbers) -> list[tuple[Numbers, list[Numbers]]]:
    """Every source token, and the tokens written when it was the last one read."""
    return [
        (token, [each for each in subject["written"] if each["read"] == position])
        for position, token in enumerate(subject["source"], 1)
    ]


def shown(piece: Numbers) -> str:
    return piece["token"] if piece["info"] is None else f"{piece['token']}({piece['info']:.2f})"


def title(subject: Numbers, latency: str) -> str:
    at = f"{subject['dial']} = {subject['k']:g}, " if subject["dial"] else ""
    return f"{subject['name']}, {at}{latency} {cell(subject['latency'], 1) or 'undefined'}"


def tables(found: Numbers) -> list[Table]:
    made = []
    for subject in found["subjects"]:
        rows = [
            [str(number), shown(token), " ".join(map(shown, written))]
            for number, (token, written) in enumerate(steps(subject), 1)
        ]
        name = f"Line {found['line']}: {title(subject, found['latency'])}: {subject['text']}"
        made.append(Table(name, ["", "READ", "WRITE"], rows, textual=True))
    return made


# Pictures


def average(tokens: Sequence[Numbers]) -> float:
    infos = [token["info"] for token in tokens if token["info"] is not None]
    return float(np.mean(infos)) if infos else 1.0


def shade(token: Numbers, mean: float) -> dict[str, Any]:
    """Info above the average is bold and red, below it blue, as in the paper."""
    if token["info"] is None:
        return {"color": NONE}
    above = token["info"] > mean
    return {"color": MORE if above else LESS, "fontweight": "bold" if above else "normal"}


def text_of(token: Numbers) -> str:
    if token["info"] is None:
        return plain(token["token"])
    return plain(f"{token['token']} {token['info']:.2f}")


def measure(plt: Any, figure: Any) -> Callable[[Numbers], float]:
    """How wide a token is, in inches; in bold, which is the widest."""
    renderer = figure.canvas.get_renderer()

    def width(token: Numbers) -> float:
        text = plt.Text(0, 0, text_of(token), fontsize=FONT, fontweight="bold", figure=figure)
        return SPARE * text.get_window_extent(renderer).width / figure.dpi

    return width


def lines_of(
    written: Sequence[Numbers], width: float, width_of: Callable[[Numbers], float]
) -> list[list[Numbers]]:
    """Tokens in lines of at most this width; at least one line."""
    lines: list[list[Numbers]] = [[]]
    used = 0.0
    for token in written:
        length = width_of(token) + GAP
        if used and used + length > width:
            lines.append([])
            used = 0
        lines[-1].append(token)
        used += length
    return lines


def fitting(layout: Layout) -> int:
    """How many source tokens fit into the rows of a picture; at least one."""
    rows = np.cumsum([len(lines) for _, lines in layout])
    return max(1, int((rows <= MOST_ROWS).sum()))


def draw_case(plt: Any, found: Numbers) -> Any:
    """For each policy a column: every source token, and beside it what was then written."""
    subjects = found["subjects"]
    figure = plt.figure(dpi=200)  # as saved: the width of a text depends on it
    width_of = measure(plt, figure)
    read = max([READ, *(width_of(token) for s in subjects for token in s["source"])])
    written = max([WRITTEN, *(width_of(token) + GAP for s in subjects for token in s["written"])])
    layouts: list[Layout] = [
        [(token, lines_of(tokens, written, width_of)) for token, tokens in steps(subject)]
        for subject in subjects
    ]
    count = min(map(fitting, layouts))
    layouts = [[(token, lines[:MOST_ROWS]) for token, lines in each[:count]] for each in layouts]
    rows = max(sum(len(lines) for _, lines in layout) for layout in layouts)
    width, height = read + BETWEEN + written, LINE * (rows + 1)
    whole = (width + MARGIN) * len(subjects) + MARGIN, height + HEADING + CAPTION
    figure.set_size_inches(*whole)
    for number, (subject, layout) in enumerate(zip(subjects, layouts, strict=True)):
        corner = MARGIN + number * (width + MARGIN), CAPTION
        axes = figure.add_axes((corner[0] / whole[0], corner[1] / whole[1],
                                width / whole[0], height / whole[1]))  # fmt: skip
        axes.set_xlim(0, width)
        axes.set_ylim(rows, -1)
        _draw_column(axes, subject, layout, read)
        axes.set_title(plain(title(subject, found["latency"].rpartition(".")[2])), fontsize=9)
    text = caption(subjects, count)
    figure.text(0.5, CAPTION / 2 / whole[1], text, fontsize=FONT, ha="center", va="center")
    return figure


def caption(subjects: Sequence[Numbers], count: int) -> str:
    """What the colours mean, if there are any, and what is missing."""
    tokens = [t for s in subjects for side in ("source", "written") for t in s[side]]
    parts = []
    if any(token["info"] is not None for token in tokens):
        parts.append("info above the average of its sentence: bold, red; below: blue")
    if count < (every := max(len(subject["source"]) for subject in subjects)):
        parts.append(f"the first {count:,} of {every:,} source tokens")
    return "; ".join(parts)


def _draw_column(axes: Any, subject: Numbers, layout: Layout, read: float) -> None:
    """read: where the column of source tokens ends."""
    axes.axis("off")
    start, end = read + BETWEEN, axes.get_xlim()[1]
    axes.text(read, -0.5, "READ", ha="right", va="center", fontsize=7, color="0.4")
    axes.text(start, -0.5, "WRITE", ha="left", va="center", fontsize=7, color="0.4")
    means = average(subject["source"]), average(subject["written"])
    y = 0
    for token, lines in layout:
        axes.plot([0, end], [y - 0.02, y - 0.02], color="0.85", linewidth=0.5)
        axes.text(read, y + 0.5, text_of(token), ha="right", va="center", fontsize=FONT,
                  **shade(token, means[0]))  # fmt: skip
        if lines[0]:
            dash = [read + 0.3 * BETWEEN, read + 0.7 * BETWEEN]
            axes.plot(dash, [y + 0.5, y + 0.5], color="black", linewidth=0.8)
        for line in lines:
            _draw_line(axes, start, y + 0.5, line, means[1])
            y += 1


def _draw_line(axes: Any, x: float, y: float, line: Sequence[Numbers], mean: float) -> None:
    """Tokens one after the other, each where the one before it ends."""
    before: Any = None
    for token in line:
        style = {"fontsize": FONT, "va": "center", **shade(token, mean)}
        if before is None:
            before = axes.text(x, y, text_of(token), ha="left", **style)
        else:
            before = axes.annotate(
                text_of(token), xy=(1, 0.5), xycoords=before, xytext=(72 * GAP, 0),
                textcoords="offset points", ha="left", annotation_clip=False, **style,
            )  # fmt: skip


# Staircase


def draw_staircase(plt: Any, found: Numbers) -> Any:
    """Source tokens read against target tokens written; the bars are the info of the source."""
    subjects = found["subjects"]
    source = subjects[0]["source"]
    most = max(len(subject["written"]) for subject in subjects)
    width, height = staircase_size(len(source), most)
    tread, rise = (width - AROUND[0]) / len(source), (height - AROUND[1]) / most
    if any(token["info"] is not None for token in source):
        figure, (bars, axes) = plt.subplots(
            2, 1, figsize=(width, height), layout="constrained", sharex=True,
            height_ratios=[0.7, height - AROUND[1]],
        )  # fmt: skip
        draw_bars(bars, source, tread)
    else:
        figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    mark = min(4.0, 0.7 * 72 * min(tread, rise))
    mark = mark if mark > 1.2 else 0.0
    styles = map(curve_style, style_numbers([subject["name"] for subject in subjects]))
    for number, (subject, style) in enumerate(zip(subjects, styles, strict=True)):
        size = mark if number else 1.4 * mark  # the first is seen under the second
        draw_steps(axes, subject, style, size, places(subject, source))
    label_tokens(axes, source, tread)
    if any(not same_tokens(subject["source"], source) for subject in subjects):
        note = f"those of {subjects[0]['name']}; other vocabularies where as much text is read"
        axes.set_xlabel(f"{axes.get_xlabel()}\n{plain(note)}")
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_ylabel("target tokens written")
    axes.grid(alpha=0.25, linewidth=0.6)
    handles = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    legend_below(figure, handles, 2)
    return figure


def staircase_size(read: int, written: int) -> tuple[float, float]:
    """The picture grows with the tokens, up to a limit."""
    width, height = AROUND[0] + TREAD * read, AROUND[1] + RISE * written
    return float(np.clip(width, *WIDTHS)), float(np.clip(height, *HEIGHTS))


def draw_bars(axes: Any, source: Sequence[Numbers], tread: float) -> None:
    """Hatched below the average; where tokens are too dense for that, its line shows it."""
    mean = average(source)
    infos = [0.0 if token["info"] is None else token["info"] for token in source]
    wide = tread > TREAD / 2
    axes.bar(
        np.arange(1, len(source) + 1), infos, width=0.8, linewidth=0.8 if wide else 0,
        color=["#F3B58E" if info > mean else "#9CC6E3" for info in infos],
        hatch=["" if info > mean or not wide else "////" for info in infos],
        edgecolor=[COLOURS[0] if info > mean else COLOURS[1] for info in infos],
    )  # fmt: skip
    axes.axhline(mean, color="black", linewidth=0.7, linestyle="--")
    axes.set_ylabel("info")


def places(subject: Numbers, axis: Sequence[Numbers]) -> list[float]:
    """Where each read of a subject lies on an axis of source tokens.

    Another vocabulary has other tokens: its reads lie where as much of the text has been read.
    """
    source = subject["source"]
    reads = [float(token["read"]) for token in subject["written"]]
    if same_tokens(source, axis):
        return reads
    ends, own = text_ends(source), text_ends(axis)
    read = np.interp(reads, range(len(ends)), ends)
    return np.interp(read, own, range(len(own))).tolist()


def same_tokens(one: Sequence[Numbers], other: Sequence[Numbers]) -> bool:
    return [token["token"] for token in one] == [token["token"] for token in other]


def text_ends(source: Sequence[Numbers]) -> list[float]:
    """The share of the text before each token, and of all; end-of-sentence counts one letter."""
    lengths = [max(1, len(token["token"].removeprefix("-"))) for token in source]
    ends = np.cumsum([0, *lengths])
    return (ends / ends[-1]).tolist()


def draw_steps(
    axes: Any, subject: Numbers, style: dict[str, Any], mark: float, reads: Sequence[float]
) -> None:
    """Up for every token written, to the right for every token read."""
    xs, ys = [1.0], [0]
    for count, read in enumerate(reads, 1):
        xs += [read, read]
        ys += [count - 1, count]
    marked = {"marker": style["marker"] if mark else None, "markersize": mark, "markevery": (2, 2)}
    label = plain(titled(subject["name"], subject["k"]))
    axes.plot(xs, ys, label=label, **style | marked)


def label_tokens(axes: Any, source: Sequence[Numbers], tread: float) -> None:
    """Every token, or every n-th where more would overlap; always the last."""
    every = max(1, math.ceil(0.98 * TREAD / tread))
    at = list(range(len(source), 0, -every))[::-1]
    texts = [plain(source[number - 1]["token"]) for number in at]
    axes.set_xticks(at, texts, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_xlim(0, len(source) + 1)
    some = f"; one of {every} tokens has its label" if every > 1 else ""
    axes.set_xlabel(f"source tokens read ({END}: end of the sentence{some})")
