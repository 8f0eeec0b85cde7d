"""Text translated while it arrives: standard input as it is typed, or words at a given rate."""

from __future__ import annotations

import codecs
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from waitinfo.cli.options import note
from waitinfo.cli.views import VIEWS, LiveCaption, View, translation
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.event import Event
from waitinfo.streaming.translator import Translator
from waitinfo.text.scripts import is_unspaced
from waitinfo.trained.saving import LoadedModel

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
    from waitinfo.translation.decoding import TranslationOptions
    from waitinfo.translation.lines import LineTranslator

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
        if sys.stdout.isatty() and idle is None and find_spec("prompt_toolkit"):
            type_lines(translator, k, view, watch)
            return
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


class TypedLine:
    """A line in an editor: words are read when they are complete, and the translation grows.

    A stream cannot unread. If an earlier word is changed, the line is translated again.
    """

    def __init__(self, translator: Translator | Client, k: float | None) -> None:
        self.translator, self.k = translator, k
        self._start()

    def _start(self) -> None:
        self.stream = self.translator.stream(self.k, raw=True, history=0)
        self.read = ""
        self.trace: list[Event] = []

    @property
    def translation(self) -> str:
        return translation(self.trace)

    def edit(self, text: str) -> None:
        """Read the complete words of the line as it is."""
        unspaced = text and is_unspaced(text[-1])
        self._read(text if unspaced else text[: text.rfind(" ") + 1])

    def _read(self, text: str) -> None:
        if not text.startswith(self.read):
            self.stream.close()
            self._start()
        if fresh := text.removeprefix(self.read):
            self.trace += self.stream.push(fresh)
            self.read = text

    def end(self, text: str) -> list[Event]:
        self._read(text)
        return self.trace + self.stream.finish()


def type_lines(
    translator: Translator | Client, k: float | None, view: View, watch: Watch | None = None
) -> None:
    """Let lines be typed; each is translated below while it grows."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.buffer import Buffer
    from prompt_toolkit.styles import Style

    note("type: words are read when they are complete; Enter ends a line, Ctrl-D the program")
    style = Style.from_dict({"bottom-toolbar": "noreverse bold"})
    session: PromptSession[str] = PromptSession("> ", style=style)

    def changed(buffer: Buffer) -> None:
        try:
            line.edit(buffer.text)
        except WaitinfoError as error:
            session.app.exit(exception=error)

    def below() -> str:
        return line.translation

    session.default_buffer.on_text_changed += changed
    while True:
        line = TypedLine(translator, k)
        try:
            text = session.prompt(bottom_toolbar=below)
        except EOFError:
            return
        view.line(text, line.end(text))
        if watch is not None:
            watch(f"{text}\n")


class LiveText:
    """Decode bytes as they arrive; warn once if they are not UTF-8."""

    def __init__(self) -> None:
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.begun = self.warned = False

    def decode(self, chunk: bytes, final: bool = False) -> str:
        text = self.decoder.decode(chunk, final)
        if text and not self.begun:
            self.begun = True
            text = text.removeprefix("\ufeff")  # a byte-order mark is not text
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
