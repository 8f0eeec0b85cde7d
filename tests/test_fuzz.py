"""The corpora of the fuzz targets, and some changes of each; `python -m tests.fuzz` goes on."""

from __future__ import annotations

import json
import random

import pytest

pytest.importorskip("lxml", reason="needs the extra serve")
pytest.importorskip("greenlet", reason="needs greenlet")

from tests.fuzz.targets import TARGETS, corpus, folder, model

CHANGES = {
    "html": 20, "body": 20, "tokens": 10, "model": 2, "messages": 20, "replay": 20, "frames": 5,
}  # fmt: skip


def changed(draw: random.Random, data: bytes) -> bytes:
    """Some bytes replaced, left out or repeated."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        end = min(len(found), at + draw.randint(0, 4))
        found[at:end] = draw.choice([b"", bytes([draw.randrange(256)]), bytes(found[at:end]) * 3])
    return bytes(found)


@pytest.mark.parametrize("name", TARGETS)
def test_telling_inputs_are_read_or_refused(name: str) -> None:
    draw = random.Random(1)
    for data in corpus(name):
        for given in (data, *(changed(draw, data) for _ in range(CHANGES[name]))):
            TARGETS[name](given)


@pytest.mark.parametrize(
    "change",
    [
        {"system": None}, {"system": 5}, {"system": {"name": 5}}, {"model": None}, {"model": []},
        {"model": {"layers": 3}}, {"format": "x"}, {"languages": 5}, {"system": {}},
        {"model": {"width": -1}}, {"model": {"decoder_layers": 10**12}}, {"model": {"heads": 0}},
        {"model": {"width": 1 << 62}}, {"model": {"source_vocabulary": 5}},
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused(change: dict[str, object]) -> None:
    config = json.loads((folder() / "config.json").read_text("utf-8"))
    for name, value in change.items():
        both = isinstance(value, dict) and isinstance(config.get(name), dict) and value
        config[name] = {**config[name], **value} if both else value
    names = sorted(path.name for path in folder().iterdir())
    model(bytes([names.index("config.json")]) + json.dumps(config).encode())
