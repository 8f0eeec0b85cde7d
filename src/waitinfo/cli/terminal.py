"""Text translated while it arrives: standard input as it is typed, or words at a given rate."""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from waitinfo.cli.console import note
from waitinfo.cli.views import VIEWS, LiveCaption, View
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.translator import Translator
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.decoding import TranslationOptions
from waitinfo.translation.lines import LineTranslator

if TYPE_CHECKING:
    from waitinfo.client.clients import Client


BEAM_LINES = 128  # lines translated by beam search at a time
Watch = Callable[[str], None]  # is shown the text, and complains about its language


def watched(lines: Iterator[str], watch: Watch) -> Iterator[str]:
    """The same lines, each shown to `watch`."""
    for line in lines:
        watch(f"{line}\n")
        yield line


def chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
    """Lines a few at a time. One that cannot be read is an error after those before it."""
    chunk: list[str] = []
    try:
        for line in lines:
            chunk.append(line)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except WaitinfoError:
        yield chunk
        raise
    yield chunk


def together(
    translator: Translator, k: float | None, segment: str, view: View, lines: list[str]
) -> None:
    """Translate a few lines at once, each as one stream."""
    streams = {translator.stream(k, segment=segment, history=0): line for line in lines}
    pushed = translator.push_many(streams)
    finished = translator.finish_many(streams)
    for stream, line in streams.items():
        view.line(line, pushed[stream] + finished[stream])


def with_beam(loaded: LoadedModel, beam: int, segment: str, lines: Iterator[str]) -> None:
    """Print the translations of lines by beam search."""
    translator = LineTranslator(loaded, TranslationOptions(beam=beam, segment=segment))
    for chunk in chunks(lines, BEAM_LINES):
        found = {
            translation.line: translation.text
            for complete in translator.translate(enumerate(chunk))
            for (translation,) in complete
        }
        for number in range(len(chunk)):
            print(found[number])
        sys.stdout.flush()


def follow(
    translator: Translator | Client,
    k: float | None,
    view: View,
    idle: float | None = None,
    watch: Watch | None = None,
) -> None:
    """Translate standard input while it arrives; each line is one stream.

    Streams are told that time has passed when nothing came for `idle` seconds.
    """
    if sys.stdin.isatty():
        note("type, a line at a time; Ctrl-D ends")
    line = LiveLine(translator, k, view)
    try:
        for text in read_typed(idle):
            if watch is not None:
                watch(text)
            *ended, rest = text.split("\n")
            for part in ended:
                line.add(part)
                line.end()
            line.add(rest)
        if line.begun:
            line.end()
    except KeyboardInterrupt:
        view.end(line.said, line.trace)
        raise


class LiveLine:
    """The line being typed: its stream, and what the view needs when the line ends."""

    def __init__(self, translator: Translator | Client, k: float | None, view: View) -> None:
        self.translator, self.k, self.view = translator, k, view
        self._start()

    def _start(self) -> None:
        self.stream = self.translator.stream(self.k, raw=True, history=0)
        self.begun = False
        self.said = ""
        self.trace: list[Event] = []

    def add(self, text: str) -> None:
        self.begun |= bool(text)
        self._show(self.stream.push(text), text)

    def end(self) -> None:
        self._show(self.stream.finish())
        self.view.end(self.said, self.trace)
        self._start()

    def _show(self, events: list[Event], text: str = "") -> None:
        self.view.words(events)
        if self.view.reviews:  # else a line without an end would fill the memory
            self.said += text
            self.trace += events


class LiveText:
    """Decode bytes as they arrive; warn once if they are not UTF-8."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.begun = self.warned = False

    def decode(self, chunk: bytes, final: bool = False) -> str:
        text = self.decoder.decode(chunk, final)
        if text and not self.begun:
            self.begun = True
            text = text.removeprefix("\ufeff")  # a byte-order mark is no text
        if "\N{REPLACEMENT CHARACTER}" in text and not self.warned:
            note("standard input is not UTF-8 throughout: expect nonsense where it is not")
            self.warned = True
        return text


def read_typed(idle: float | None = None) -> Iterator[str]:
    """Read standard input in pieces, as they arrive; '' when nothing came for `idle` seconds."""
    text, descriptor = LiveText(), sys.stdin.fileno()
    while True:
        while idle is not None and not select.select([descriptor], [], [], idle)[0]:
            yield ""
        if not (chunk := os.read(descriptor, 1 << 16)):
            break
        yield text.decode(chunk)
    yield text.decode(b"", final=True)


def typed_lines() -> Iterator[str]:
    """Read standard input line by line."""
    rest = ""
    for text in read_typed():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    if rest:
        yield rest


def at_pace(
    translator: Translator | Client,
    k: float | None,
    view: View,
    lines: Iterator[str],
    pace: float,
) -> None:
    """Words arrive at speaking speed; the translation grows beneath them."""
    for line in lines:
        stream = translator.stream(k, history=0)
        trace: list[Event] = []
        with LiveCaption() as caption:
            due = time.monotonic()
            for word in line.split():
                due += 1 / pace
                time.sleep(max(0.0, due - time.monotonic()))
                caption.hear(word)
                trace += caption.say(stream.push(word))
            trace += caption.say(stream.finish())
        if not isinstance(view, VIEWS["words"]):
            view.line(line, trace)
