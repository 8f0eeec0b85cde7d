"""What a training run reports: every record goes to `metrics.jsonl` and a display."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from waitinfo.progress import EVERY, Silent

Record = dict[str, Any]


class Display(Protocol):
    """Shows a run to a person."""

    def start(self, title: str, facts: list[str]) -> None: ...

    def progress(self, record: Record) -> None:
        """update, epoch, loss, tokens_per_second, lr, skipped, minutes_left."""

    def validated(self, record: Record) -> None: ...

    def stage(self, name: str, share: float) -> None:
        """How much of a stage is done, for work that has no updates."""

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


def format_minutes(minutes: float | None) -> str:
    if minutes is None:
        return "?"
    seconds = int(minutes * 60)
    hours, seconds = divmod(seconds, 3600)
    return f"{hours}:{seconds // 60:02d}:{seconds % 60:02d}"


def format_skipped(record: Record) -> str:
    """How many updates had no finite gradient, if any."""
    return f"  skipped {record['skipped']:,}" if record.get("skipped") else ""


def format_progress(record: Record) -> str:
    return (
        f"update {record['update']:>7,}  epoch {record['epoch']:6.2f}  loss {record['loss']:.3f}  "
        f"{record['tokens_per_second']:>9,.0f} tokens/s  lr {record['lr']:.2e}  "
        f"left {format_minutes(record['minutes_left'])}{format_skipped(record)}"
    )


def format_briefly(record: Record) -> str:
    """For a line of 80 columns that also has a bar."""
    return (
        f"update {record['update']:,}  epoch {record['epoch']:.1f}  loss {record['loss']:.2f}  "
        f"{record['tokens_per_second'] / 1000:.1f}k tokens/s  "
        f"left {format_minutes(record['minutes_left'])}{format_skipped(record)}"
    )


def format_validation(record: Record) -> str:
    bleu = f"  BLEU {record['bleu']:.2f}" if record.get("bleu") is not None else ""
    dial = f" at {record['dial']} = {record['k']:g}" if record.get("dial") else ""
    best = "  (best so far)" if record["best"] else ""
    return f"validation{dial}: loss {record['validation_loss']:.3f}{bleu}{best}"


class LineDisplay:
    """Plain lines on standard error, for logs and pipes."""

    _shown = 0.0  # when a stage was last shown

    def start(self, title: str, facts: list[str]) -> None:
        self.note(title)
        for fact in facts:
            self.note(f"  {fact}")

    def progress(self, record: Record) -> None:
        self.note(format_progress(record))

    def validated(self, record: Record) -> None:
        self.note(format_validation(record))

    def stage(self, name: str, share: float) -> None:
        if not share or time.monotonic() - self._shown >= EVERY:
            self._shown = time.monotonic()
            self.note(f"{name}: {100 * share:.0f}%")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None: ...


class SilentDisplay(LineDisplay):
    def note(self, text: str) -> None: ...


class StageProgress(Silent):
    """Progress of work within a run, on its display."""

    def __init__(self, display: Display) -> None:
        self.display, self.name, self.total = display, "", 1.0

    def stage(self, name: str, total: float | None = None) -> None:
        self.name, self.total = name, total or 1.0
        self.display.stage(name, 0.0)

    def advance(self, done: float) -> None:
        self.display.stage(self.name, done / self.total)

    def note(self, text: str) -> None:
        self.display.note(text)


class MetricsFile:
    """The run's `metrics.jsonl`."""

    def __init__(self, path: Path, owner: bool) -> None:
        self.path, self.owner = path, owner

    def rewind(self, update: int) -> None:
        """Forget what was recorded after a checkpoint that is being resumed from."""
        if not self.owner or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text("utf-8").splitlines():
            try:
                if json.loads(line)["update"] <= update:
                    kept.append(line + "\n")
            except (ValueError, KeyError):
                continue  # a line cut short by a kill
        fresh = self.path.with_suffix(".partial")
        fresh.write_text("".join(kept), "utf-8")
        fresh.replace(self.path)

    def add(self, record: Record) -> None:
        if self.owner:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")
