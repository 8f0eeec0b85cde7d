"""The report: every picture and table in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence

from waitinfo.analysis.summaries import Numbers, Table

STYLE = """
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
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
