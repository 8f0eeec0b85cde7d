"""`waitinfo distill`: the sources of a corpus, translated by a teacher, as a new corpus.

There are three steps, in a folder beside the output. The first draws what is translated and writes
these sources to a file. The second translates it (`translation.file_translation`): it is the long
one, which resumes where it was interrupted and is shared by the processes of torchrun. The third
chooses and filters the translations and writes the mixture, which gets its final name when it is
complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.distillation.filters import (
    Candidates,
    Chooser,
    ChosenTranslation,
    Filters,
    read_translations,
)
from waitinfo.distillation.mixing import (
    DISTILLED,
    MONOTONE,
    CorpusMixture,
    Data,
    Draw,
    Mixture,
    Row,
    TextMixture,
    chunks,
    token_lengths,
)
from waitinfo.errors import WaitinfoError
from waitinfo.progress import Progress, Silent
from waitinfo.storage import fsync_folder, write_file
from waitinfo.text.files import check_writable, compressed, read_bytes
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.decoding import TranslationOptions, check_ensemble
from waitinfo.translation.file_translation import translate_file, translation_settings
from waitinfo.translation.sharing import Processes, locked

PLAN, SOURCE, TRANSLATED, DRAWN = "plan.json", "source.txt", "translated.txt", "drawn.npy"
TRANSLATE, KEEP = 1, 2  # bits of what was drawn for a row
PARALLEL = 50_000  # translations from which on several processes choose
SLICE = 1000  # translations that a process chooses at a time


@dataclass(frozen=True)
class DistillOptions:
    """How the mixture is made."""

    translation: TranslationOptions = field(default_factory=TranslationOptions)
    choose: str = "score"  # or the similarity to the reference: chrf, bleu
    mix: Mapping[str, float] = field(default_factory=dict)  # shares by origin; others are 1
    filters: Filters = field(default_factory=Filters)
    seed: int = 1


@dataclass
class DistilledPairs:
    """What came out."""

    pairs: Counter[str] = field(default_factory=Counter)  # by origin
    dropped: Counter[str] = field(default_factory=Counter)  # by reason

    def record(self) -> dict[str, Any]:
        return {"pairs": dict(self.pairs), "dropped": dict(self.dropped)}


class Distillation:
    """One call of `distill`."""

    def __init__(
        self,
        teachers: Sequence[LoadedModel],
        data: Data,
        out: Path,
        options: DistillOptions,
        progress: Progress,
    ) -> None:
        self.teachers, self.data, self.out, self.options = teachers, data, out, options
        self.progress = progress
        self.folder = out.parent / f".{out.name}.distill"
        first = teachers[0]
        for other in teachers[1:]:
            check_ensemble(first, other)
        self.made = MONOTONE if first.system.simultaneous else DISTILLED
        self.chooser = Chooser(options.choose, options.filters)
        self.vocabulary = data.corpus.vocabulary if data.corpus else first.vocabulary
        self.report = DistilledPairs()

    def settings(self) -> dict[str, Any]:
        """Everything that the output depends on."""
        options, first = self.options, self.teachers[0]
        return {
            "data": self.data.identity(),
            "teacher": translation_settings(first, options.translation, self.teachers[1:]),
            "choose": options.choose,
            "mix": dict(options.mix),
            "filters": asdict(options.filters),
            "seed": options.seed,
        }

    # Before the translation

    @property
    def begun(self) -> bool:
        return (self.folder / PLAN).is_file()

    def begin(self, resume: bool, force: bool) -> None:
        """Write what is to be translated, or check that it is the same as before."""
        check_start(self.out, self.begun, resume, force)
        settings = self.settings()
        if force:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.begun:
            self._check(settings)
            return
        if resume and self.out.exists():
            return  # complete
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._draw()
        except WaitinfoError:
            shutil.rmtree(self.folder)
            raise
        write_file(self.folder / PLAN, json.dumps(settings, indent=2) + "\n")

    def _check(self, settings: dict[str, Any]) -> None:
        before = json.loads((self.folder / PLAN).read_text("utf-8"))
        now = json.loads(json.dumps(settings))
        if changed := [name for name in now if before.get(name) != now[name]]:
            raise WaitinfoError(
                f"{self.out}: was begun with another {' and '.join(changed)}; "
                "use the same settings, or start again with --force"
            )

    def _draw(self) -> None:
        """Write the sources to translate, and what was drawn for every row of the data."""
        draw = Draw(self.options.mix, self.made, self.options.seed)
        self.progress.stage("reading")
        drawn = bytearray()
        with (self.folder / SOURCE).open("w", encoding="utf-8", newline="\n") as stream:
            for row in self.data:
                translated, kept = draw(row)
                if translated and (reason := self.options.filters.of_source(row.source)):
                    translated = False
                    self.report.dropped[reason] += 1
                if translated:
                    stream.write(f"{row.source}\n")
                drawn.append(TRANSLATE * translated + KEEP * kept)
        draw.check()
        np.save(self.folder / DRAWN, np.frombuffer(drawn, np.uint8))
        write_file(self.folder / "dropped.json", json.dumps(self.report.dropped))

    # After the translation

    def finish(self) -> bool:
        """Write the mixture and remove the folder; False if another process has done so."""
        with locked(self.folder / "lock"):
            if not self.begun:
                return False
            dropped = json.loads((self.folder / "dropped.json").read_text("utf-8"))
            self.report.dropped = Counter(dropped)
            fresh = self.folder / "output"
            shutil.rmtree(fresh, ignore_errors=True)
            if self.data.corpus is not None and not is_table(self.out):
                fresh.mkdir()
                self._mix(CorpusMixture(self.data.corpus, fresh))
            else:
                with fresh.open("wb") as raw, compressed(raw, self.out.suffix) as stream:
                    self._mix(TextMixture(stream))
            if self.out.is_dir():
                shutil.rmtree(self.out)  # replaced with --force, or empty
            fresh.replace(self.out)
            fsync_folder(self.out.parent)
            shutil.rmtree(self.folder)
        return True

    def _mix(self, mixture: Mixture) -> None:
        drawn = np.load(self.folder / DRAWN)
        self.progress.stage("mixing", len(drawn))
        path = self.folder / TRANSLATED
        # Models may write any bytes, those of control characters included.
        translated = (line.decode("utf-8", "replace") for line in read_bytes(path))
        done = 0
        with ExitStack() as stack:
            pool = self._pool(stack, int((drawn & TRANSLATE).sum()))
            for rows in chunks(self.data):
                bits = drawn[done : done + len(rows)]
                wanted = [row for row, bit in zip(rows, bits, strict=True) if bit & TRANSLATE]
                lines = list(islice(translated, len(wanted)))
                targets = self._targets(wanted, lines, pool)
                pairs = list(self._pairs(rows, bits, iter(targets)))
                mixture.add(pairs)
                self.report.pairs.update(origin for _, _, origin in pairs)
                done += len(rows)
                self.progress.advance(done)
        mixture.close({**self._describe(), **self.report.record()})

    def _pool(self, stack: ExitStack, tasks: int) -> ProcessPoolExecutor | None:
        if tasks < PARALLEL or (os.cpu_count() or 1) < 2:
            return None
        return stack.enter_context(ProcessPoolExecutor(mp_context=get_context("spawn")))

    def _targets(
        self, rows: Sequence[Row], lines: Sequence[str], pool: ProcessPoolExecutor | None
    ) -> list[str | None]:
        """The chosen translation of each row, None where none passes."""
        scored = self.options.translation.scores
        found = [read_translations(line, scored) for line in lines]
        tasks = list(self._tasks(rows, found))
        slices = [tasks[i : i + SLICE] for i in range(0, len(tasks), SLICE)]
        each = map if pool is None else pool.map
        chosen = each(self.chooser.choose_all, slices)
        choices: list[ChosenTranslation] = [choice for some in chosen for choice in some]
        self.report.dropped.update(choice.reason for choice in choices if choice.reason)
        return [
            None if choice.number is None else texts[choice.number]
            for choice, (texts, _) in zip(choices, found, strict=True)
        ]

    def _tasks(
        self, rows: Sequence[Row], found: Sequence[tuple[list[str], list[float] | None]]
    ) -> Iterator[Candidates]:
        flat = [text for texts, _ in found for text in texts]
        lengths = iter(token_lengths(self.vocabulary, "target", flat))
        sources = token_lengths(self.vocabulary, "source", [row.source for row in rows])
        for row, source, (texts, scores) in zip(rows, sources, found, strict=True):
            both = [(source, next(lengths)) for _ in texts]
            yield Candidates(row.source, row.target, texts, scores, both)

    def _pairs(
        self, rows: Sequence[Row], bits: np.ndarray, targets: Iterator[str | None]
    ) -> Iterator[tuple[str, str, str]]:
        """The pairs that come out of some rows: old ones that are kept, and new ones."""
        for row, bit in zip(rows, bits, strict=True):
            if bit & KEEP and row.target and row.source:
                yield row.source, row.target, row.origin
            if bit & TRANSLATE and (target := next(targets)) is not None:
                yield row.source, target, self.made

    def _describe(self) -> dict[str, Any]:
        settings = self.settings()
        return {
            "teachers": [teacher.folder.name for teacher in self.teachers],
            "origin": self.made,
            **{name: settings[name] for name in ("teacher", "choose", "mix", "seed")},
        }


def is_table(path: Path) -> bool:
    return ".tsv" in path.suffixes


def check_start(out: Path, begun: bool, resume: bool, force: bool) -> None:
    """Raise an error if there is something that neither `resume` nor `force` allows for."""
    if resume and force:
        raise WaitinfoError("resume and force exclude each other; give one of them")
    if resume or force:
        return
    if begun:
        raise WaitinfoError(
            f"{out}: was begun before; continue it with --resume, or start again with --force"
        )
    if out.is_dir() and any(out.iterdir()):
        raise WaitinfoError(f"{out}: already in use; choose another folder or use --force")
    if out.is_file():
        raise WaitinfoError(f"{out}: exists already; replace it with --force")


def check_output(data: Data, out: Path) -> None:
    """Raise an error unless the mixture can be written."""
    if is_table(out):
        check_writable(out)
    elif data.corpus is None:
        raise WaitinfoError(
            f"{out}: pairs from {(data.path or data.texts[0]).name} are written as text; name a "
            ".tsv file, and make a corpus of it with: waitinfo prepare --tsv"
        )
    elif out.is_file():
        raise WaitinfoError(f"{out}: is a file; name a folder or a .tsv file")
    if data.path is not None and out.exists() and out.samefile(data.path):
        raise WaitinfoError(f"{out}: is the data; write to another place")


def distill(
    teachers: Sequence[LoadedModel],
    data: Data,
    out: Path,
    options: DistillOptions | None = None,
    resume: bool = False,
    force: bool = False,
    rows: int | None = None,
    processes: Processes | None = None,
    progress: Progress | None = None,
) -> DistilledPairs | None:
    """Write a mixture of `data` and its translations by the teachers; None if nothing was to do.

    Several teachers translate together (an ensemble). The result is a corpus folder, or a TSV file
    if `out` is named so. Processes that torchrun started share the work; one of them writes.
    """
    options, processes = options or DistillOptions(), processes or Processes.join()
    progress = progress or Silent()
    check_output(data, out)
    task = Distillation(teachers, data, out, options, progress)
    processes.prepare(lambda: task.begin(resume, force), lambda: None, "waitinfo-distillation")
    if not task.begun:
        return None
    try:
        translate_file(
            teachers[0],
            task.folder / SOURCE,
            task.folder / TRANSLATED,
            options.translation,
            resume=True,
            rows=rows,
            processes=processes,
            progress=progress,
            others=teachers[1:],
        )
    except WaitinfoError:
        if task.begun:
            raise
        return None  # another process has finished
    return task.report if processes.leads and task.finish() else None
