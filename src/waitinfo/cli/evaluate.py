"""`waitinfo evaluate`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from waitinfo.cli.display import note, progress_bar
from waitinfo.cli.loading import check_beam, load, use_threads
from waitinfo.cli.options import numbers
from waitinfo.cli.tables import (
    calibration_table,
    condition_table,
    document_tables,
    point_tables,
)
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.calibrate import calibrate, default_dials
from waitinfo.evaluation.conditions import Condition, parse_conditions
from waitinfo.evaluation.documents import (
    AUTO,
    DocumentEvaluation,
    Documents,
    evaluate_documents,
)
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, Timing, evaluate_point
from waitinfo.evaluation.instances import read_instances
from waitinfo.evaluation.output import FolderOutput, Output
from waitinfo.evaluation.points import Point
from waitinfo.evaluation.quality import (
    COMET_MODEL,
    RESAMPLES,
    check_installed,
    comet,
    load_comet,
)
from waitinfo.progress import Progress
from waitinfo.streaming.lag import Dials
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.systems import check_dial
from waitinfo.trained.calibration import FILE as CALIBRATION
from waitinfo.trained.calibration import write_calibration
from waitinfo.trained.saving import LoadedModel

BLOCK = "25"  # lines of a document where --documents does not say


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for on the command line."""

    model: Path | None
    source: Path
    reference: Path
    out: Path | None
    k: str | None
    lag: str | None
    calibrate: bool
    documents: str | None
    segment: str
    condition: str | None
    system: str | None
    settings: list[str]
    ending: str
    beam: int
    name: str | None
    label: str | None
    run: str | None
    save_text: bool | None
    overwrite: bool
    rate: float | None
    timed: int
    comet: bool
    device: str
    dtype: str
    threads: int


def run(request: Request) -> None:
    if request.calibrate:
        _calibrate(request)
        return
    if request.out is None:
        raise WaitinfoError("--out: give a folder or a .jsonl file for the points")
    conditions = _conditions(request)
    output = Output.at(request.out, request.save_text, request.overwrite)
    test = TestSet.read(request.source, request.reference)
    if any(condition.documents for condition in conditions):
        test.check_words("--documents: latency")
    _check_names(request)
    check_installed()
    timing = None if request.rate is None else Timing(request.rate, request.timed)
    if request.comet and not output.text:
        raise WaitinfoError("--comet: scores the saved text; give --save-text with it")
    if request.comet:
        load_comet(COMET_MODEL)
    use_threads(request.threads)
    loaded = load(request.model, request.device, request.dtype, request.system, request.settings)
    check_beam(loaded.system, request.beam)
    decodings = _decodings(request, loaded)
    if request.label is not None and len(decodings) > 1:
        raise WaitinfoError("--label: names one point; give one value of --k with it")
    if timing and request.beam > 1:
        raise WaitinfoError("--rate: streams translate greedily; leave --beam out")
    output.prepare()
    job = _Job(request, loaded, test, output, timing)
    try:
        with progress_bar() as progress:
            found = {each: job.points(each, decodings, progress) for each in conditions}
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    if len(found) > 1:
        condition_table(found)
        return
    (points,) = found.values()
    (document_tables if conditions[0].documents else point_tables)(points[0]["name"], points)


@dataclass(frozen=True)
class _Job:
    """The evaluation of a model under several conditions."""

    request: Request
    loaded: LoadedModel
    test: TestSet
    output: Output
    timing: Timing | None

    def points(
        self, condition: Condition, decodings: list[Decoding], progress: Progress
    ) -> list[Point]:
        evaluation, output = self._evaluation(condition), self.output
        if condition.name != "clean" and isinstance(output, FolderOutput):
            # In a folder, names of points do not tell conditions apart.
            output = replace(output, place=output.place / condition.name)
        if isinstance(evaluation, DocumentEvaluation):
            return [
                evaluate_documents(evaluation, decoding, output, RESAMPLES, progress)
                for decoding in decodings
            ]
        return [
            _point(evaluation, decoding, output, self.timing, self.request, progress)
            for decoding in decodings
        ]

    def _evaluation(self, condition: Condition) -> Evaluation:
        request, loaded = self.request, self.loaded
        test = condition.apply(self.test, loaded.languages.source)
        if not condition.documents:
            return Evaluation(loaded, test, request.name, request.run)
        documents = Documents.parse(request.documents or BLOCK, len(test.sources))
        return DocumentEvaluation(
            loaded, test, documents, request.name, request.run, request.segment
        )


def _conditions(request: Request) -> list[Condition]:
    chosen = parse_conditions(
        request.condition or ("clean" if request.documents is None else "documents")
    )
    in_documents = [condition for condition in chosen if condition.documents]
    if request.documents is not None and not in_documents:
        raise WaitinfoError(f"--documents: not used by --condition {request.condition}")
    Segmentation.parse(request.segment)
    if request.segment != AUTO and len(in_documents) < len(chosen):
        raise WaitinfoError("--segment: for documents alone; a sentence is never divided")
    if in_documents and (request.rate is not None or request.comet or request.label):
        raise WaitinfoError("--rate, --comet and --label: not with documents")
    return chosen


def _decodings(request: Request, loaded: LoadedModel) -> list[Decoding]:
    """Dial values as given, or those that have the lags that were asked for."""
    if request.lag is None:
        return [
            Decoding(check_dial(loaded.system, k), request.ending, request.beam)
            for k in numbers("--k", request.k)
        ]
    if request.k is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")
    dials = Dials(loaded.folder, loaded.system)
    return [
        Decoding(dials.at_lag(lag), request.ending, request.beam, lag)
        for lag in numbers("--lag", request.lag)
        if lag is not None
    ]


def _calibrate(request: Request) -> None:
    """Measure the lag of dial values and store it in the model folder."""
    others = (request.lag, request.documents, request.condition, request.out)
    if any(value is not None for value in others) or request.beam > 1 or request.segment != AUTO:
        raise WaitinfoError(
            "--calibrate: leave out --out, --lag, --documents, --segment, --condition, --beam"
        )
    test = TestSet.read(request.source, request.reference)
    check_installed()
    use_threads(request.threads)
    loaded = load(request.model, request.device, request.dtype, request.system, request.settings)
    dials = default_dials(loaded.system)
    if request.k is not None:
        dials = [check_dial(loaded.system, k) for k in numbers("--k", request.k)]
    evaluation = Evaluation(loaded, test, request.name, request.run)
    with progress_bar() as progress:
        decodings = [Decoding(k, request.ending) for k in dials]
        calibration = calibrate(evaluation, decodings, progress)
    facts = {"ending": request.ending, "test": test.facts}
    write_calibration(loaded.folder, loaded.system, calibration, facts)
    calibration_table(loaded.system, calibration)
    note(f"stored in {loaded.folder / CALIBRATION}; now --lag works with this model")


def _check_names(request: Request) -> None:
    for option, name in (("--name", request.name), ("--run", request.run)):
        if name and ("/" in name or name.startswith(".")):
            raise WaitinfoError(f"{option} {name}: must be a plain file name")


def _point(
    evaluation: Evaluation,
    decoding: Decoding,
    output: Output,
    timing: Timing | None,
    request: Request,
    progress: Progress,
) -> Point:
    point = evaluate_point(evaluation, decoding, output, timing, RESAMPLES, progress)
    changed = request.label is not None and point.get("label") != request.label
    if changed:
        point["label"] = request.label
    if request.comet and "COMET" not in point["quality"]:
        folder = output.text_folder(evaluation.key(decoding))
        texts = [found["prediction"] for found in read_instances(folder)]
        test = evaluation.test
        gpus = int(request.device.startswith("cuda"))
        point["quality"]["COMET"] = comet(test.sources, texts, test.references, gpus=gpus)
        point["quality"]["COMET_signature"] = COMET_MODEL
        changed = True
    if changed:
        output.write(point)
    return point
