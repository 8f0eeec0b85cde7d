"""`waitinfo distill`: loads the teachers, and reports what came out."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from waitinfo.cli.display import note, progress_bar
from waitinfo.cli.loading import load, use_threads
from waitinfo.distillation.choosing import CHOICES
from waitinfo.distillation.distill import (
    DistillOptions,
    Report,
    check_output,
    check_start,
    distill,
)
from waitinfo.distillation.filters import Filters
from waitinfo.distillation.mixing import Data, parse_mix
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.progress import Silent
from waitinfo.streaming.lag import Dials
from waitinfo.text.languages import Languages
from waitinfo.trained.folder import read_config
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.options import TranslationOptions
from waitinfo.translation.processes import Processes

BEAM = 5  # of full-sentence teachers


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was typed."""

    teachers: list[Path]
    data: Path
    out: Path
    texts: list[Path]
    mix: list[str]
    system: str | None
    settings: list[str]
    k: float | None
    lag: float | None
    beam: int | None
    best: int | None
    choose: str
    temperature: float
    top_k: int
    max_tokens: int
    max_ratio: float
    seed: int
    resume: bool
    force: bool
    rows: int | None
    device: str
    dtype: str
    threads: int


def run(request: Request) -> None:
    """Distill; of several processes, the first one talks."""
    if request.k is not None and request.lag is not None:
        raise WaitinfoError("--lag: chooses the dial; leave out --k")
    if request.choose not in CHOICES:
        raise unknown("--choose", request.choose, CHOICES)
    mix, data = parse_mix(request.mix), Data(request.data, request.texts)
    check_output(data, request.out)
    use_threads(request.threads)
    processes = Processes.join()
    if processes.size == 1:  # before models are loaded; else the first process does it for all
        begun = request.out.parent / f".{request.out.name}.distill"
        check_start(request.out, begun.exists(), request.resume, request.force)
    on_gpu = request.device.startswith("cuda")
    dtype = "bfloat16" if on_gpu and request.dtype == "auto" else request.dtype
    device = processes.device(request.device)
    teachers = [
        load(path, device, dtype, request.system, request.settings) for path in request.teachers
    ]
    first = teachers[0]
    languages = Languages(
        first.languages.source or data.languages.source,
        first.languages.target or data.languages.target,
    )
    options = DistillOptions(
        translation_options(request, first),
        request.choose,
        mix,
        Filters(request.max_tokens, request.max_ratio, languages),
        request.seed,
    )
    with progress_bar(paced=True) if processes.leads else nullcontext(Silent()) as progress:
        if processes.leads and _untrained(first):
            progress.note(
                f"{first.folder}: was trained on whole sentences, so what it writes under "
                f"{first.system.name} is poor; a simultaneous model is a better teacher here"
            )
        report = distill(
            teachers,
            data,
            request.out,
            options,
            request.resume,
            request.force,
            request.rows,
            processes,
            progress,
        )
    if processes.leads:
        _show(request.out, report)


def _untrained(loaded: LoadedModel) -> bool:
    """Whether a model writes under a path that it was never trained on."""
    return loaded.system.simultaneous and read_config(loaded.folder)["system"]["name"] == "full"


def translation_options(request: Request, teacher: LoadedModel) -> TranslationOptions:
    """How the teacher translates: with a beam, by sampling, or simultaneously."""
    sampled, simultaneous = request.temperature > 0, teacher.system.simultaneous
    beam = request.beam or (1 if sampled or simultaneous else BEAM)
    compared = request.choose != "score"
    best = request.best or (beam if compared and not sampled else 1)
    k = request.k
    if request.lag is not None:
        k = Dials(teacher.folder, teacher.system).at_lag(request.lag)
    options = TranslationOptions(
        k=k,
        beam=beam,
        best=best,
        temperature=request.temperature,
        top_k=request.top_k,
        seed=request.seed,
        scores=best > 1 and not compared,
    )
    options.dial(teacher.system)  # raise errors now
    return options


def _show(out: Path, report: Report | None) -> None:
    if report is None:
        note(f"{out} is complete")
        return
    made = ", ".join(f"{count:,} {origin}" for origin, count in sorted(report.pairs.items()))
    note(f"{out}: {report.pairs.total():,} pairs ({made or 'none'})")
    for reason, count in report.dropped.most_common():
        note(f"  dropped {count:,}: {reason}")
