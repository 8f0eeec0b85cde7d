"""One file, translated by several processes: who they are, and the folder that they share.

The folder holds what is done and who does what. The input is divided into blocks of lines. A
process that works on a block holds a lock on its journal, to which it adds every translated batch.
When the process dies, the system takes the lock back, and any other process continues the block
from its journal. A complete block becomes a file in input order, and the last process to finish
joins the files. So any number of processes, on any machine that shares the folder, can work on one
file.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from waitinfo.errors import WaitinfoError
from waitinfo.storage import fsync_folder
from waitinfo.text.files import compressed

if TYPE_CHECKING:
    from torch.distributed import Store

FORMAT = 1
PLAN = "plan.json"
PREPARED = "waitinfo-translation"
PATIENCE = timedelta(hours=2)  # how long the first process may take to prepare


@dataclass(frozen=True)
class Processes:
    """How many processes work together, and which of them this is."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Store | None = None

    @classmethod
    def join(cls, environment: Mapping[str, str] | None = None) -> Processes:
        """Those that torchrun started, or this one alone."""
        given = os.environ if environment is None else environment
        if int(given.get("WORLD_SIZE", "1")) == 1:
            return cls(local_rank=int(given.get("LOCAL_RANK", "0")))
        from torch.distributed import rendezvous

        store, rank, size = next(iter(rendezvous("env://", timeout=PATIENCE)))
        return cls(rank, size, int(given.get("LOCAL_RANK", "0")), store)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> str:
        """The device of this process: the first gets the first GPU, and so on."""
        return f"cuda:{self.local_rank}" if name == "cuda" and self.size > 1 else name

    def prepare(
        self, prepare: Callable[[], Any], join: Callable[[], Any], name: str = PREPARED
    ) -> None:
        """The first process prepares and the others join after it, or all of them fail.

        What is prepared has a `name` that is used once.
        """
        if self.store is None:
            prepare()
        elif self.leads:
            try:
                prepare()
            except WaitinfoError as error:
                self.store.set(name, error.sentence)
                raise
            self.store.set(name, "")
        else:
            self.store.wait([name], PATIENCE)
            if problem := self.store.get(name).decode():
                raise WaitinfoError(problem)
            join()


@dataclass(frozen=True)
class FilePlan:
    """What is translated, how, and in which blocks."""

    lines: int
    sha256: str  # of the decompressed input
    block: int  # lines of a block
    settings: dict[str, Any]
    format: int = FORMAT

    @property
    def blocks(self) -> int:
        return -(-self.lines // self.block)

    def span(self, number: int) -> range:
        """The lines of a block."""
        return range(number * self.block, min(self.lines, (number + 1) * self.block))

    def changes(self, other: FilePlan) -> list[str]:
        """Names of the settings in which another plan differs."""
        names = {*self.settings, *other.settings}
        return sorted(n for n in names if self.settings.get(n) != other.settings.get(n))


class Block:
    """A block that this process works on. Closing it without `complete` leaves it to others."""

    def __init__(self, stream: IO[bytes], lines: range, result: Path) -> None:
        self._stream, self.lines, self._result = stream, lines, result
        stream.seek(0)
        journal = stream.read()
        stream.truncate(journal.rfind(b"\n") + 1)  # what follows must not join a cut-off record
        self.found: dict[int, bytes] = dict(_records(journal, lines))

    @property
    def missing(self) -> int:
        """Lines that are not translated yet."""
        return len(self.lines) - len(self.found)

    def add(self, texts: Sequence[tuple[int, str]]) -> None:
        """Record translated lines, which may be in any order."""
        encoded = [(index, text.encode()) for index, text in texts]
        self._stream.write(b"".join(b"%d\t%b\n" % record for record in encoded))
        self._stream.flush()
        self.found.update(encoded)

    def complete(self) -> None:
        """Write the block in order, and remove the journal."""
        fresh = self._result.with_suffix(".fresh")
        with fresh.open("wb") as stream:
            stream.write(b"".join(self.found[index] + b"\n" for index in self.lines))
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(self._result)
        Path(self._stream.name).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        self._stream.close()


def _records(journal: bytes, lines: range) -> Iterator[tuple[int, bytes]]:
    """Read a journal; a record that was cut off or damaged does not count."""
    for record in journal.split(b"\n")[:-1]:
        index, tab, text = record.partition(b"\t")
        if tab and index.isdigit() and int(index) in lines and b"\0" not in text:
            yield int(index), text


class UnfinishedFile:
    """An unfinished translation, in a folder beside its output."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.parent / f".{out.name}.partial"
        self._removed = out.parent / f".{out.name}.removed"
        self._lock: IO[bytes] | None = None
        self.plan: FilePlan

    # Beginning

    @property
    def begun(self) -> bool:
        return (self.folder / PLAN).is_file()

    def check_start(self, resume: bool, force: bool) -> None:
        """Raise an error if there is something that neither `resume` nor `force` allows for."""
        if resume and force:
            raise WaitinfoError("resume and force exclude each other; give one of them")
        if resume or force:
            return
        if self.begun:
            raise WaitinfoError(
                f"{self.out}: an unfinished translation exists; continue it with --resume, "
                "or start again with --force"
            )
        if self.out.exists():
            raise WaitinfoError(f"{self.out}: exists already; replace it with --force")

    def begin(self, plan: FilePlan, resume: bool, force: bool) -> None:
        """Start, or continue a translation with the same plan; an error if it has another."""
        self.folder.mkdir(exist_ok=True)
        with (self.folder / "begin").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.check_start(resume, force)
            if force:
                self._discard()
            if not self.begun:
                _write(self.folder / PLAN, json.dumps(asdict(plan), indent=2) + "\n")
            self.join()
        self._check(plan)

    def join(self) -> None:
        """Work on a translation that another process has begun."""
        self._lock = (self.folder / "lock").open("ab")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        try:
            record = json.loads((self.folder / PLAN).read_text("utf-8"))
            self.plan = FilePlan(**record)
        except (OSError, ValueError, TypeError):
            raise WaitinfoError(
                f"{self.folder / PLAN}: cannot be read; start again with --force"
            ) from None

    def _discard(self) -> None:
        """Remove what another plan has left, unless a process works on it."""
        with (self.folder / "lock").open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise WaitinfoError(
                    f"{self.out}: another process is translating to this file"
                ) from None
            for path in self.folder.iterdir():
                if path.name not in ("lock", "begin"):
                    path.unlink()

    def _check(self, plan: FilePlan) -> None:
        if (self.plan.lines, self.plan.sha256) != (plan.lines, plan.sha256):
            raise WaitinfoError(
                f"{self.out}: its translation was begun with other input; "
                "restore the input, or start again with --force"
            )
        if names := self.plan.changes(plan):
            raise WaitinfoError(
                f"{self.out}: its translation was begun with another {' and '.join(names)}; "
                "use the same settings, or start again with --force"
            )

    # Blocks

    def finished(self, number: int) -> bool:
        return self._result(number).exists()

    def claim(self, number: int) -> Block | None:
        """A block to work on; None if it is finished, or another process works on it."""
        if self.finished(number):
            return None
        path = self.folder / f"{number:06}.journal"
        try:
            stream = path.open("a+b")
        except FileNotFoundError:
            return None  # the last process has joined the blocks
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            return None
        if self.finished(number):  # since then; the journal may be new, and of no use
            path.unlink(missing_ok=True)
            stream.close()
            return None
        return Block(stream, self.plan.span(number), self._result(number))

    def _result(self, number: int) -> Path:
        return self.folder / f"{number:06}.txt"

    def recorded(self) -> int:
        """Lines that are translated, by any process."""
        done = 0
        for number in range(self.plan.blocks):
            if self.finished(number):
                done += len(self.plan.span(number))
            else:
                journal = self.folder / f"{number:06}.journal"
                done += journal.read_bytes().count(b"\n") if journal.exists() else 0
        return done

    # The end

    def merge(self) -> bool:
        """Join the blocks and remove the folder; False if another process has done so."""
        with locked(self.folder / "merge"):
            if not self.begun:
                return False
            fresh = self.folder / "output"
            with fresh.open("wb") as raw:
                with compressed(raw, self.out.suffix) as stream:
                    for number in range(self.plan.blocks):
                        with self._result(number).open("rb") as block:
                            shutil.copyfileobj(block, stream)
                raw.flush()
                os.fsync(raw.fileno())
            fresh.replace(self.out)
            fsync_folder(self.out.parent)
            shutil.rmtree(self._removed, ignore_errors=True)
            self.folder.rename(self._removed)  # all of it at once, for the other processes
            shutil.rmtree(self._removed, ignore_errors=True)
        return True

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file. Where its folder is gone, there is nothing to lock."""
    try:
        lock = path.open("ab")
    except FileNotFoundError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)
