"""All analyses by name, and running them: numbers, pictures and the report in one folder."""

from __future__ import annotations

import base64
import html
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import waitinfo
from waitinfo.analysis import (
    case,
    difficulty,
    early_stop,
    info_attention,
    parts_of_speech,
    ratio,
    significance,
)
from waitinfo.analysis.forced_decoding import require_attention, require_info
from waitinfo.analysis.study import Study
from waitinfo.analysis.summaries import Numbers, Table, for_json
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.plot import STYLE, pyplot, save_figure

PAGE_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-bottom: 1px solid #ccc; }
figure { margin: 1rem 0; } img { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 0.85rem; margin: 0.3rem 0 1.2rem; }
caption { text-align: left; font-style: italic; padding: 0.4rem 0; }
th, td { padding: 0.15rem 0.6rem; border-bottom: 1px solid #e4e4e4; text-align: right; }
th { border-bottom: 1px solid #777; vertical-align: bottom; }
th:first-child, td:first-child, .text td { text-align: left; }
.wide { overflow-x: auto; }
@media print { h2 { break-after: avoid; } figure, table { break-inside: avoid; } }
"""


def table_html(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    kind = ' class="text"' if table.textual else ""
    return (
        f'<div class="wide"><table{kind}><caption>{html.escape(table.title)}</caption>'
        f"<thead>{row(table.heads, 'th')}</thead><tbody>{body}</tbody></table></div>"
    )


def picture_html(name: str, svg: bytes) -> str:
    data = base64.b64encode(svg).decode("ascii")
    return (
        f'<figure><img alt="{html.escape(name)}" src="data:image/svg+xml;base64,{data}"></figure>'
    )


def facts_table(facts: Numbers) -> Table:
    test = facts["test"]
    rows = [
        ["test set", f"{test['source']['file']}, {test['reference']['file']}"],
        ["sentences", f"{test['sentences']:,}"],
        ["latency", facts["latency"]],
    ]
    for subject in facts["subjects"]:
        model = subject["model"]
        dials = " at " + ", ".join(f"{k:g}" for k in subject["dials"]) if subject["dials"] else ""
        about = f"{subject['system']}{dials}; model {model['folder']}, {model['parameters']:,}"
        trained = f", {n:,} updates" if (n := model.get("updates")) else ""
        rows.append(
            [subject["name"], f"{about} parameters{trained}, sha256 {model['sha256'][:12]}"]
        )
    return Table("What was analysed", ["", ""], rows, textual=True)


def report_html(
    title: str,
    facts: Numbers,
    sections: Mapping[str, tuple[str, Sequence[Table], Mapping[str, bytes]]],
    notes: Sequence[str],
    version: str,
) -> str:
    """sections: for each analysis its title, its tables and its pictures (SVG) by name."""
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        table_html(facts_table(facts)),
        *(f"<p>{html.escape(note)}</p>" for note in notes),
    ]
    for name, (heading, tables, pictures) in sections.items():
        parts.append(f'<h2 id="{name}">{html.escape(heading)}</h2>')
        parts += [picture_html(picture, svg) for picture, svg in pictures.items()]
        parts += [table_html(table) for table in tables]
    parts.append(
        f"<p><small>Made by waitinfo {html.escape(version)}: waitinfo analyse.</small></p>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{PAGE_STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


Draw = Callable[[Any, Numbers], Any]  # a figure, from pyplot and the numbers


@dataclass(frozen=True)
class Analysis:
    name: str
    title: str
    compute: Callable[[Study], Numbers]
    tables: Callable[[Numbers], list[Table]]
    pictures: Mapping[str, Draw]
    info: bool = False  # needs a model with info
    weights: bool = False  # needs plain cross-attention
    tagger: bool = False  # needs a tagger for one side at least
    two: bool = False  # needs a second system

    def check(self, study: Study) -> None:
        """Raise an error if the analysis cannot be made of this study."""
        loaded = study.main.evaluation.loaded
        if self.info:
            require_info(loaded, self.name)
        if self.weights:
            require_attention(loaded, self.name)
        if self.tagger and not study.taggers:
            raise WaitinfoError(
                f"--what {self.name}: needs --source-tags or --target-tags, a file of tagged words"
            )
        if self.two and not study.others:
            raise WaitinfoError(
                f"--what {self.name}: needs a second system; give --against or --against-system"
            )


def analysis(module: ModuleType, pictures: Mapping[str, Draw], **needs: bool) -> Analysis:
    """The analysis of a module, which has a name, a title, `compute` and `tables`."""
    return Analysis(module.NAME, module.TITLE, module.compute, module.tables, pictures, **needs)


ANALYSES = {
    each.name: each
    for each in (
        analysis(
            parts_of_speech,
            {
                "pos-words": parts_of_speech.draw_words,
                "pos-single-tokens": parts_of_speech.draw_single_tokens,
            },
            info=True,
            tagger=True,
        ),
        analysis(ratio, {"ratio": ratio.draw_ratio}, info=True),
        analysis(early_stop, {"early-stop": early_stop.draw_early_stop}),
        analysis(
            info_attention, {"attention": info_attention.draw_attention}, info=True, weights=True
        ),
        analysis(case, {"case": case.draw_case, "case-staircase": case.draw_staircase}),
        analysis(difficulty, {"difficulty": difficulty.draw_difficulty}, weights=True),
        analysis(significance, {"significance": significance.draw_significance}, two=True),
    )
}


ALONE = {parts_of_speech.NAME, ratio.NAME, info_attention.NAME}  # they are of the main system alone


def choose(study: Study, wanted: Sequence[str] | None) -> list[Analysis]:
    """The analyses to make; notes on those left out. One that was asked for is an error."""
    chosen = []
    for name in wanted or list(ANALYSES):
        try:
            ANALYSES[name].check(study)
        except WaitinfoError as error:
            if wanted:
                raise
            study.notes.append(f"left out: {error.sentence.removeprefix('--what ')}")
            continue
        chosen.append(ANALYSES[name])
    if not chosen:
        raise WaitinfoError("nothing can be analysed: " + "; ".join(study.notes))
    return chosen


def analyse(
    study: Study, chosen: Sequence[Analysis], out: Path, asked: bool = False
) -> dict[str, Numbers]:
    """Make the analyses and write them; an analysis is written as soon as it is complete.

    One that turns out not to be possible is left out. If it was asked for, that is an error, raised
    when everything else is written. Analyses of the same that are in the folder are in the report.
    """
    found: dict[str, Numbers] = {}
    facts = json.loads(json.dumps(for_json(study.facts())))
    failed = None
    for analysis in chosen:
        try:
            # As it will be read from a file.
            numbers = json.loads(json.dumps(for_json(analysis.compute(study))))
        except WaitinfoError as error:
            failed = error
            study.notes.append(f"left out: {error.sentence}")
            continue
        found[analysis.name] = numbers
        text = json.dumps({"facts": facts, analysis.name: numbers}, indent=1, ensure_ascii=False)
        (out / f"{analysis.name}.json").write_text(text + "\n", "utf-8")
    if failed and not found:
        raise failed
    write_report(study, facts, {**earlier(out, facts, study.notes), **found}, out)
    if failed and asked:
        raise failed
    return found


def earlier(out: Path, facts: Numbers, notes: list[str]) -> dict[str, Numbers]:
    """Analyses that are in the folder, if they are of the same systems and sentences."""
    found: dict[str, Numbers] = {}
    for name in ANALYSES:
        try:
            kept = json.loads((out / f"{name}.json").read_text("utf-8"))
            same = about(name, kept["facts"]) == about(name, facts)
            found |= {name: kept[name]} if same else {}
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not same:
            notes.append(
                f"not in the report: {name}.json, which is of other systems, text or dials"
            )
    return found


def about(name: str, facts: Numbers) -> Numbers:
    """What an analysis depends on."""
    return {**facts, "subjects": facts["subjects"][:1]} if name in ALONE else facts


def figures(what: str, found: Numbers) -> Iterator[tuple[str, Any]]:
    """Names and figures of an analysis; each is closed when the next one is asked for."""
    plt = pyplot()
    for name, make in ANALYSES[what].pictures.items():
        with plt.rc_context(STYLE), warnings.catch_warnings():
            # A PNG shows a box for a character that its font lacks; an SVG shows the character.
            warnings.filterwarnings("ignore", "Glyph .* missing from")
            figure = make(plt, found)
            try:
                yield name, figure
            finally:
                plt.close(figure)


def write_report(study: Study, facts: Numbers, found: dict[str, Numbers], out: Path) -> None:
    sections: dict[str, tuple[str, Sequence[Table], dict[str, bytes]]] = {}
    for name, analysis in ANALYSES.items():
        if name in found:
            study.progress.stage(f"pictures: {name}")
            pictures = draw(name, found[name], out)
            sections[name] = (analysis.title, analysis.tables(found[name]), pictures)
    title = f"{study.main.name} on {study.main.evaluation.test.name}"
    text = report_html(title, facts, sections, study.notes, waitinfo.__version__)
    (out / "report.html").write_text(text, "utf-8")


def draw(what: str, numbers: Numbers, out: Path) -> dict[str, bytes]:
    """Draw an analysis as PNG and SVG; return the SVG files by name."""
    drawn = {}
    for name, figure in figures(what, numbers):
        save_figure(figure, out / f"{name}.png")
        save_figure(figure, out / f"{name}.svg")
        drawn[name] = (out / f"{name}.svg").read_bytes()
    return drawn
