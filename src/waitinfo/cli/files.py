"""`waitinfo translate --input FILE --out FILE`: files of any length."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from waitinfo.cli.display import note, progress_bar
from waitinfo.cli.loading import load, use_threads
from waitinfo.errors import WaitinfoError
from waitinfo.progress import Silent
from waitinfo.streaming.lag import Dials
from waitinfo.translation.files import Summary, check_files, translate_file
from waitinfo.translation.options import TranslationOptions
from waitinfo.translation.processes import Processes
from waitinfo.translation.work import Work

if TYPE_CHECKING:
    from waitinfo.cli.translate import Request


def run(request: Request) -> None:
    """Translate a file; of several processes, the first one talks."""
    if request.input is None:
        raise WaitinfoError("--out: needs --input, a file that can be read again when resuming")
    if request.pace or request.show != "words" or request.text:
        raise WaitinfoError("--out: leave out --pace, --show and text")
    if request.server is not None:
        raise WaitinfoError("--out: translates here; leave out --server")
    assert request.out is not None
    check_files(request.input, request.out)
    use_threads(request.threads)
    options = _options(request)
    processes = Processes.join()
    if processes.size == 1:  # else the first process does this for all of them
        Work(request.out).check_start(request.resume, request.force)
    on_gpu = request.device.startswith("cuda")
    dtype = "bfloat16" if on_gpu and request.dtype == "auto" else request.dtype
    device = processes.device(request.device)
    loaded = load(request.model, device, dtype, request.system, request.settings)
    if request.lag is not None:  # lines are translated one by one, at the calibrated dial
        options = replace(options, k=Dials(loaded.folder, loaded.system).at_lag(request.lag))
    with progress_bar(paced=True) if processes.leads else nullcontext(Silent()) as progress:
        summary = translate_file(
            loaded,
            request.input,
            request.out,
            options,
            request.resume,
            request.force,
            request.rows,
            processes,
            progress,
        )
    _report(request, summary, processes.leads)


def _report(request: Request, summary: Summary, leads: bool) -> None:
    for numbers, problem in (
        (summary.invalid, "not valid UTF-8"),
        (summary.foreign, "not in the model's source language"),
    ):
        if numbers:
            others = f" and {len(numbers) - 1:,} others" if len(numbers) > 1 else ""
            note(f"note: {request.input}, line {numbers[0]}{others}: {problem}")
    if not leads:
        return
    rate = summary.translated / max(summary.seconds, 1e-9)
    note(f"{request.out}: {summary.translated:,} lines translated, {rate:,.0f} per second")


def _options(request: Request) -> TranslationOptions:
    return TranslationOptions(
        k=request.k,
        ending=request.ending,
        segment=request.segment,
        beam=request.beam,
        best=request.best,
        temperature=request.temperature,
        top_k=request.top_k,
        seed=request.seed,
        scores=request.scores,
    )
