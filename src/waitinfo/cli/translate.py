"""`waitinfo translate`: a file in batches, standard input live, or words at a given rate."""

from __future__ import annotations

import codecs
import math
import os
import select
import stat
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waitinfo.cli.display import note
from waitinfo.cli.loading import check_beam, load, use_threads
from waitinfo.cli.views import VIEWS, LiveCaption, View
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.streaming.event import Event
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.translator import Translator
from waitinfo.systems import check_dial
from waitinfo.text.files import read_lines
from waitinfo.text.identification import LanguageWarning, LanguageWatch
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.lines import LineTranslator
from waitinfo.translation.options import TranslationOptions

if TYPE_CHECKING:
    from waitinfo.client.clients import Client

TOGETHER = 32  # lines of a file translated at a time
SLOWEST = 0.001  # words per second: one in a quarter of an hour


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    text: list[str]
    model: Path | None
    input: Path | None
    k: float | None
    lag: float | None
    system: str | None
    settings: list[str]
    show: str
    pace: float
    ending: str
    segment: str
    beam: int
    device: str
    dtype: str
    threads: int
    out: Path | None
    resume: bool
    force: bool
    rows: int | None
    best: int
    scores: bool
    temperature: float
    top_k: int
    seed: int
    server: str | None = None
    key: str | None = None


def run(request: Request) -> None:
    if request.k is not None and request.lag is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")
    if request.out is not None:
        from waitinfo.cli.files import run as translate_file

        translate_file(request)
        return
    _check_plain(request)
    if request.show not in VIEWS:
        raise unknown("--show", request.show, VIEWS)
    if request.pace and not SLOWEST <= request.pace < math.inf:
        raise WaitinfoError(
            f"--pace {request.pace:g}: must be 0, or finite and at least {SLOWEST:g}"
        )
    segmentation = Segmentation.parse(request.segment)
    if request.server is not None:
        _on_server(request, request.server, segmentation)
        return
    # One word at a time is quickly done by one core, and on a busy machine much more quickly.
    use_threads(request.threads or int(request.input is None))
    loaded = load(request.model, request.device, request.dtype, request.system, request.settings)
    check_beam(loaded.system, request.beam)
    check_dial(loaded.system, request.k)
    if request.beam > 1 and (request.pace or request.show != "words" or request.lag is not None):
        raise WaitinfoError("--beam: shows words alone; leave out --pace, --show and --lag")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LanguageWarning)  # all lines are watched together
        _translate(request, loaded, segmentation)


def _translate(request: Request, loaded: LoadedModel, segmentation: Segmentation) -> None:
    k, lines = request.k, _lines(request)
    watch = LanguageWatch(loaded.languages.source, raw=lines is None)
    if lines is None and request.beam > 1:
        lines = _typed_lines()
    if lines is not None:
        lines = _watched(lines, watch)
    if request.beam > 1:
        assert lines is not None
        _with_beam(loaded, request, lines)
        return
    translator = Translator(
        loaded, TOGETHER, ending=request.ending, lag=request.lag, segment=request.segment
    )
    view = VIEWS[request.show]()
    if lines is None:
        _follow(translator, k, view, _idle(segmentation), watch)
    elif request.pace:
        _at_pace(translator, k, view, lines, request.pace)
    else:
        _together(translator, request, view, lines)


def _watched(lines: Iterator[str], watch: LanguageWatch) -> Iterator[str]:
    """The same lines, with a note if they are plainly not in the model's language."""
    for line in lines:
        _watch(f"{line}\n", watch)
        yield line


def _watch(text: str, watch: LanguageWatch) -> None:
    if message := watch.add(text):
        note(f"note: {message}")


def _check_plain(request: Request) -> None:
    """Refuse options that only make sense with --out."""
    given = {
        "--resume": request.resume,
        "--force": request.force,
        "--rows": request.rows is not None,
        "--best": request.best > 1,
        "--scores": request.scores,
        "--temperature": request.temperature > 0,
        "--top-k": request.top_k > 0,
    }
    for name in (name for name, used in given.items() if used):
        raise WaitinfoError(f"{name}: needs --input and --out")


def _on_server(request: Request, url: str, segmentation: Segmentation) -> None:
    """The same, but a server translates."""
    local = {
        "--system": request.system,
        "--set": request.settings,
        "--beam": request.beam > 1,
        "--ending": request.ending != "guard",
    }
    if given := [name for name, value in local.items() if value]:
        raise WaitinfoError(f"{given[0]}: the server chooses; leave it out with --server")
    try:
        from waitinfo.client.clients import Client
    except ImportError as error:
        raise WaitinfoError(
            f"--server needs {error.name}: pip install 'waitinfo[client]'"
        ) from None
    k, lines, view = request.k, _lines(request), VIEWS[request.show]()
    model = None if request.model is None else str(request.model)
    segmenter = None if segmentation == Segmentation() else request.segment
    with Client(url, request.key, model=model, lag=request.lag, segmenter=segmenter) as client:
        if lines is None:
            _follow(client, k, view, _idle(segmentation))
        elif request.pace:
            _at_pace(client, k, view, lines, request.pace)
        else:
            for chunk in _chunks(lines, TOGETHER):
                for line, events in zip(chunk, client.events(chunk, k), strict=True):
                    view.line(line, events)


def _idle(segmentation: Segmentation) -> float | None:
    """Seconds of silence that a stream is told of."""
    return segmentation.pause if segmentation.mode == "pause" else None


def _lines(request: Request) -> Iterator[str] | None:
    """The lines to translate, or None to follow standard input live."""
    if request.text and request.input is not None:
        raise WaitinfoError("give either text or --input, not both")
    if request.text:
        return iter(request.text)
    if request.input is not None:
        return read_lines(request.input)
    if sys.stdin is None:
        raise WaitinfoError("standard input is closed; give text or --input")
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        return read_lines(Path("/dev/stdin"))
    return None


def _chunks(lines: Iterator[str], size: int) -> Iterator[list[str]]:
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


def _together(translator: Translator, request: Request, view: View, lines: Iterator[str]) -> None:
    """Translate many lines at once, each as one stream."""
    for chunk in _chunks(lines, TOGETHER):
        streams = {
            translator.stream(request.k, segment=request.segment, history=0): line for line in chunk
        }
        pushed = translator.push_many(streams)
        finished = translator.finish_many(streams)
        for stream, line in streams.items():
            view.line(line, pushed[stream] + finished[stream])


def _follow(
    translator: Translator | Client,
    k: float | None,
    view: View,
    idle: float | None = None,
    watch: LanguageWatch | None = None,
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
                _watch(text, watch)
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


def _typed_lines() -> Iterator[str]:
    """Read standard input line by line."""
    rest = ""
    for text in read_typed():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    if rest:
        yield rest


def _at_pace(
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


def _with_beam(loaded: LoadedModel, request: Request, lines: Iterator[str]) -> None:
    translator = LineTranslator(
        loaded, TranslationOptions(beam=request.beam, segment=request.segment)
    )
    for chunk in _chunks(lines, TOGETHER * 4):
        found = {
            translation.line: translation.text
            for complete in translator.translate(enumerate(chunk))
            for (translation,) in complete
        }
        for number in range(len(chunk)):
            print(found[number])
        sys.stdout.flush()
