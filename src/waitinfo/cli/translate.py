"""`waitinfo translate`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from waitinfo.cli.loading import check_beam, check_dial, load
from waitinfo.errors import unknown
from waitinfo.folder import LoadedModel
from waitinfo.streaming.beam import BeamDecoder
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.text.files import read_lines
from waitinfo.text.tokenizer import EOS, SPACE, Tokenizer

SHOWS = ("words", "path")
CHUNK = 2000  # lines translated at a time


def run(
    text: list[str],
    model: Path | None,
    source: Path | None,
    k: float | None,
    ending: str,
    beam: int,
    show: str,
    device: str,
) -> None:
    if show not in SHOWS:
        raise unknown("--show", show, SHOWS)
    loaded = load(model, device)
    dial = check_dial(loaded.system, k)
    check_beam(loaded.system, beam)
    lines = _lines(text, source)
    while chunk := list(islice(lines, CHUNK)):
        tokens = [loaded.vocabulary.source.encode(line) for line in chunk]
        present = [sentence for sentence in tokens if sentence]
        if beam > 1:
            found = BeamDecoder(loaded.model, beam).decode(present)
        else:
            found = Decoder(loaded.model, loaded.system, ending).decode(present, dial)
        results = iter(found)
        for line, sentence in zip(chunk, tokens, strict=True):
            if show == "path":
                print(line)
            print(_render(loaded, sentence, next(results), show) if sentence else "")
        sys.stdout.flush()


def _lines(text: list[str], source: Path | None) -> Iterator[str]:
    if text:
        return iter(text)
    if source is not None:
        return read_lines(source)
    return (line.rstrip("\n") for line in sys.stdin)


def _render(loaded: LoadedModel, source: list[int], found: Hypothesis, show: str) -> str:
    translation = loaded.vocabulary.target.decode(found.tokens)
    if show == "words":
        return translation
    return "\n".join([*staircase(loaded, source, found), translation, ""])


def staircase(loaded: LoadedModel, source: list[int], found: Hypothesis) -> list[str]:
    """One line a READ: what was read, and what was then written."""
    tokens = [*source, EOS]
    written = [*found.tokens, EOS] if found.ended else found.tokens
    steps: list[tuple[str, str]] = []
    read = 0
    for token, seen in zip(written, found.path, strict=True):
        if seen > read or not steps:
            steps.append((_pieces(loaded.vocabulary.source, tokens[read:seen]), ""))
            read = seen
        left, right = steps[-1]
        steps[-1] = (left, right + _pieces(loaded.vocabulary.target, [token]))
    width = max(len(left) for left, _ in steps)
    return [f"  READ {left:<{width}}   WRITE {right.strip()}" for left, right in steps]


def _pieces(tokenizer: Tokenizer, tokens: list[int]) -> str:
    names = [tokenizer.piece(token) for token in tokens if token != EOS]
    text = "".join(names).replace(SPACE, " ").strip()
    ends = " ⏎" if EOS in tokens else ""
    starts = " " if names and names[0].startswith(SPACE) else ""
    return starts + text + ends
