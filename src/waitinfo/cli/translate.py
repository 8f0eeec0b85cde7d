"""`waitinfo translate`: a file in batches, standard input live, or words at a given rate."""

from __future__ import annotations

import math
import os
import stat
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Argument, Option
from waitinfo.cli.options import (
    BatchOptions,
    Beam,
    Ending,
    ModelOptions,
    check_beam,
    use_threads,
)
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.systems import check_dial

if TYPE_CHECKING:
    from waitinfo.streaming.segmenter import Segmentation

TOGETHER = 32  # lines of a file translated at a time
ALONE = 4  # streams for lines that come one after the other
SLOWEST = 0.001  # words per second: one in a quarter of an hour


@dataclass(kw_only=True)
class TranslateArguments(BatchOptions, ModelOptions):
    """What `translate` is given."""

    text: Annotated[list[str], Argument(help="Text to translate; each argument separately.")] = (
        field(default_factory=list)
    )
    input: Annotated[Path | None, Option(help="A text file; translated line by line.")] = None
    out: Annotated[Path | None, Option(help="Write here what --input becomes, line by line.")] = (
        None
    )
    show: Annotated[
        str, Option(help="words; path: READ and WRITE; info: coloured by info; json.")
    ] = "words"
    pace: Annotated[float, Option(help="Let words arrive at this rate per second, and watch.")] = (
        0.0
    )
    ending: Ending = "guard"
    segment: Annotated[
        str,
        Option(
            help="Where sentences end: punctuation; pause or pause:SECONDS; none or none:TOKENS, "
            "a sliding window; auto or auto:TOKENS, punctuation where the text has it, else a "
            "window; whole, with the line."
        ),
    ] = "auto"
    beam: Beam = 1
    best: Annotated[int, Option(help="Translations of each line in --out, between tabs.")] = 1
    scores: Annotated[
        bool, Option("--scores", help="Write log p per token and a tab before each.")
    ] = False
    threads: Annotated[
        int, Option(help="CPU threads [default: 1, and all there are for --input].")
    ] = 0
    server: Annotated[
        str | None, Option(help="Let this server translate, such as http://HOST:8000.")
    ] = None
    key: Annotated[str | None, Option(help="Key to the server.", envvar="WAITINFO_KEY")] = None


def translate(options: TranslateArguments) -> None:
    """Translate text: arguments, a file, or standard input while it arrives.

    From standard input, words are printed as soon as they are written. With --out, a file of any
    length is translated in large batches; it can be interrupted and resumed, and shared by several
    processes: torchrun --nproc-per-node 8 -m waitinfo translate …

    Examples:

        waitinfo translate "Ich muss heute mit meiner Mutter sprechen."

        some-speech-recogniser | waitinfo translate --k 3

        some-speech-recogniser | waitinfo translate --segment pause:0.7

        waitinfo translate --pace 3 --show path "Wo hast du das Buch gekauft?"

        waitinfo translate --model run --input test.de > test.en

        waitinfo translate --model run --input news.de.xz --out news.en.xz --device cuda --beam 4

        waitinfo translate --server http://127.0.0.1:8000 --pace 3 "Guten Morgen zusammen!"
    """
    from waitinfo.cli.views import VIEWS
    from waitinfo.streaming.segmenter import Segmentation

    options.check_dial()
    if options.out is not None:
        _file(options, options.out)
        return
    _check_plain(options)
    if options.show not in VIEWS:
        raise unknown("--show", options.show, VIEWS)
    if options.pace and not SLOWEST <= options.pace < math.inf:
        raise WaitinfoError(
            f"--pace {options.pace:g}: must be 0, or finite and at least {SLOWEST:g}"
        )
    segmentation = Segmentation.parse(options.segment)
    if options.server is not None:
        _on_server(options, options.server, segmentation)
    else:
        _here(options, segmentation)


def _here(options: TranslateArguments, segmentation: Segmentation) -> None:
    """Translate in this process."""
    from waitinfo.cli import terminal
    from waitinfo.cli.options import note
    from waitinfo.cli.views import VIEWS
    from waitinfo.streaming.translator import Translator
    from waitinfo.text.identification import LanguageWarning, LanguageWatch

    # One word at a time is quickly done by one core, and on a busy machine much more quickly.
    use_threads(options.threads or int(options.input is None))
    loaded = options.load(options.model)
    check_beam(loaded.system, options.beam)
    check_dial(loaded.system, options.k)
    if options.beam > 1 and (options.pace or options.show != "words" or options.lag is not None):
        raise WaitinfoError("--beam: shows words alone; leave out --pace, --show and --lag")
    lines = _lines(options)
    language = LanguageWatch(loaded.languages.source, raw=lines is None)

    def watch(text: str) -> None:
        if message := language.add(text):
            note(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LanguageWarning)  # all lines are watched together
        if options.beam > 1:
            given = terminal.typed_lines() if lines is None else lines
            terminal.with_beam(
                loaded, options.beam, options.segment, terminal.watched(given, watch)
            )
            return
        # Fewer streams take less memory.
        alone = lines is None or options.pace
        streams = ALONE if alone else min(len(options.text) or TOGETHER, TOGETHER)
        translator = Translator(
            loaded, streams, ending=options.ending, lag=options.lag, segment=options.segment
        )
        view = VIEWS[options.show]()
        if lines is None:
            terminal.follow(translator, options.k, view, _idle(segmentation), watch)
        elif options.pace:
            terminal.at_pace(
                translator, options.k, view, terminal.watched(lines, watch), options.pace
            )
        else:
            for chunk in terminal.chunks(terminal.watched(lines, watch), TOGETHER):
                terminal.together(translator, options.k, options.segment, view, chunk)


def _on_server(options: TranslateArguments, url: str, segmentation: Segmentation) -> None:
    """The same, but a server translates."""
    local = {
        "--system": options.system,
        "--set": options.settings,
        "--plugin": options.plugins,
        "--beam": options.beam > 1,
        "--ending": options.ending != "guard",
    }
    if given := [name for name, value in local.items() if value]:
        raise WaitinfoError(f"{given[0]}: the server chooses; leave it out with --server")
    try:
        from waitinfo.client.clients import Client
    except ImportError as error:
        raise WaitinfoError(
            f"--server needs {error.name}: pip install 'waitinfo[client]'"
        ) from None
    from waitinfo.cli import terminal
    from waitinfo.cli.views import VIEWS
    from waitinfo.streaming.segmenter import Segmentation

    k, lines, view = options.k, _lines(options), VIEWS[options.show]()
    model = None if options.model is None else str(options.model)
    segmenter = None if segmentation == Segmentation() else options.segment
    with Client(url, options.key, model=model, lag=options.lag, segmenter=segmenter) as client:
        if lines is None:
            terminal.follow(client, k, view, _idle(segmentation))
        elif options.pace:
            terminal.at_pace(client, k, view, lines, options.pace)
        else:
            for chunk in terminal.chunks(lines, TOGETHER):
                for line, events in zip(chunk, client.events(chunk, k), strict=True):
                    view.line(line, events)


def _check_plain(options: TranslateArguments) -> None:
    """Refuse options that only make sense with --out."""
    given = {
        "--resume": options.resume,
        "--force": options.force,
        "--rows": options.rows is not None,
        "--best": options.best > 1,
        "--scores": options.scores,
        "--temperature": options.temperature > 0,
        "--top-k": options.top_k > 0,
    }
    for name in (name for name, used in given.items() if used):
        raise WaitinfoError(f"{name}: needs --input and --out")


def _idle(segmentation: Segmentation) -> float | None:
    """Seconds without text after which a stream is told that time has passed."""
    return segmentation.pause if segmentation.mode == "pause" else None


def _lines(options: TranslateArguments) -> Iterator[str] | None:
    """The lines to translate, or None to follow standard input live."""
    from waitinfo.text.files import read_lines

    if options.text and options.input is not None:
        raise WaitinfoError("give either text or --input, not both")
    if options.text:
        return iter(options.text)
    if options.input is not None:
        return read_lines(options.input)
    if sys.stdin is None:
        raise WaitinfoError("standard input is closed; give text or --input")
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        return read_lines(Path("/dev/stdin"))
    return None


def _file(options: TranslateArguments, out: Path) -> None:
    """Translate a file of any length; of several processes, the first one talks."""
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.progress import Silent
    from waitinfo.translation.decoding import TranslationOptions
    from waitinfo.translation.file_translation import check_files, translate_file
    from waitinfo.translation.sharing import Processes, UnfinishedFile

    source = options.input
    if source is None:
        raise WaitinfoError("--out: needs --input, a file that can be read again when resuming")
    if options.pace or options.show != "words" or options.text:
        raise WaitinfoError("--out: leave out --pace, --show and text")
    if options.server is not None:
        raise WaitinfoError("--out: translates here; leave out --server")
    check_files(source, out)
    use_threads(options.threads)
    names = ("ending", "segment", "beam", "best", "temperature", "top_k", "seed", "scores")
    how = TranslationOptions(k=options.k, **{name: getattr(options, name) for name in names})
    processes = Processes.join()
    if processes.size == 1:  # else the first process does this for all of them
        UnfinishedFile(out).check_start(options.resume, options.force)
    loaded = options.load_for_batches(options.model, processes.device(options.device))
    # Lines are translated one by one, so a lag is held by the dial that was calibrated for it.
    how = replace(how, k=options.dial(loaded))
    with progress_bar(paced=True) if processes.leads else nullcontext(Silent()) as progress:
        summary = translate_file(
            loaded, source, out, how, options.resume, options.force, options.rows, processes,
            progress,
        )  # fmt: skip
    for numbers, problem in (
        (summary.invalid, "not valid UTF-8"),
        (summary.foreign, "not in the model's source language"),
    ):
        if numbers:
            others = f" and {len(numbers) - 1:,} others" if len(numbers) > 1 else ""
            note(f"note: {source}, line {numbers[0]}{others}: {problem}")
    if processes.leads:
        rate = summary.translated / max(summary.seconds, 1e-9)
        note(f"{out}: {summary.translated:,} lines translated, {rate:,.0f} per second")
