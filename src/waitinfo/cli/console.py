"""What the commands draw: bars and tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table

from waitinfo.progress import Lines, Progress
from waitinfo.training.display import (
    LineDisplay,
    Record,
    format_briefly,
    format_validation,
)

console = Console(stderr=True, highlight=False)


class Pace:
    """Lines per second and time left, from the progress of one stage."""

    def __init__(self, total: float) -> None:
        self.total = total
        self._start: tuple[float, float] | None = None

    def text(self, done: float) -> str:
        """What is done; the first call says where the work began, as after resuming."""
        now = time.monotonic()
        self._start = self._start or (done, now)
        first, began = self._start
        text = f"{done:,.0f} of {self.total:,.0f} lines"
        if done <= first or now <= began:
            return text
        rate = (done - first) / (now - began)
        left = timedelta(seconds=round((self.total - done) / rate))
        return f"{text}, {rate:,.0f} per second, {left} left"


class Bars(RichProgress):
    """Bars, and below them a table that grows."""

    def __init__(self, *columns: ProgressColumn, console: Console) -> None:
        self.table = Table()
        super().__init__(*columns, console=console)

    def get_renderables(self) -> Iterator[RenderableType]:
        yield from super().get_renderables()
        if self.table.row_count:
            yield self.table


class BarProgress:
    """A bar for each stage."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.task: Any = None

    def stage(self, name: str, total: float | None = None) -> None:
        self._complete()
        self.task = self.bars.add_task(name, total=total)

    def advance(self, done: float) -> None:
        self.bars.update(self.task, completed=done)

    def note(self, text: str) -> None:
        self.bars.console.print(f"note: {text}", markup=False)

    def row(self, cells: dict[str, str]) -> None:
        table = self.bars.table
        for name in list(cells)[len(table.columns) :]:
            table.add_column(name, justify="right" if table.columns else "left")
        table.add_row(*map(escape, cells.values()))
        self.bars.refresh()

    def _complete(self) -> None:
        if self.task is not None:
            total = self.bars.tasks[self.task].total or 1
            self.bars.update(self.task, total=total, completed=total)


class PaceBar(BarProgress):
    """A bar with lines per second and time left, for stages whose amount is known."""

    def stage(self, name: str, total: float | None = None) -> None:
        self._complete()
        self.pace = None if total is None else Pace(total)
        self.task = self.bars.add_task(name, total=total, pace="")

    def advance(self, done: float) -> None:
        pace = "" if self.pace is None else self.pace.text(done)
        self.bars.update(self.task, completed=done, pace=pace)


class PaceLines(Lines):
    """The same as plain lines."""

    def stage(self, name: str, total: float | None = None) -> None:
        super().stage(name, total)
        self._pace = None if total is None else Pace(total)

    def describe(self, done: float) -> str:
        return super().describe(done) if self._pace is None else self._pace.text(done)


@contextmanager
def progress_bar(paced: bool = False) -> Iterator[Progress]:
    """Bars on a terminal, lines elsewhere; `paced` adds lines per second and time left."""
    if not console.is_terminal:
        yield PaceLines() if paced else Lines()
        return
    amount = (
        (TextColumn("{task.fields[pace]}"),)
        if paced
        else (TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn())
    )
    name = TextColumn("{task.description:12}" if paced else "{task.description:24}", markup=False)
    columns = (SpinnerColumn(finished_text="✓"), name, BarColumn(), *amount)
    with Bars(*columns, console=console) as bars:
        progress = PaceBar(bars) if paced else BarProgress(bars)
        yield progress
        progress._complete()
        bars.table = Table()  # the command prints its own at the end


def print_table(table: Table, heading: str = "") -> None:
    """A table on standard output; in a file or pipe it is as wide as it needs to be."""
    out = Console()
    if not out.is_terminal:
        out = Console(width=200)
    if heading:
        out.print(heading, markup=False, style="italic", highlight=False)
    out.print(table)


class LiveDisplay(LineDisplay):
    """A bar that fills as the run goes, with validations printed above it."""

    def __init__(self) -> None:
        self.bars = RichProgress(
            BarColumn(bar_width=10), TextColumn("{task.fields[line]}"), console=console
        )
        self.task: Any = None

    def start(self, title: str, facts: list[str]) -> None:
        super().start(title, facts)
        self.task = self.bars.add_task("training", total=1.0, line="warming up")
        self.bars.start()

    def progress(self, record: Record) -> None:
        spent, left = record["minutes"], record["minutes_left"] or 0.0
        share = spent / (spent + left) if spent + left else 0.0
        self.bars.update(self.task, completed=share, line=format_briefly(record))

    def stage(self, name: str, share: float) -> None:
        self.bars.update(self.task, completed=share, line=name)

    def validated(self, record: Record) -> None:
        self.note(f"update {record['update']:,}: {format_validation(record)}")

    def note(self, text: str) -> None:
        self.bars.console.print(text, markup=False)

    def close(self) -> None:
        self.bars.stop()
