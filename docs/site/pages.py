"""Gives mkdocs the pages of the repository, and the files that they link to, under their paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "*.md", "docs/*.md", "results/**/*.md", "experiments/*.md", "examples/**/*.md",
    "src/waitinfo/models/*/README.md",
)  # fmt: skip
LINK = re.compile(r"\]\(\s*([^)\s#:]+)")


def on_files(files: Files, config: Any) -> Files:
    pages = {path for pattern in PAGES for path in ROOT.glob(pattern)}
    linked = {target for page in pages for target in _linked(page)}
    for path in sorted(pages | linked):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _linked(page: Path) -> set[Path]:
    """Files of the repository that a page links to."""
    targets = LINK.findall(page.read_text("utf-8"))
    paths = {Path(os.path.normpath(page.parent / target)) for target in targets}
    return {path for path in paths if path.is_file() and path.is_relative_to(ROOT)}
