"""Translation of whole files: one line of output for each line of input, in the same order."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.progress import Progress, Silent
from waitinfo.text.files import check_readable, check_writable, read_bytes
from waitinfo.text.identification import other_language
from waitinfo.trained.folder import fingerprint
from waitinfo.trained.saving import LoadedModel, checksum
from waitinfo.translation.decoding import TranslationOptions
from waitinfo.translation.lines import WINDOW, Lines, LineTranslator, Translation
from waitinfo.translation.sharing import Block, FilePlan, Processes, UnfinishedFile

LARGEST_BLOCK, SMALLEST_BLOCK = WINDOW, 1024  # lines
BLOCKS_EACH = 4  # blocks for every process, if the file is large enough
POLL = 0.5  # seconds between two attempts to take over blocks of other processes
RECOUNT = 5.0  # seconds between two counts of what other processes did


@dataclass(frozen=True)
class Summary:
    """What a call of `translate_file` did."""

    translated: int  # lines, by this process
    seconds: float
    invalid: list[int]  # numbers of the lines with bytes that are not UTF-8, which became U+FFFD
    foreign: list[int]  # numbers of the lines that are plainly not in the model's language


def check_files(source: Path, out: Path) -> None:
    """Raise an error unless `source` can be read twice and `out` can be written."""
    check_readable(source)
    check_writable(out)
    if not source.is_file():
        raise WaitinfoError(f"{source}: is not a file that can be read again; copy it to one")
    if out.exists() and out.samefile(source):
        raise WaitinfoError(f"{out}: is the input; write to another file")


def survey(path: Path) -> tuple[int, str]:
    """The number of lines of a file, and the checksum of its decompressed content."""
    digest, count = hashlib.sha256(), 0
    for line in read_bytes(path):
        digest.update(line)
        count += 1
    return count, digest.hexdigest()


class LineReader:
    """Reads spans of lines of a file; going backwards starts over."""

    def __init__(self, path: Path, language: str | None = None) -> None:
        self.path, self.language = path, language
        self.invalid: list[int] = []  # numbers of lines that are not UTF-8, from 1
        self.foreign: list[int] = []  # numbers of lines in another language than expected
        self._restart()

    def _restart(self) -> None:
        self._lines, self._next = read_bytes(self.path), 0

    def read(self, span: range, known: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield the lines of a span, with their numbers from 0, except known ones."""
        if span.start < self._next:
            self._restart()
        for line in self._lines:
            number, self._next = self._next, self._next + 1
            if number >= span.start and number not in known:
                yield number, self._decode(number, line)
            if self._next >= span.stop:
                return

    def _decode(self, number: int, line: bytes) -> str:
        encoding = "utf-8-sig" if number == 0 else "utf-8"
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError:
            self.invalid.append(number + 1)
            text = line.decode(encoding, "replace")
        if other_language(text, self.language) is not None:
            self.foreign.append(number + 1)
        return text.rstrip("\r\n")


def file_line(found: list[Translation], scores: bool) -> str:
    """What a file holds for a line: its translations, each after its score, between tabs."""
    if not scores:
        return "\t".join(translation.text for translation in found)
    return "\t".join(f"{translation.score:.4f}\t{translation.text}" for translation in found)


def translation_settings(
    loaded: LoadedModel, options: TranslationOptions, others: Sequence[LoadedModel] = ()
) -> dict[str, Any]:
    """Everything that the output depends on, except the input."""
    dtype = str(loaded.model.source_embedding.weight.dtype).removeprefix("torch.")
    ensemble = {"other models": [fingerprint(other.folder) for other in others]} if others else {}
    return {
        "model": fingerprint(loaded.folder),
        **checksum(loaded.system.tensors),
        **ensemble,
        "system": loaded.system.name,
        "system options": asdict(loaded.system.options),
        "dtype": dtype,
        **options.settings(loaded.system),
    }


class FileTranslation:
    """One process's part in the translation of a file."""

    def __init__(
        self,
        loaded: LoadedModel,
        source: Path,
        out: Path,
        options: TranslationOptions,
        rows: int | None,
        processes: Processes,
        progress: Progress,
        others: Sequence[LoadedModel] = (),
    ) -> None:
        self.source, self.work, self.options = source, UnfinishedFile(out), options
        self.processes, self.progress = processes, progress
        self.settings = translation_settings(loaded, options, others)
        self.translator = LineTranslator(loaded, options, rows, others)
        self.reader = LineReader(source, loaded.languages.source)
        self.blocks: dict[int, Block] = {}  # those that this process works on
        self.complete = False  # there is nothing to do
        self.translated = 0  # lines, by this process
        self.done = 0  # lines, by all
        self.counted = time.monotonic()

    def begin(self, resume: bool, force: bool) -> None:
        """Check the files and write the plan."""
        self.work.check_start(resume, force)
        self.progress.stage("reading")
        lines, sha256 = survey(self.source)
        if resume and self.work.out.exists() and not self.work.begun:
            self._check_complete(lines)
            self.complete = True
            return
        share = -(-lines // (BLOCKS_EACH * self.processes.size))
        block = min(LARGEST_BLOCK, max(SMALLEST_BLOCK, share))
        self.work.begin(FilePlan(lines, sha256, block, self.settings), resume, force)

    def join(self) -> None:
        """Join the process that has begun."""
        try:
            self.work.join()
        except (WaitinfoError, FileNotFoundError):
            if self.work.begun:
                raise
            self.complete = True  # it was quick, or there was nothing to do

    def _check_complete(self, lines: int) -> None:
        out = self.work.out
        if (found := survey(out)[0]) != lines:
            raise WaitinfoError(
                f"{out}: has {found:,} lines where {self.source} has {lines:,}, and there is "
                "nothing to resume; replace it with --force"
            )
        self.progress.note(f"{out} is complete; to translate it again, use --force")

    def run(self) -> None:
        """Translate blocks until none is left, and join them."""
        plan = self.work.plan
        self.progress.stage("translating", plan.lines)
        self._advance(self.work.recorded())
        try:
            while self._unfinished():
                for complete in self.translator.translate(self._lines(), plan.block):
                    self._record(complete)
                if self._unfinished():
                    time.sleep(POLL)  # others are at the rest; if they die, their blocks are free
        finally:
            for block in self.blocks.values():
                block.close()
        self.progress.stage("writing")
        self.work.merge()

    def _unfinished(self) -> bool:
        work = self.work
        return work.begun and not all(map(work.finished, range(work.plan.blocks)))

    def _lines(self) -> Iterator[tuple[int, str]]:
        """The lines of one block after another, as long as there are blocks to claim.

        Called while earlier lines are translated, so that the next are there in time.
        """
        for number in range(self.work.plan.blocks):
            block = self.work.claim(number)
            if block is None:
                continue
            self.blocks[number] = block
            if not block.missing:
                del self.blocks[number]
                block.complete()
                continue
            yield from self.reader.read(block.lines, frozenset(block.found))

    def _record(self, complete: Lines) -> None:
        """Write translated lines into the journals of their blocks."""
        size = self.work.plan.block
        by_block: dict[int, list[tuple[int, str]]] = {}
        for found in complete:
            index = found[0].line
            text = file_line(found, self.options.scores)
            by_block.setdefault(index // size, []).append((index, text))
        for number, texts in by_block.items():
            block = self.blocks[number]
            block.add(texts)
            if not block.missing:
                del self.blocks[number]
                block.complete()
        self.translated += len(complete)
        self._advance(len(complete))

    def _advance(self, lines: int) -> None:
        """Report progress, with that of other processes as last read from their journals."""
        self.done += lines
        if self.processes.size > 1 and time.monotonic() - self.counted > RECOUNT:
            self.done, self.counted = self.work.recorded(), time.monotonic()
        self.progress.advance(self.done)


def translate_file(
    loaded: LoadedModel,
    source: Path,
    out: Path,
    options: TranslationOptions | None = None,
    resume: bool = False,
    force: bool = False,
    rows: int | None = None,
    processes: Processes | None = None,
    progress: Progress | None = None,
    others: Sequence[LoadedModel] = (),
) -> Summary:
    """Translate a file, plain or compressed (.gz, .xz, .zst), into another.

    A translation that was interrupted is continued with `resume`; `force` replaces what is there.
    Processes that torchrun started share the work. `others` are full-sentence models with the same
    vocabulary that translate together with the first: their probabilities are averaged.
    """
    began = time.monotonic()
    check_files(source, out)
    processes = processes or Processes.join()
    task = FileTranslation(
        loaded,
        source,
        out,
        options or TranslationOptions(),
        rows,
        processes,
        progress or Silent(),
        others,
    )
    try:
        processes.prepare(lambda: task.begin(resume, force), task.join)
        if not task.complete:
            task.run()
    finally:
        task.work.close()
    found = task.reader
    return Summary(task.translated, time.monotonic() - began, found.invalid, found.foreign)
