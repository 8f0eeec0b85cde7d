"""`waitinfo evaluate --audio`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waitinfo.cli.options import use_threads
from waitinfo.errors import WaitinfoError
from waitinfo.systems import check_dial

if TYPE_CHECKING:
    from waitinfo.cli.evaluate import EvaluateArguments


def evaluate_audio(options: EvaluateArguments) -> None:
    """Score recordings, from speech to translation; one folder for each dial value."""
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note, numbers
    from waitinfo.evaluation.quality import check_installed
    from waitinfo.evaluation.speech import hear, read_manifest, score, write_results
    from waitinfo.listening.loading import load_recogniser
    from waitinfo.streaming.translator import Translator

    _check(options)
    assert options.audio is not None and options.out is not None
    check_installed()
    segments = read_manifest(options.audio)
    recogniser = load_recogniser(options.recogniser, options.every)
    use_threads(options.threads or 1)
    loaded = options.load(options.model)
    translator = Translator(loaded, 1)
    ways: list[tuple[float | None, float | None]]
    if options.lag is not None:
        ways = [(None, lag) for lag in numbers("--lag", options.lag)]
    else:
        dials = [None] if options.k is None else numbers("--k", options.k)
        ways = [(check_dial(loaded.system, k), None) for k in dials]
    files = len({segment.audio for segment in segments})
    points: list[dict[str, Any]] = []
    with progress_bar() as progress:
        for k, lag in ways:
            name = f"{options.name or loaded.system.name}{_suffix(k, lag)}"
            progress.stage(name, files)
            done = iter(range(1, files + 1))
            talks = hear(
                segments, recogniser, translator, k, lag,
                told=lambda _, done=done: progress.advance(next(done)),  # type: ignore[misc]
            )  # fmt: skip
            settings = {"name": name, "system": loaded.system.name, "k": k, "lag": lag,
                        "recogniser": recogniser.name, "every": recogniser.every}  # fmt: skip
            points.append({**settings, **score(talks)})
            write_results(options.out / name, talks, points[-1])
    _table(points)
    for point in points:
        if point["lost_seconds"]:
            note(f"note: {point['name']}: {point['lost_seconds']:.0f} s of audio were not heard")


def _suffix(k: float | None, lag: float | None) -> str:
    return f"-lag-{lag:g}" if lag is not None else "" if k is None else f"-{k:g}"


def _check(options: EvaluateArguments) -> None:
    others = {
        "--source": options.source, "--reference": options.reference,
        "--documents": options.documents, "--condition": options.condition,
        "--rate": options.rate, "--label": options.label,
    }  # fmt: skip
    for name, value in others.items():
        if value is not None:
            raise WaitinfoError(f"--audio: leave out {name}; the manifest has all of it")
    if options.calibrate or options.comet or options.beam > 1:
        raise WaitinfoError("--audio: leave out --calibrate, --comet and --beam")
    if options.out is None or options.out.suffix == ".jsonl":
        raise WaitinfoError("--out: give a folder for the figures of --audio")
    if options.k is not None and options.lag is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")


def _table(points: list[dict[str, Any]]) -> None:
    """Seconds of audio; in brackets what the clock said, computing included."""
    from rich.table import Table

    from waitinfo.cli.console import print_table

    table = Table()
    for column in ("", "word errors %", "BLEU", "word heard, s", "95%", "translated, s", "95%",
                   "StreamLAAL", "LongYAAL"):  # fmt: skip
        table.add_column(column, justify="right")
    for point in points:
        heard, shown = point["recognised"], point["translated"]
        pairs = [_pair(part, figure) for part in (heard, shown) for figure in ("median", "p95")]
        ideal, aware = point["latency"], point["latency_with_computation"]
        latencies = [
            f"{_number(ideal[m])} ({_number(aware[m])})" for m in ("StreamLAAL", "LongYAAL")
        ]
        table.add_row(point["name"], _number(point["word_error_rate"], 1),
                      _number(point["quality"]["BLEU"]), *pairs, *latencies)  # fmt: skip
    seconds = points[0]["seconds"]
    print_table(table, f"{points[0]['recogniser']}, {seconds:.0f} s of audio; computation in ()")


def _pair(part: dict[str, Any], figure: str) -> str:
    audio, time = (part[each] and part[each][figure] for each in ("audio", "time"))
    return f"{_number(audio)} ({_number(time)})"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
