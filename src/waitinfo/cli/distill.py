"""`waitinfo distill`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from waitinfo.cli.flags import Option
from waitinfo.cli.options import BatchOptions, Paths, use_threads
from waitinfo.errors import WaitinfoError, unknown

if TYPE_CHECKING:
    from waitinfo.distillation.distill import DistilledPairs
    from waitinfo.trained.saving import LoadedModel
    from waitinfo.translation.decoding import TranslationOptions

BEAM = 5  # of full-sentence teachers


@dataclass(kw_only=True)
class DistillArguments(BatchOptions):
    """What `distill` is given."""

    teacher: Annotated[Paths, Option(help="Model or run folders; several translate together.")]
    data: Annotated[Path | None, Option(help="A corpus made by prepare, or a TSV file.")] = None
    out: Annotated[Path, Option(help="Corpus folder to write, or a .tsv file.")]
    text: Annotated[Paths, Option(help="Further source text, which has no translation.")] = field(
        default_factory=list
    )
    mix: Annotated[
        list[str],
        Option(
            help="Share of the pairs of an origin: original=0.5, distilled=1, monotone=1 "
            "[default: all of each]."
        ),
    ] = field(default_factory=list)
    system: Annotated[
        str | None,
        Option(
            help="Translate by this system: wait-k or wait-info makes monotone pairs "
            "[default: the teacher's own]."
        ),
    ] = None
    beam: Annotated[
        int | None, Option(help="Beam width [default: 5 for full-sentence teachers].")
    ] = None
    best: Annotated[
        int | None,
        Option(help="Translations to choose from [default: the beam, or 1 by score]."),
    ] = None
    choose: Annotated[
        str,
        Option(help="By the teacher's score, or by chrf or bleu against the reference."),
    ] = "score"
    max_tokens: Annotated[int, Option(help="Longest sentence kept, in tokens.")] = 250
    max_ratio: Annotated[float, Option(help="Largest length ratio kept.")] = 3.0


def distill(options: DistillArguments) -> None:
    """Make training text of a teacher's translations.

    A full-sentence teacher makes `distilled` pairs. A simultaneous one makes `monotone` pairs,
    whose word order follows the source where it can: give a multipath or wait-info model, or
    choose --system. Originals and new pairs are mixed, and each is marked with its origin. To have
    both kinds, distill the result once more: only `original` pairs are translated.

    An interrupted call continues with --resume. Several processes share the work:
    torchrun --nproc-per-node 8 -m waitinfo distill …

    Examples:

        waitinfo distill --teacher teacher --data corpus --out distilled --device cuda

        waitinfo distill --teacher Helsinki-NLP/opus-mt-en-pt --text english.txt --out new.tsv.xz

        waitinfo distill --teacher a b --data corpus --out out --beam 8 --choose chrf

        waitinfo distill --teacher run --k 5 --data corpus --mix original=0.5 --out monotone

        waitinfo distill --teacher multipath --system wait-k --k 7 --data corpus --out monotone

        waitinfo distill --teacher teacher --data pairs.tsv.xz --text german.txt --out new.tsv.xz
    """
    from waitinfo.cli.console import progress_bar
    from waitinfo.distillation import distill as distillation
    from waitinfo.distillation.filters import CHOICES, Filters
    from waitinfo.distillation.mixing import Data, parse_mix
    from waitinfo.progress import Silent
    from waitinfo.text.languages import Languages
    from waitinfo.translation.sharing import Processes

    options.check_dial()
    if options.choose not in CHOICES:
        raise unknown("--choose", options.choose, CHOICES)
    mix, data, out = parse_mix(options.mix), Data(options.data, options.text), options.out
    distillation.check_output(data, out)
    use_threads(options.threads)
    processes = Processes.join()
    if processes.size == 1:  # before models are loaded; else the first process does it for all
        begun = out.parent / f".{out.name}.distill"
        distillation.check_start(out, begun.exists(), options.resume, options.force)
    device = processes.device(options.device)
    teachers = [options.load_for_batches(path, device) for path in options.teacher]
    first = teachers[0]
    languages = Languages(
        first.languages.source or data.languages.source,
        first.languages.target or data.languages.target,
    )
    how = distillation.DistillOptions(
        _translation(options, first),
        options.choose,
        mix,
        Filters(options.max_tokens, options.max_ratio, languages),
        options.seed,
    )
    with progress_bar(paced=True) if processes.leads else nullcontext(Silent()) as progress:
        if processes.leads and _untrained(first):
            progress.note(
                f"{first.folder}: was trained on whole sentences, so what it writes under "
                f"{first.system.name} is poor; a simultaneous model is a better teacher here"
            )
        report = distillation.distill(
            teachers, data, out, how, options.resume, options.force, options.rows, processes,
            progress,
        )  # fmt: skip
    if processes.leads:
        _show(out, report)


def _untrained(loaded: LoadedModel) -> bool:
    """Whether a model writes under a path that it was never trained on."""
    from waitinfo.trained.folder import read_config

    return loaded.system.simultaneous and read_config(loaded.folder)["system"]["name"] == "full"


def _translation(options: DistillArguments, teacher: LoadedModel) -> TranslationOptions:
    """How the teacher translates: with a beam, by sampling, or simultaneously."""
    from waitinfo.translation.decoding import TranslationOptions

    for name in ("beam", "best"):
        if (number := getattr(options, name)) is not None and number < 1:
            raise WaitinfoError(f"--{name} {number}: must be at least 1")
    sampled, simultaneous = options.temperature > 0, teacher.system.simultaneous
    beam = options.beam or (1 if sampled or simultaneous else BEAM)
    compared = options.choose != "score"
    best = options.best or (beam if compared and not sampled else 1)
    found = TranslationOptions(
        k=options.dial(teacher),
        beam=beam,
        best=best,
        temperature=options.temperature,
        top_k=options.top_k,
        seed=options.seed,
        scores=best > 1 and not compared,
    )
    found.dial(teacher.system)  # raise errors now
    return found


def _show(out: Path, report: DistilledPairs | None) -> None:
    from waitinfo.cli.options import note

    if report is None:
        note(f"{out} is complete")
        return
    made = ", ".join(f"{count:,} {origin}" for origin, count in sorted(report.pairs.items()))
    note(f"{out}: {report.pairs.total():,} pairs ({made or 'none'})")
    for reason, count in report.dropped.most_common():
        note(f"  dropped {count:,}: {reason}")
