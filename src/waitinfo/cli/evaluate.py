"""`waitinfo evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Option
from waitinfo.cli.options import Beam, Ending, ModelOptions, check_beam, numbers, use_threads
from waitinfo.errors import WaitinfoError
from waitinfo.systems import check_dial

if TYPE_CHECKING:
    from waitinfo.evaluation.documents import Condition
    from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet
    from waitinfo.evaluation.output import Output
    from waitinfo.evaluation.points import Point
    from waitinfo.evaluation.timing import Timing
    from waitinfo.progress import Progress
    from waitinfo.trained.saving import LoadedModel

AUTO = "auto"
BLOCK = "25"  # lines of a document where --documents does not say


@dataclass(kw_only=True)
class EvaluateArguments(ModelOptions):
    """What `evaluate` is given."""

    source: Annotated[Path | None, Option(help="Test sentences, one per line.")] = None
    reference: Annotated[Path | None, Option(help="Their translations.")] = None
    audio: Annotated[
        Path | None,
        Option(help="Instead of them: recordings, in a manifest of one JSON object a line."),
    ] = None
    recogniser: Annotated[str, Option(help="With --audio: as listen --recogniser.")] = (
        "whisper-base"
    )
    every: Annotated[
        float | None, Option(help="With --audio: seconds between looks [default: 0.8].")
    ] = None
    out: Annotated[
        Path | None,
        Option(help="Folder for one JSON per point, or a .jsonl file to add points to."),
    ] = None
    k: Annotated[
        str | None, Option(help="Dial values, for example 1,3,5 [default: the system's own].")
    ] = None
    lag: Annotated[
        str | None, Option(help="Lags in words instead, for example 3,4 (calibrated models).")
    ] = None
    calibrate: Annotated[
        bool, Option("--calibrate", help="Store in the model which dial has which lag.")
    ] = False
    documents: Annotated[
        str | None,
        Option(help="One stream for each document: all, lines per document, or a file of names."),
    ] = None
    segment: Annotated[str, Option(help="How documents are divided: as translate --segment.")] = (
        AUTO
    )
    condition: Annotated[
        str | None,
        Option(help="clean, lower, errors-N, documents, documents-lower, …, or all."),
    ] = None
    ending: Ending = "guard"
    beam: Beam = 1
    name: Annotated[str | None, Option(help="Name of the curve [default: the system's].")] = None
    label: Annotated[
        str | None, Option(help="What to write at the point in a plot [default: k].")
    ] = None
    run: Annotated[
        str | None,
        Option(help="Name of the training run [default: the run folder's name]."),
    ] = None
    save_text: Annotated[
        bool | None,
        Option(
            "--save-text/--no-save-text",
            help="Keep translations and instances.log [default: where --out is a folder].",
        ),
    ] = None
    overwrite: Annotated[bool, Option("--overwrite", help="Recompute existing points.")] = False
    rate: Annotated[
        float | None,
        Option(help="Words per second: also measure latency with computation at this rate."),
    ] = None
    timed: Annotated[int, Option(help="Sentences to measure it on.")] = 100
    comet: Annotated[bool, Option("--comet", help="Score COMET too (an extra).")] = False


def evaluate(options: EvaluateArguments) -> None:
    """Score a model on a test set: quality and latency, one point for each dial value.

    In a folder, every point gets NAME-K.json with all metrics, and a folder NAME-K with the
    translations and the `instances.log` that SimulEval reads. A file in .jsonl gets one line per
    point. The same command continues an interrupted evaluation.

    Examples:

        waitinfo evaluate --model run --source test.de --reference test.en --k 1,3,5 --out points

        waitinfo evaluate --model run --source test.de --reference test.en --rate 2.5 --out points

        waitinfo evaluate --model run --source test.de --reference test.en --out points.jsonl

        waitinfo evaluate --model multipath --system adaptive-wait-k --k 0.2,0.5 …

        waitinfo evaluate --model run --source dev.de --reference dev.en --calibrate

        waitinfo evaluate --model run --source t.de --reference t.en --lag 3,4 --out points

        waitinfo evaluate --model run --source t.de --reference t.en --documents 25 --out points

        waitinfo evaluate --model run --source t.de --reference t.en --condition all --out points

        waitinfo evaluate --model run --audio talks.jsonl --recogniser whisper-tiny --out points
    """
    from waitinfo.cli import tables
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.cli.speech import evaluate_audio
    from waitinfo.evaluation.output import Output
    from waitinfo.evaluation.quality import COMET_MODEL, check_installed, load_comet
    from waitinfo.evaluation.timing import Timing

    if options.audio is not None or options.calibrate:
        (_calibrate if options.audio is None else evaluate_audio)(options)
        return
    test = _test_set(options)
    if options.out is None:
        raise WaitinfoError("--out: give a folder or a .jsonl file for the points")
    conditions = _conditions(options)
    output = Output.at(options.out, options.save_text, options.overwrite)
    if any(condition.documents for condition in conditions):
        test.check_words("--documents: latency")
    _check_names(options)
    check_installed()
    timing = None if options.rate is None else Timing(options.rate, options.timed)
    if options.comet and not output.text:
        raise WaitinfoError("--comet: scores the saved text; give --save-text with it")
    if options.comet:
        load_comet(COMET_MODEL)
    use_threads(options.threads)
    loaded = options.load(options.model)
    check_beam(loaded.system, options.beam)
    decodings = _decodings(options, loaded)
    if options.label is not None and len(decodings) > 1:
        raise WaitinfoError("--label: names one point; give one value of --k with it")
    if timing and options.beam > 1:
        raise WaitinfoError("--rate: streams translate greedily; leave --beam out")
    output.prepare()
    try:
        with progress_bar() as progress:
            found = {
                each: _points(options, each, loaded, test, decodings, output, timing, progress)
                for each in conditions
            }
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    if len(found) > 1:
        tables.condition_table(found)
        return
    (points,) = found.values()
    shown = tables.document_tables if conditions[0].documents else tables.point_tables
    shown(points[0]["name"], points)


def _test_set(options: EvaluateArguments) -> TestSet:
    from waitinfo.evaluation.evaluate import TestSet

    if options.source is None or options.reference is None:
        raise WaitinfoError("--source and --reference: give both, or --audio MANIFEST")
    return TestSet.read(options.source, options.reference)


def _points(
    options: EvaluateArguments,
    condition: Condition,
    loaded: LoadedModel,
    test: TestSet,
    decodings: list[Decoding],
    output: Output,
    timing: Timing | None,
    progress: Progress,
) -> list[Point]:
    """The points of a model under one condition."""
    from waitinfo.evaluation.documents import DocumentEvaluation, Documents, evaluate_documents
    from waitinfo.evaluation.evaluate import Evaluation
    from waitinfo.evaluation.output import FolderOutput
    from waitinfo.evaluation.quality import RESAMPLES

    if condition.name != "clean" and isinstance(output, FolderOutput):
        # In a folder, names of points do not tell conditions apart.
        output = replace(output, place=output.place / condition.name)
    changed = condition.apply(test, loaded.languages.source)
    if condition.documents:
        documents = Documents.parse(options.documents or BLOCK, len(changed.sources))
        long = DocumentEvaluation(
            loaded, changed, documents, options.name, options.run, options.segment
        )
        made = (evaluate_documents(long, how, output, RESAMPLES, progress) for how in decodings)
    else:
        short = Evaluation(loaded, changed, options.name, options.run)
        made = (_point(short, how, output, timing, options, progress) for how in decodings)
    points = []
    for point in made:
        points.append(point)
        if len(decodings) > 1:  # the table comes when all are there
            progress.row(_briefly(point))
    return points


def _briefly(point: Point) -> dict[str, str]:
    """A row of the table that grows while the command runs."""
    lag = point["word"]["LAAL"]
    unit = point.get("units", {}).get("target", "words")
    return {
        "set": point["set"],
        "system": point["name"],
        str(point["dial"]): f"{point['k']:g}",
        "BLEU": f"{point['quality']['BLEU']:.2f}",
        f"LAAL ({unit})": "" if lag is None else f"{lag:.2f}",
    }


def _conditions(options: EvaluateArguments) -> list[Condition]:
    from waitinfo.evaluation.documents import parse_conditions
    from waitinfo.streaming.segmenter import Segmentation

    chosen = parse_conditions(
        options.condition or ("clean" if options.documents is None else "documents")
    )
    in_documents = [condition for condition in chosen if condition.documents]
    if options.documents is not None and not in_documents:
        raise WaitinfoError(f"--documents: not used by --condition {options.condition}")
    Segmentation.parse(options.segment)
    if options.segment != AUTO and len(in_documents) < len(chosen):
        raise WaitinfoError("--segment: for documents alone; a sentence is never divided")
    if in_documents and (options.rate is not None or options.comet or options.label):
        raise WaitinfoError("--rate, --comet and --label: not with documents")
    return chosen


def _decodings(options: EvaluateArguments, loaded: LoadedModel) -> list[Decoding]:
    """Dial values as given, or those that have the lags that were asked for."""
    from waitinfo.evaluation.evaluate import Decoding
    from waitinfo.streaming.lag import Dials

    if options.lag is None:
        asked = [None] if options.k is None else numbers("--k", options.k)
        return [Decoding(check_dial(loaded.system, k), options.ending, options.beam) for k in asked]
    if options.k is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")
    dials = Dials(loaded.folder, loaded.system)
    return [
        Decoding(dials.at_lag(lag), options.ending, options.beam, lag)
        for lag in numbers("--lag", options.lag)
    ]


def _calibrate(options: EvaluateArguments) -> None:
    """Measure the lag of dial values and store it in the model folder."""
    from waitinfo.cli.console import progress_bar
    from waitinfo.cli.options import note
    from waitinfo.cli.tables import calibration_table
    from waitinfo.evaluation.calibrate import calibrate, default_dials
    from waitinfo.evaluation.evaluate import Decoding, Evaluation
    from waitinfo.evaluation.quality import check_installed
    from waitinfo.trained.calibration import FILE, write_calibration

    others = (options.lag, options.documents, options.condition, options.out)
    if any(value is not None for value in others) or options.beam > 1 or options.segment != AUTO:
        raise WaitinfoError(
            "--calibrate: leave out --out, --lag, --documents, --segment, --condition, --beam"
        )
    test = _test_set(options)
    check_installed()
    use_threads(options.threads)
    loaded = options.load(options.model)
    dials = default_dials(loaded.system)
    if options.k is not None:
        dials = [check_dial(loaded.system, k) for k in numbers("--k", options.k)]
    evaluation = Evaluation(loaded, test, options.name, options.run)
    with progress_bar() as progress:
        decodings = [Decoding(k, options.ending) for k in dials]
        calibration = calibrate(evaluation, decodings, progress)
    facts = {"ending": options.ending, "test": test.facts}
    write_calibration(loaded.folder, loaded.system, calibration, facts)
    calibration_table(loaded.system, calibration)
    note(f"stored in {loaded.folder / FILE}; now --lag works with this model")


def _check_names(options: EvaluateArguments) -> None:
    for option, name in (("--name", options.name), ("--run", options.run)):
        if name and ("/" in name or name.startswith(".")):
            raise WaitinfoError(f"{option} {name}: must be a plain file name")


def _point(
    evaluation: Evaluation,
    decoding: Decoding,
    output: Output,
    timing: Timing | None,
    options: EvaluateArguments,
    progress: Progress,
) -> Point:
    from waitinfo.evaluation.evaluate import evaluate_point
    from waitinfo.evaluation.output import read_instances
    from waitinfo.evaluation.quality import COMET_MODEL, RESAMPLES, comet

    point = evaluate_point(evaluation, decoding, output, timing, RESAMPLES, progress)
    changed = options.label is not None and point.get("label") != options.label
    if changed:
        point["label"] = options.label
    if options.comet and "COMET" not in point["quality"]:
        folder = output.text_folder(evaluation.key(decoding))
        texts = [found["prediction"] for found in read_instances(folder)]
        test = evaluation.test
        gpus = int(options.device.startswith("cuda"))
        point["quality"]["COMET"] = comet(test.sources, texts, test.references, gpus=gpus)
        point["quality"]["COMET_signature"] = COMET_MODEL
        changed = True
    if changed:
        output.write(point)
    return point
