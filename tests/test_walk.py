"""docs/walk.md: the files and functions on the way exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "waitinfo"
FILE = re.compile(r"[\w/]+\.(py|c)")


def names(path: Path) -> set[str]:
    """Functions, classes and methods that a file defines."""
    text = path.read_text("utf-8")
    if path.suffix == ".c":
        return set(re.findall(r"^\w+ (\w+)\(", text, re.MULTILINE))
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body
                      if isinstance(part, ast.FunctionDef)}  # fmt: skip
    return found


def test_the_names_on_the_way_exist() -> None:
    quoted = re.findall(r"`([^`\n]+)`", (ROOT / "docs" / "walk.md").read_text("utf-8"))
    files = {name for name in quoted if FILE.fullmatch(name)}
    paths = {next(iter(SOURCES.glob(f"**/{name}")), None) for name in files}
    assert files and None not in paths
    known = set().union(*(names(path) for path in paths if path is not None))
    identifiers = (name for name in quoted if re.fullmatch(r"_?[A-Za-z]\w*(\.\w+)?", name))
    wanted = {name for name in identifiers if name not in files | {"ready", "accept"}}
    assert wanted <= known, wanted - known
