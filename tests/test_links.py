"""Links in Markdown files point to existing files and headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = (".venv", ".git", "build", "node_modules")
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in HIDDEN or part.endswith("cache") for part in path.relative_to(ROOT).parts)
)
LINK = re.compile(r"!?\[[^\]]*\]\(\s*([^)\s]+)\s*\)")
CODE = re.compile(r"^```.*?^```|^    .*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
ELSEWHERE = re.compile(r"[a-z]+:")  # https: and the like


def links(text: str) -> list[str]:
    """Targets of the links in a page, except links in code and links to other sites."""
    found = LINK.findall(CODE.sub("", text))
    return [target for target in found if not ELSEWHERE.match(target)]


def anchors(text: str) -> set[str]:
    """Anchors of the headings: lower case, with hyphens, without punctuation."""
    headings = re.findall(r"^#+ +(.+?) *#*$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_valid(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    return path.exists() and (not anchor or anchor in anchors(path.read_text("utf-8")))


def broken(page: Path) -> list[str]:
    return [t for t in links(page.read_text("utf-8")) if not is_valid(page, t)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_are_valid(page: Path) -> None:
    assert not broken(page)


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# A heading: two words\n")
    page.write_text(
        "# Here\n[a](other.md) ![b](gone.svg) [c](other.md#a-heading-two-words) [d](#here)\n"
        "[e\nf](missing/) `[code](x.md)` [web](https://example.org) [g](other.md#no) [h](#there)\n"
        "\n    [indented](code.md)\n"
    )
    assert broken(page) == ["gone.svg", "missing/", "other.md#no", "#there"]
