"""`waitinfo listen`: what is said and its translation, while it is being said."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Argument, Option
from waitinfo.cli.options import LatencyOptions, ModelOptions, note, use_threads
from waitinfo.errors import WaitinfoError, unknown

if TYPE_CHECKING:
    from waitinfo.listening.captions import CaptionFile
    from waitinfo.listening.listen import Listener
    from waitinfo.listening.sources import Source

SLOW = 2.0  # times the usual rhythm, which is worth a note


@dataclass(kw_only=True)
class ListenArguments(LatencyOptions, ModelOptions):
    """What `listen` is given."""

    input: Annotated[
        str | None,
        Argument(help="- for standard input: WAV, or 16-bit PCM, 16 kHz.", metavar="[-]"),
    ] = None
    audio: Annotated[
        Path | None,
        Option(help="An audio file: WAV, FLAC, MP3 or Ogg, as fast as it can be heard."),
    ] = None
    microphone: Annotated[
        str | None,
        Option(help="A microphone, by a part of its name or its number [default: yours]."),
    ] = None
    pace: Annotated[
        bool, Option("--pace", help="Let a file come at its own pace, as if spoken now.")
    ] = False
    recogniser: Annotated[
        str,
        Option(
            help="A folder, or a name: whisper-base, nemo-parakeet-tdt-0.6b-v3, "
            "faster-whisper:small, vosk:de, …"
        ),
    ] = "whisper-base"
    language: Annotated[
        str | None,
        Option(help="The speaker's language [default: the model's source language]."),
    ] = None
    every: Annotated[
        float | None,
        Option(
            help="Seconds between looks at what is being said; more on a slow machine "
            "[default: 0.8]."
        ),
    ] = None
    captions: Annotated[
        Path | None, Option(help="Write subtitles here: a name in .srt or .vtt.")
    ] = None
    show: Annotated[str, Option(help="words: two lines; json: an event a line.")] = "words"


def listen(options: ListenArguments) -> None:
    """Hear a voice and translate it: from a microphone, a file or a pipe.

    What is said and its translation grow on two lines; neither is ever taken back. Words that may
    still change are shown in grey and are not translated. Ctrl-C ends: what was heard is translated
    to its end, and the subtitles are complete.

    Examples:

        waitinfo listen

        waitinfo listen --microphone usb --lag 4 --captions talk.srt

        waitinfo listen --audio talk.mp3 --model en-de --pace

        arecord -f S16_LE -r 16000 -c 1 | waitinfo listen -

        waitinfo listen --audio talk.wav --recogniser vosk-model-small-de-0.15 --show json
    """
    from waitinfo.cli.views import SPEECH_VIEWS
    from waitinfo.listening.captions import CaptionFile
    from waitinfo.listening.listen import Listener
    from waitinfo.listening.loading import load_recogniser
    from waitinfo.streaming.translator import Translator

    if options.k is not None and options.lag is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")
    if options.show not in SPEECH_VIEWS:
        raise unknown("--show", options.show, SPEECH_VIEWS)
    source = _source(options)
    captions = None if options.captions is None else CaptionFile(options.captions)
    if sys.stderr.isatty():
        note(f"loading the recogniser {options.recogniser} …")
    try:
        recogniser = load_recogniser(options.recogniser, options.every)
        use_threads(options.threads or 1)
        translator = Translator(options.load(options.model), 1, lag=options.lag)
        language = options.language or translator.loaded.languages.source
        voice = recogniser.voice(language, source.live)
        stream = translator.stream(options.k, raw=True, history=0)
        _follow(Listener(source, voice, stream), recogniser.every, options.show, captions)
    finally:
        if captions is not None:
            captions.close()


def _source(options: ListenArguments) -> Source:
    from waitinfo.listening.listen import open_source
    from waitinfo.listening.sources import Microphone

    if options.input not in (None, "-"):
        raise WaitinfoError(f"{options.input}: give files with --audio, or - for standard input")
    given = [options.input, options.audio, options.microphone]
    if sum(each is not None for each in given) > 1:
        raise WaitinfoError("give one of --audio, --microphone and -")
    if options.pace and options.audio is None:
        raise WaitinfoError("--pace: for --audio; other audio comes at its own pace")
    if options.input is None and options.audio is None:
        return Microphone(options.microphone)
    return open_source(options.input or options.audio, options.pace)


def _follow(listener: Listener, every: float, show: str, captions: CaptionFile | None) -> None:
    """Show the events as they come, to the end."""
    from waitinfo.cli.views import SPEECH_VIEWS
    from waitinfo.listening.captions import Sentence

    slow = False
    with _stopping(listener), SPEECH_VIEWS[show]() as view:
        for event in listener:
            view.event(event)
            if event.kind == "END" and captions is not None:
                captions.add(Sentence(event.text, event.start, event.end))
            if listener.source.live and not slow and listener.rhythm > SLOW * every:
                slow = True
                view.note(_slowness(listener.rhythm, every))
    if listener.lost:
        note(f"note: {listener.lost:.0f} seconds were not heard: recognition was too slow")


def _slowness(rhythm: float, every: float) -> str:
    return (
        f"note: this machine is slow for this recogniser: it looks every {rhythm:.1f} s at what "
        f"is being said, not every {every:.1f} s"
    )


@contextmanager
def _stopping(listener: Listener) -> Iterator[None]:
    """Let Ctrl-C end politely, and a second one at once."""

    def stop(number: int, frame: types.FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        listener.stop()

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
