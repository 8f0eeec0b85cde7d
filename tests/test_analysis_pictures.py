"""Pictures of `waitinfo analyse`: points are where their numbers say, and texts can be read."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waitinfo.analysis.analyses import ANALYSES, figures
from waitinfo.analysis.case import END, characters, pieces, tables
from waitinfo.analysis.summaries import describe, short_title
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.folder import find_model

RESULTS = Path(__file__).resolve().parents[1] / "results"
MEASURED = json.loads((RESULTS / "paper/analysis-small.json").read_text("utf-8"))["newstest2015"]
PNG_LIMIT = 1 << 16  # pixels


def drawn(what: str, found: Any, name: str | None = None) -> Any:
    """The figure, after its layout is computed; an analysis may have two."""
    for each, figure in figures(what, found):
        if each == (name or what):
            figure.canvas.draw()
            return figure
    raise KeyError(name)


def texts(figure: Any) -> str:
    """Everything that is written in a picture."""
    shown = figure.findobj(lambda artist: hasattr(artist, "get_text") and artist.get_visible())
    return "\n".join(artist.get_text() for artist in shown)


# Significance


def compared(systems: int, latencies: list[float]) -> dict[str, Any]:
    at = [{"latency": x, "difference": 0.5, "interval": [-1.0, 2.0], "p": 0.01} for x in latencies]
    against = [{"name": f"system {n}", "at": at} for n in range(systems)]
    return {"subject": "wait-info", "latency": "paper.AP", "against": against}


@pytest.mark.parametrize("systems", [1, 4, 10])
def test_points_are_at_their_latencies(systems: int) -> None:
    latencies = [0.54, 0.58, 0.62]
    figure = drawn("significance", compared(systems, latencies))
    (axes,) = figure.axes
    points = [line for line in axes.get_lines() if len(line.get_xdata()) == 1]
    places: dict[float, set[float]] = {}
    for line in points:
        (x,), (y,) = line.get_data()
        shown = line.get_transform().transform((x, y))
        back = axes.transData.inverted().transform(shown)
        assert back[0] == pytest.approx(x, abs=0.02 * np.ptp(axes.get_xlim()))
        assert back[1] == pytest.approx(y)
        assert axes.get_window_extent().contains(*shown)
        places.setdefault(float(x), set()).add(round(float(shown[0]), 2))
    assert sorted(places) == latencies
    assert all(len(found) == systems for found in places.values())  # no system hides another
    low, high = axes.get_ylim()
    assert low < -1 and high > 2  # the intervals


def test_a_system_without_a_common_latency_is_named() -> None:
    found = compared(2, [0.6])
    found["against"][1]["at"] = []
    assert "system 1: no common latency" in texts(drawn("significance", found))


def test_a_proportion_has_no_unit() -> None:
    assert short_title("paper.AP") == short_title("word.AP") == "AP"
    assert short_title("paper.AL") == "AL (tokens)" and short_title("word.LAAL") == "LAAL (words)"


# What covers what


@pytest.mark.parametrize(
    ("what", "name"), [(what, name) for what in ANALYSES for name in ANALYSES[what].pictures]
)
def test_legends_cover_no_data(what: str, name: str) -> None:
    figure = drawn(what, MEASURED[what], name)
    legends = [*figure.legends, *(a.get_legend() for a in figure.axes if a.get_legend())]
    for legend in legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)


def test_layers_differ_without_colours() -> None:
    panel = drawn("attention", MEASURED["attention"]).axes[2]
    marks = [
        (line.get_marker(), line.get_markerfacecolor() == "white")
        for line in panel.get_lines()
        if line.get_marker() != "None"
    ]
    assert len(marks) == 2 * len(MEASURED["attention"]["cross"]) == len(set(marks))


# What is left out


def test_rare_distances_do_not_set_the_scale() -> None:
    (line, *_) = drawn("attention", MEASURED["attention"]).axes[2].get_lines()
    layer = MEASURED["attention"]["cross"][0]
    kept = [b["distance"] for b in layer["by_distance"] if b["pairs"] >= 0.001 * layer["pairs"]]
    assert line.get_xdata().tolist() == kept and len(kept) < len(layer["by_distance"])


def test_what_is_beyond_a_histogram_is_counted_not_drawn() -> None:
    figure = drawn("ratio", MEASURED["ratio"])
    (bars,) = [p for p in figure.axes[1].patches if hasattr(p, "get_data")]
    difference = MEASURED["ratio"]["difference"]
    missing = difference["count"] - sum(bars.get_data().values)
    assert missing == difference["histogram"][0] + difference["histogram"][-1] == 6
    assert "not drawn, below −19.5: 6" in texts(figure)
    both = np.array(MEASURED["ratio"]["of_sentences"]["both"])
    beyond = both.sum() - both[1:-1, 1:-1].sum()
    assert f"not drawn: {beyond}" in texts(figure)


def tagged(**infos: list[float]) -> dict[str, Any]:
    edges = {"word": np.linspace(0, 6, 61).tolist(), "single": np.linspace(0, 2, 41).tolist()}
    tags = {
        tag: {"info_per_word": describe(values, edges["word"]),
              "info_of_single_tokens": describe([], edges["single"])}
        for tag, values in infos.items()
    }  # fmt: skip
    return {"edges": edges, "source": {"tags": tags}}


def test_parts_of_speech_that_are_not_drawn_are_named() -> None:
    found = tagged(NOUN=[1.0, 1.2, 2.0, 7.0, 8.0, 9.0], VERB=[9.0] * 5, INTJ=[1.0, 1.0])
    figure = drawn("pos", found, "pos-words")
    said = texts(figure)
    assert "+3" in said and "+5" in said and "words above 5.9, not drawn" in said
    assert "fewer than 5 words: INTJ 2" in said
    highest = max(
        path.vertices[:, 1].max()
        for violin in figure.axes[0].collections
        if violin.get_hatch() is None and len(violin.get_facecolor())
        for path in violin.get_paths()
    )
    assert highest < 5.9
    for name, what in (("pos-words", "words"), ("pos-single-tokens", "single-token words")):
        empty = drawn("pos", tagged(NOUN=[1.0]), name)
        assert f"no part of speech has 5 {what} or more" in texts(empty)
        assert not empty.axes[0].get_yticks().size


def early(dials: list[tuple[int, int]]) -> dict[str, Any]:
    """dials: how many stop early, and how many do not."""
    made = [
        {"k": n, "latency": {"allow": float(n)}, "early_stop": a / (a + b),
         "sentences": {"early": a, "complete": b},
         "split": {"early": {"allow": 10.0}, "complete": {"allow": 20.0}}}
        for n, (a, b) in enumerate(dials)
    ]  # fmt: skip
    return {"latency": "paper.AL", "subjects": [{"name": "wait-info", "dials": made}]}


def test_scores_of_few_sentences_are_said_to_be_missing() -> None:
    none, some, every = (
        drawn("early-stop", early(dials))
        for dials in ([(0, 3)], [(0, 60), (5, 55)], [(30, 30), (20, 40)])
    )
    assert "no point has 20 sentences" in texts(none)
    assert "wait-info, stopped early: too few" in texts(some)
    assert "points of 20 sentences or more" in texts(some)
    assert "too few" not in texts(every) and "20 sentences" not in texts(every)
    (line, *_) = some.axes[0].get_lines()
    assert line.get_ydata()[0] == 0 and not line.get_clip_on()  # seen whole


def test_systems_without_a_dial_show_none() -> None:
    found = json.loads(json.dumps(MEASURED["difficulty"]))
    found["subjects"][1] |= {"name": "full", "k": None}
    (legend,) = drawn("difficulty", found).legends
    assert [text.get_text() for text in legend.get_texts()] == ["wait-info 5", "full"]


# Case study


def case(length: int, info: float | None = 1.0, word: str = "-token") -> dict[str, Any]:
    """A source and a translation of so many tokens; the second system waits for everything."""
    source = [{"token": word, "info": info} for _ in range(length)]
    source.append({"token": END, "info": None})
    reads = {"wait-info": range(1, length + 2), "full": [length + 1] * (length + 1)}
    subjects = [
        {"name": name, "dial": "" if name == "full" else "K",
         "k": None if name == "full" else 1.0, "latency": 1.0, "text": "", "source": source,
         "written": [{**t, "read": read} for t, read in zip(source, path, strict=True)]}
        for name, path in reads.items()
    ]  # fmt: skip
    return {"line": 1, "latency": "paper.AL", "subjects": subjects}


@pytest.mark.parametrize("length", [1, 16, 44, 95, 700])
def test_labels_of_a_staircase_do_not_overlap(length: int) -> None:
    figure = drawn("case", case(length, word="Ägypten"), "case-staircase")
    axes = figure.axes[1]
    labels = axes.get_xticklabels()
    at = axes.transData.transform([(label.get_position()[0], 0) for label in labels])[:, 0]
    label = labels[0]
    turn = math.radians(label.get_rotation())
    label.set_rotation(0)
    height = label.get_window_extent().height
    assert all(b - a > height / math.sin(turn) for a, b in pairwise(at))
    assert labels[-1].get_text() == END
    assert max(figure.get_size_inches()) <= 14


@pytest.mark.parametrize("length", [44, 700])
def test_marks_of_a_staircase_do_not_hide_it(length: int) -> None:
    figure = drawn("case", case(length), "case-staircase")
    axes = figure.axes[1]
    step = np.diff(axes.transData.transform([(1, 1), (2, 2)]), axis=0)[0] * 72 / figure.dpi
    for line in axes.get_lines():
        marked = line.get_marker() not in ("None", None)
        assert marked == (length == 44)
        assert not marked or line.get_markersize() < min(step) * 1.05


def test_another_vocabulary_is_drawn_over_the_same_text() -> None:
    """Tokens of two letters and, after the second system's vocabulary, of one letter."""
    found = case(4, word="-ab")
    first, second = found["subjects"]
    letters = [{"token": text, "info": None} for text in [*["-a"] * 8, END]]
    second |= {"source": letters, "written": [{**letters[0], "read": n} for n in (2, 5, 8, 9)]}
    figure = drawn("case", found, "case-staircase")
    assert "other vocabularies" in texts(figure)
    assert "other vocabularies" not in texts(drawn("case", case(4), "case-staircase"))
    axes = figure.axes[1]
    lines = {line.get_label(): list(line.get_xdata()) for line in axes.get_lines()}
    assert lines["full"][1::2] == pytest.approx([1, 2.5, 4, 5])
    reads = [token["read"] for token in first["written"]]
    assert lines["wait-info 1"][1::2] == pytest.approx(reads)


def test_a_long_sentence_fits_into_a_picture() -> None:
    figure = drawn("case", case(2000))
    assert max(figure.get_size_inches()) * 200 < PNG_LIMIT
    assert "the first 250 of 2,001 source tokens" in texts(figure)
    assert "the first" not in texts(drawn("case", case(90)))


def test_tokens_stay_inside_their_rows() -> None:
    found = case(12, 1.25, "Donaudampfschifffahrtsgesellschaft")
    for each in (found, case(12, 1.25)):
        figure = drawn("case", each)
        for axes in figure.axes:
            box = axes.get_window_extent()
            shown = [text.get_window_extent() for text in axes.texts]
            assert min(text.x0 for text in shown) >= box.x0
            assert max(text.x1 for text in shown) <= box.x1


def test_without_info_nothing_is_said_about_it() -> None:
    with_info, without = (drawn("case", case(5, info)) for info in (1.0, None))
    assert "info above" in texts(with_info)
    assert "info" not in texts(without).replace("wait-info", "")
    stairs = drawn("case", case(5, None), "case-staircase")
    (axes,) = stairs.axes
    assert axes.get_window_extent().y1 > 0.95 * stairs.bbox.height  # no room for bars
    (legend,) = stairs.legends
    assert [text.get_text() for text in legend.get_texts()] == ["wait-info 1", "full"]


def test_bytes_are_shown_as_characters() -> None:
    tokenizer = Vocabulary.load(find_model(None)).source
    tokens = tokenizer.encode("für 東京 & Co")
    infos = [n / 10 for n in range(len(tokens))]
    found = pieces(tokenizer, tokens, infos)
    shown = [piece["token"] for piece in found]
    assert shown[:8] == ["für", "␣", "-東", "·", "·", "-京", "·", "·"]
    assert "-&" in shown and shown[-1] == END and len(shown) == len(tokens) + 1
    assert [piece["info"] for piece in found] == [*infos, None]
    cut = pieces(tokenizer, tokens[:3], infos)  # in the middle of a character
    assert [piece["token"] for piece in cut] == ["für", "␣", "-\ufffd", END]
    numbers = case(1) | {"subjects": [case(1)["subjects"][0] | {"source": found}]}
    (table,) = tables(numbers)
    assert ["3", "-東(0.20)", ""] in table.rows


def printable(character: str) -> str:
    return character if character.isprintable() else f"U+{ord(character):04X}"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=8))
def test_every_character_is_at_its_first_byte(text: str) -> None:
    wanted: list[str] = []
    for character in text:
        wanted += [printable(character), *[""] * (len(character.encode()) - 1)]
    assert characters(text.encode()) == wanted


@given(st.binary(max_size=8))
def test_broken_characters_keep_a_text_for_every_byte(code: bytes) -> None:
    found = characters(code)
    assert len(found) == len(code)
    whole = "".join(map(printable, code.decode("utf-8", "ignore")))
    assert "".join(found).replace("\ufffd", "") == whole.replace("\ufffd", "")
