"""From lines to their translations; text is prepared and joined while the device computes.

What a line becomes is what a stream would write for it: it is cut into the same sentences, which
are translated by the same model and system, and the words are joined in the same way. Lines that
have to move through a window are translated by streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import islice

import torch

from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.translator import Translator
from waitinfo.text.languages import Languages
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.decoding import Batch, SentenceDecoder
from waitinfo.translation.options import TranslationOptions
from waitinfo.translation.source import SourceText
from waitinfo.translation.window import Translation, Window

WINDOW = 131_072  # lines sorted by length at a time
STREAMS = (32, 256)  # streams at a time, for text without sentence ends: on a CPU, on a GPU
AHEAD = 2  # batches that may wait for their text

Lines = list[list[Translation]]  # lines that are complete, each with its best translations


class LineTranslator:
    """Translates lines of text with a loaded model; `others` write along (an ensemble)."""

    def __init__(
        self,
        loaded: LoadedModel,
        options: TranslationOptions | None = None,
        rows: int | None = None,
        others: Sequence[LoadedModel] = (),
    ) -> None:
        self.loaded, self.options = loaded, options or TranslationOptions()
        self.decoder = SentenceDecoder(loaded, self.options, rows, others)
        limit = self.options.capacity - 1
        self.text = SourceText(
            loaded.vocabulary.source,
            limit,
            Segmentation.parse(self.options.segment),
            loaded.system.simultaneous,
        )
        # A GPU leaves all cores to the tokenizers.
        on_gpu = loaded.model.device.type == "cuda"
        self.threads = -1 if on_gpu else torch.get_num_threads()

    def translate(self, lines: Iterable[tuple[int, str]], window: int = WINDOW) -> Iterator[Lines]:
        """Translate numbered lines; yields the lines that each batch completed, in any order."""
        windows = self._windows(iter(lines), window)
        with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:
            coming = reader.submit(next, windows, None)
            while (current := coming.result()) is not None:
                coming = reader.submit(next, windows, None)
                cut, streamed = current
                yield from self._translate(cut, writer)
                yield from self._by_streams(streamed)

    def _windows(
        self, lines: Iterator[tuple[int, str]], size: int
    ) -> Iterator[tuple[Window, list[tuple[int, str]]]]:
        """Some lines at a time; apart from them those that are left to streams."""
        while some := list(islice(lines, size)):
            sentences = self.text.encode([text for _, text in some], self.threads)
            cut = [
                (i, found)
                for (i, _), found in zip(some, sentences, strict=True)
                if found is not None
            ]
            streamed = [line for line, found in zip(some, sentences, strict=True) if found is None]
            window = Window([i for i, _ in cut], [found for _, found in cut], self.options.samples)
            yield window, streamed

    @cached_property
    def _streams(self) -> Translator:
        """What translates text without sentence ends; nobody is to be warned of its language."""
        options = self.options
        streams = STREAMS[self.loaded.model.device.type == "cuda"]
        silent = replace(self.loaded, languages=Languages())
        return Translator(
            silent, streams, options.capacity, options.ending, segment=options.segment
        )

    def _by_streams(self, lines: list[tuple[int, str]]) -> Iterator[Lines]:
        lines = sorted(lines, key=lambda line: len(line[1]))
        while lines:
            some, lines = lines[: self._streams.streams], lines[self._streams.streams :]
            texts = self._streams.translate([text for _, text in some], self.options.k)
            numbered = zip(some, texts, strict=True)
            yield [[Translation(index, text, 0.0)] for (index, _), text in numbered]

    def _translate(self, window: Window, writer: ThreadPoolExecutor) -> Iterator[Lines]:
        if empty := window.empty(self.options.best):
            yield empty
        waiting: deque[Future[Lines]] = deque()
        for batch in self.decoder.decode(window.sentences, window.places):
            waiting.append(writer.submit(self._finish, window, batch))
            while len(waiting) > AHEAD or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _finish(self, window: Window, batch: Batch) -> Lines:
        """The lines that a batch completes."""
        numbers, found = batch
        flat = [candidate.tokens for candidates in found for candidate in candidates]
        texts = iter(self.loaded.vocabulary.target.decode_many(flat, self.threads))
        complete: Lines = []
        for number, candidates in zip(numbers, found, strict=True):
            pairs = [(next(texts), candidate) for candidate in candidates]
            complete += window.add(number, pairs, self.options.penalty)
        return complete


def translations(
    loaded: LoadedModel,
    lines: Iterable[str],
    options: TranslationOptions | None = None,
    rows: int | None = None,
    window: int = WINDOW,
) -> Iterator[Translation]:
    """Translate lines; yields (index, text, score) as batches are completed, in any order.

    With `options.best` above 1, the translations of a line follow each other, best first. `rows`
    is the size of a batch; by default it fits the device. `window` lines are read ahead.
    """
    translator = LineTranslator(loaded, options, rows)
    for complete in translator.translate(enumerate(lines), window):
        for found in complete:
            yield from found
