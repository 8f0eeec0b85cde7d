"""Translation of whole sentences with the engine: streams that get all their input at once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from waitinfo.errors import WaitinfoError
from waitinfo.model import Network
from waitinfo.streaming.engine import NOT_FINITE, READ, Engine, TokenEvent
from waitinfo.systems.base import System
from waitinfo.text.languages import Opening
from waitinfo.text.special import EOS

# Sentences translated at a time, and the total of their source tokens. A GPU needs hundreds of
# sentences to be busy.
SLOTS = {"cpu": 64, "cuda": 512}
CACHED_TOKENS = {"cpu": 16_384, "cuda": 131_072}


@dataclass(frozen=True)
class Hypothesis:
    """A translation with its path and info."""

    tokens: list[int]  # without end-of-sentence
    path: list[int]  # source tokens read before each token, including end-of-sentence
    source_length: int  # source tokens, including end-of-sentence
    source_info: list[float]  # of the tokens read, without end-of-sentence; empty without info
    target_info: list[float]  # of every target token; empty without info
    ended: bool  # ended by end-of-sentence, not by the length limit
    looped: bool = False  # that end replaced a token of a loop

    @property
    def stopped_early(self) -> bool:
        """Whether the translation ended before the whole source was read."""
        return self.path[-1] < self.source_length


@dataclass(frozen=True)
class Schedule:
    """The dial of one sentence by position: `dials[i]` once `starts[i]` tokens are written.

    `starts` rise from 0. With the turns of a stream that held its lag, the decoder writes what the
    stream wrote.
    """

    starts: Sequence[int]
    dials: Sequence[float]

    def at(self, written: int) -> float:
        return self.dials[bisect_right(self.starts, written) - 1]


Dial = float | Sequence[Schedule]  # one value for all sentences, or a schedule for each


@dataclass
class Record:
    """The tokens that a slot has read and written for one source, collected from its events."""

    reads: list[TokenEvent] = field(default_factory=list)
    writes: list[TokenEvent] = field(default_factory=list)

    def add(self, event: TokenEvent) -> None:
        (self.reads if event.kind == READ else self.writes).append(event)

    def without_opening(self) -> Record:
        """The same without the tokens of the languages."""
        reads = [event._replace(read=event.read - 1) for event in self.reads[1:]]
        writes = [event._replace(read=event.read - 1) for event in self.writes[1:]]
        return Record(reads, writes)

    def hypothesis(self, source_length: int, has_info: bool) -> Hypothesis:
        ended = self.writes[-1].token == EOS
        words = self.writes[:-1] if ended else self.writes
        return Hypothesis(
            tokens=[event.token for event in words],
            path=[event.read for event in self.writes],
            source_length=source_length,
            source_info=[e.info for e in self.reads if e.token != EOS] if has_info else [],
            target_info=[event.info for event in words] if has_info else [],
            ended=ended,
            looped=self.writes[-1].cut == "loop",
        )


class Decoder:
    """Translates tokenized sentences with a system, `slots` of them at a time."""

    def __init__(
        self,
        model: Network,
        system: System,
        ending: str = "guard",
        slots: int | None = None,
        opening: Opening | None = None,
    ) -> None:
        self.model, self.system, self.ending, self.opening = model, system, ending, opening
        kind = model.device.type if model.device.type in SLOTS else "cpu"
        self.slots, self.cached_tokens = slots or SLOTS[kind], CACHED_TOKENS[kind]
        Engine(model, system, 1, 2, ending)  # raise errors about settings now

    def decode(self, sentences: Sequence[list[int]], k: Dial) -> list[Hypothesis]:
        """Translate token lists; results are in the order of the sentences."""
        found = dict(self.results(sentences, k))
        return [found[i] for i in range(len(sentences))]

    def results(self, sentences: Sequence[list[int]], k: Dial) -> Iterator[tuple[int, Hypothesis]]:
        """Yield translations with the indices of their sentences, as they are completed."""
        records: dict[int, Record] = {}
        has_info = self.model.source_info is not None
        for capacity, group in self._groups(sentences):
            slots = max(1, min(self.slots, len(group), self.cached_tokens // capacity))
            engine = Engine(self.model, self.system, slots, capacity, self.ending)
            for index, event in self._run(engine, {i: sentences[i] for i in group}, k):
                record = records.setdefault(index, Record())
                record.add(event)
                if event.last:
                    if self.opening is not None:
                        record = record.without_opening()
                    yield index, record.hypothesis(len(sentences[index]) + 1, has_info)
                    del records[index]

    @staticmethod
    def _groups(sentences: Sequence[list[int]]) -> Iterator[tuple[int, list[int]]]:
        """Group sentences of similar length, longest first, with the capacity that they need."""
        order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
        for _, group in groupby(order, key=lambda i: max(5, len(sentences[i]).bit_length())):
            members = list(group)
            yield len(sentences[members[0]]) + 2, members

    def _run(
        self, engine: Engine, sentences: dict[int, list[int]], k: Dial
    ) -> Iterator[tuple[int, TokenEvent]]:
        """Run all sentences through an engine; a new one starts as soon as a slot is free."""

        fixed = k if isinstance(k, int | float) else None

        def dial(index: int, written: int) -> float:
            return k[index].at(written) if fixed is None else fixed  # type: ignore[index]

        waiting = list(sentences.items())[::-1]
        owner: dict[int, int] = {}
        while waiting or owner:
            while waiting and engine.free:
                index, sentence = waiting.pop()
                slot = engine.open(dial(index, 0))
                owner[slot] = index
                if self.opening is not None:
                    engine.force(slot, self.opening.path)
                    sentence = [self.opening.source, *sentence]
                engine.feed(slot, sentence, complete=True)
            for event in engine.advance():
                yield owner[event.slot], event
                if fixed is None:
                    engine.set_dial(event.slot, dial(owner[event.slot], event.written))
                if event.last:
                    engine.close(event.slot)
                    del owner[event.slot]
            if engine.failed:
                raise WaitinfoError(NOT_FINITE)
