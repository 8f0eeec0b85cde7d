"""The translation that is learned from, among several of a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from waitinfo.distillation.filters import Filters
from waitinfo.errors import WaitinfoError, unknown
from waitinfo.text.files import normalise
from waitinfo.text.similarity import SIMILARITIES

CHOICES = ("score", *SIMILARITIES)


class Task(NamedTuple):
    """A sentence and its translations."""

    source: str
    reference: str | None  # None for text without a translation
    translations: list[str]
    scores: list[float] | None  # the teacher's; None: they are in its order, best first
    lengths: list[tuple[int, int]]  # tokens of source and translation, by translation


class Choice(NamedTuple):
    """Which translation was chosen, or why none was."""

    number: int | None
    reason: str | None


@dataclass(frozen=True)
class Chooser:
    """Takes the best translation that passes the filters."""

    by: str
    filters: Filters

    def __post_init__(self) -> None:
        if self.by not in CHOICES:
            raise unknown("--choose", self.by, CHOICES)

    def choose(self, task: Task) -> Choice:
        """The best that passes; the reason is that of the best one of all."""
        first: str | None = None
        for number in self._ranked(task):
            reason = self.filters.of_pair(
                task.source, task.translations[number], task.lengths[number], task.reference
            )
            if reason is None:
                return Choice(number, None)
            first = first or reason
        return Choice(None, first)

    def choose_all(self, tasks: Sequence[Task]) -> list[Choice]:
        return [self.choose(task) for task in tasks]

    def _ranked(self, task: Task) -> list[int]:
        """Numbers of the translations, best first; equal ones stay in the teacher's order."""
        value: Callable[[int], float]
        if self.by != "score" and task.reference is not None and len(task.translations) > 1:
            similarity = SIMILARITIES[self.by](task.reference)
            value = [similarity(text) for text in task.translations].__getitem__
        elif task.scores is not None:
            value = task.scores.__getitem__
        else:
            return list(range(len(task.translations)))
        return sorted(range(len(task.translations)), key=lambda number: -value(number))


def read_translations(line: str, scored: bool) -> tuple[list[str], list[float] | None]:
    """The translations of a line as `translate --best` writes it, and their scores if it has."""
    columns = [normalise(column) for column in line.split("\t")]
    if not scored:
        return columns, None
    if len(columns) % 2:
        raise WaitinfoError("a line of translations has a score too few; start again with --force")
    return columns[1::2], [float(score) for score in columns[::2]]
