"""Where benchmarks put their figures.

`--out FILE.json` writes a file of its own, `--out FILE.json:NAME` adds to one that holds others.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save(out: Path | None, result: dict[str, Any]) -> None:
    """Write a result as a JSON file, or under its name into one that may hold other results."""
    if out is None:
        return
    file, colon, name = str(out).partition(":")
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    if colon:
        held = json.loads(path.read_text("utf-8")) if path.exists() else {}
        result = {**held, name: result}
    path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
