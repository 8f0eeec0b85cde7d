"""docs/serving.md: its schema is the protocol's, its client runs, its tables name everything."""

from __future__ import annotations

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from tests.serving import running, toy_hub
from waitinfo.serving import protocol

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = (DOCS / "serving.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return found


def test_the_schema_is_up_to_date() -> None:
    """Written by: python -c 'from waitinfo.serving.protocol import …; print(json.dumps(…))'."""
    assert json.loads((DOCS / "stream.schema.json").read_text("utf-8")) == protocol.schema()


def test_every_message_is_documented() -> None:
    found = protocol.schema()
    for side in ("client", "server"):
        for reference in found[side].get("oneOf") or found[side]["anyOf"]:
            name = reference["$ref"].rsplit("/", 1)[1]
            kind = found["$defs"][name]["properties"]["type"]
            assert f"`{kind['const']}`" in PAGE, name


def test_the_client_runs() -> None:
    with running(toy_hub()) as server, redirect_stdout(StringIO()) as printed:
        exec(block("py").replace("http://127.0.0.1:8000", server.url), {})
    assert "WRITE" in printed.getvalue()


def test_twenty_lines_of_javascript() -> None:
    assert len(block("js").splitlines()) <= 20
