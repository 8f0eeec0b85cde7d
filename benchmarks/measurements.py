"""Saving the results of benchmarks.

`--out FILE.json` writes a file with one result. `--out FILE.json:NAME` adds the result to a file
with several results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save(out: Path | None, result: dict[str, Any]) -> None:
    """Write a result to a JSON file, or add it under its name to a file with other results."""
    if out is None:
        return
    file, colon, name = str(out).partition(":")
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    if colon:
        existing = json.loads(path.read_text("utf-8")) if path.exists() else {}
        result = {**existing, name: result}
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
