"""`waitinfo translate`: a file's lines together, standard input as it comes, words at a pace."""

from __future__ import annotations

import codecs
import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from waitinfo.cli.display import note
from waitinfo.cli.loading import check_beam, load
from waitinfo.cli.views import VIEWS, LiveCaption, View
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.model.saving import LoadedModel
from waitinfo.streaming.beam import BeamDecoder
from waitinfo.streaming.event import Event
from waitinfo.streaming.translator import Translator
from waitinfo.text.files import read_lines

TOGETHER = 32  # lines of a file translated at a time


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    text: list[str]
    model: Path | None
    input: Path | None
    k: float | None
    system: str | None
    settings: list[str]
    show: str
    pace: float
    ending: str
    beam: int
    device: str
    dtype: str
    threads: int


def run(request: Request) -> None:
    if request.show not in VIEWS:
        raise unknown("--show", request.show, VIEWS)
    if request.pace < 0:
        raise WaitinfoError(f"--pace {request.pace:g}: must be 0 or more words a second")
    _use_threads(request)
    loaded = load(request.model, request.device, request.dtype, request.system, request.settings)
    check_beam(loaded.system, request.beam)
    lines = _lines(request)
    if request.beam > 1:
        _with_beam(loaded, request.beam, sys.stdin if lines is None else lines)
        return
    translator = Translator(loaded, TOGETHER, ending=request.ending)
    k = request.k
    translator.check_dial(k)
    view = VIEWS[request.show]()
    if lines is None:
        _follow(translator, k, view)
    elif request.pace:
        _at_pace(translator, k, view, lines, request.pace)
    else:
        _together(translator, k, view, lines)


def _use_threads(request: Request) -> None:
    """One word at a time is quickly done by one core, and on a busy machine much more quickly."""
    if request.threads < 0:
        raise WaitinfoError(f"--threads {request.threads}: must be 0 or more")
    if request.threads or request.input is None:
        torch.set_num_threads(request.threads or 1)


def _lines(request: Request) -> Iterator[str] | None:
    """The lines to translate, or None to follow standard input live."""
    if request.text and request.input is not None:
        raise WaitinfoError("give either text or --input, not both")
    if request.text:
        return iter(request.text)
    if request.input is not None:
        return read_lines(request.input)
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        return read_lines(Path("/dev/stdin"))
    return None


def _together(translator: Translator, k: float | None, view: View, lines: Iterator[str]) -> None:
    """Many lines at once, each a stream of its own."""
    while chunk := list(islice(lines, TOGETHER)):
        streams = {translator.stream(k): line for line in chunk}
        translator.push_many(streams)
        translator.finish_many(streams)
        for stream, line in streams.items():
            view.line(line, stream.trace)


def _follow(translator: Translator, k: float | None, view: View) -> None:
    """Standard input as it comes; the end of a line ends what is being said."""
    decoder = LiveText()
    stream = translator.stream(k, raw=True)
    said = ""
    if sys.stdin.isatty():
        note("type, a line at a time; Ctrl-D ends")

    def end_line() -> None:
        nonlocal stream, said
        view.words(stream.finish())
        view.end(said, stream.trace)
        stream, said = translator.stream(k, raw=True), ""

    try:
        while chunk := os.read(sys.stdin.fileno(), 1 << 16):
            *ended, rest = decoder.decode(chunk).split("\n")
            for line in ended:
                said += line
                view.words(stream.push(line))
                end_line()
            said += rest
            view.words(stream.push(rest))
        if said:
            end_line()
    except KeyboardInterrupt:
        view.end(said, stream.trace)
        raise


class LiveText:
    """Bytes as text, as they come; says so once if they are not UTF-8."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.warned = False

    def decode(self, chunk: bytes) -> str:
        text = self.decoder.decode(chunk)
        if "\N{REPLACEMENT CHARACTER}" in text and not self.warned:
            note("standard input is not UTF-8 throughout: expect nonsense where it is not")
            self.warned = True
        return text


def _at_pace(
    translator: Translator, k: float | None, view: View, lines: Iterator[str], pace: float
) -> None:
    """Words arrive at speaking speed; the translation grows beneath them."""
    for line in lines:
        stream = translator.stream(k)
        with LiveCaption() as caption:
            due = time.monotonic()
            for word in line.split():
                due += 1 / pace
                time.sleep(max(0.0, due - time.monotonic()))
                caption.hear(word)
                _say(caption, stream.push(word))
            _say(caption, stream.finish())
        if not isinstance(view, VIEWS["words"]):
            view.line(line, stream.trace)


def _say(caption: LiveCaption, events: list[Event]) -> None:
    for event in events:
        if event.kind == "WRITE" and event.word:
            caption.say(event.word)


def _with_beam(loaded: LoadedModel, beam: int, lines: Iterator[str]) -> None:
    decoder = BeamDecoder(loaded.model, beam)
    while chunk := list(islice(lines, TOGETHER * 4)):
        tokens = [loaded.vocabulary.source.encode(line) for line in chunk]
        found = iter(decoder.decode([sentence for sentence in tokens if sentence]))
        for sentence in tokens:
            print(loaded.vocabulary.target.decode(next(found).tokens) if sentence else "")
        sys.stdout.flush()
