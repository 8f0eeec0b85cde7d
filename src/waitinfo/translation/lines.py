"""From lines to their translations; text is prepared and joined while the device computes.

What a line becomes is what a stream would write for it: it is cut into the same sentences, which
are translated by the same model and system, and the words are joined in the same way. Lines that
have to move through a window are translated by streams.

A line is cut at sentence ends, and a sentence of more tokens than `limit` is continued as if it
were the next. Both rules are those of `streaming.words` and `streaming.session`; here they are
applied to whole lines.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from itertools import islice, zip_longest
from typing import NamedTuple

from waitinfo.streaming.segmenter import CLOSERS, ENDS, Segmentation, ends_sentence
from waitinfo.streaming.translator import Translator
from waitinfo.streaming.words import GO_ON, STOPS, TAIL, Reader
from waitinfo.text.files import normalise
from waitinfo.text.languages import Languages
from waitinfo.text.scripts import is_unspaced
from waitinfo.text.tokenizer import Tokenizer
from waitinfo.threads import thread_count
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation.decoding import Batch, Candidate, SentenceDecoder, TranslationOptions

WINDOW = 131_072  # lines sorted by length at a time
STREAMS = (32, 256)  # streams at a time, for text without sentence ends: on a CPU, on a GPU
AHEAD = 2  # batches that may wait for their text


def join_sentences(texts: Iterable[str]) -> str:
    """One text of several sentences, as a stream shows them: without spaces where none is due."""
    joined = ""
    for text in filter(None, texts):
        space = " " if joined and not is_unspaced(joined[-1] + text[0]) else ""
        joined += space + text
    return joined


class Translation(NamedTuple):
    """A translation of one line."""

    line: int  # its number, from 0
    text: str
    score: float  # log p / length^penalty; 0 unless scores were asked for


Lines = list[list[Translation]]  # lines that are complete, each with its best translations


class PendingLines:
    """A batch of lines and their sentences, and which of these are translated.

    Sentences that occur several times are translated once, unless they are sampled (`distinct`).
    """

    def __init__(
        self, indices: Sequence[int], lines: Sequence[list[list[int]]], distinct: bool
    ) -> None:
        self.indices = indices
        self.sentences: list[list[int]] = []
        self.places: list[tuple[int, int]] = []  # (line, part of it) where each sentence is first
        self._users: list[list[int]] = []  # by sentence: the lines that contain it
        self._parts: list[list[int]] = []  # by line: its sentences
        self._missing = [len(line) for line in lines]  # sentences not translated yet
        known: dict[tuple[int, ...], int] = {}
        for number, line in enumerate(lines):
            self._parts.append([])
            for part, tokens in enumerate(line):
                place = len(self.sentences)
                if not distinct:
                    place = known.setdefault(tuple(tokens), place)
                if place == len(self.sentences):
                    self.sentences.append(tokens)
                    self.places.append((indices[number], part))
                    self._users.append([])
                self._users[place].append(number)
                self._parts[-1].append(place)
        self._found: list[list[tuple[str, Candidate]]] = [[] for _ in self.sentences]

    def empty(self, best: int) -> list[list[Translation]]:
        """The translations of lines without words."""
        numbers = [number for number, count in enumerate(self._missing) if not count]
        return [[Translation(self.indices[number], "", 0.0)] * best for number in numbers]

    def add(
        self, place: int, found: list[tuple[str, Candidate]], penalty: float
    ) -> list[list[Translation]]:
        """Record the translations of a sentence; return those of the lines that it completes."""
        self._found[place] = found
        complete = []
        for number in self._users[place]:
            self._missing[number] -= 1
            if not self._missing[number]:
                complete.append(self._joined(number, penalty))
        return complete

    def _joined(self, number: int, penalty: float) -> list[Translation]:
        """The translations of a line: the best of every sentence, then the second of every one.

        Where a sentence has fewer than others, its last is used again.
        """
        parts = [self._found[place] for place in self._parts[number]]
        joined = []
        for choice in zip_longest(*parts):
            chosen = [own or part[-1] for own, part in zip(choice, parts, strict=True)]
            text = join_sentences(text for text, _ in chosen)
            logp = sum(candidate.logp for _, candidate in chosen)
            length = sum(candidate.length for _, candidate in chosen)
            joined.append(Translation(self.indices[number], text, logp / length**penalty))
        return joined


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
        self.text = SentenceCutter(
            loaded.vocabulary.source,
            limit,
            Segmentation.parse(self.options.segment),
            loaded.system.simultaneous,
        )
        # A GPU leaves all cores to the tokenizers.
        on_gpu = loaded.model.device.type == "cuda"
        self.threads = -1 if on_gpu else thread_count()

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
    ) -> Iterator[tuple[PendingLines, list[tuple[int, str]]]]:
        """A few lines at a time: those to translate in batches, and those left to streams."""
        while some := list(islice(lines, size)):
            sentences = self.text.encode([text for _, text in some], self.threads)
            cut = [
                (i, found)
                for (i, _), found in zip(some, sentences, strict=True)
                if found is not None
            ]
            streamed = [line for line, found in zip(some, sentences, strict=True) if found is None]
            pending = PendingLines(
                [i for i, _ in cut], [sentences for _, sentences in cut], self.options.samples
            )
            yield pending, streamed

    @cached_property
    def _streams(self) -> Translator:
        """Streams for text without sentence ends, without warnings about its language."""
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

    def _translate(self, pending: PendingLines, writer: ThreadPoolExecutor) -> Iterator[Lines]:
        if empty := pending.empty(self.options.best):
            yield empty
        waiting: deque[Future[Lines]] = deque()
        for batch in self.decoder.decode(pending.sentences, pending.places):
            waiting.append(writer.submit(self._finish, pending, batch))
            while len(waiting) > AHEAD or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _finish(self, pending: PendingLines, batch: Batch) -> Lines:
        """The lines that a batch completes."""
        numbers, found = batch
        flat = [candidate.tokens for candidates in found for candidate in candidates]
        texts = iter(self.loaded.vocabulary.target.decode_many(flat, self.threads))
        complete: Lines = []
        for number, candidates in zip(numbers, found, strict=True):
            pairs = [(next(texts), candidate) for candidate in candidates]
            complete += pending.add(number, pairs, self.options.penalty)
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


LAST_LETTERS = frozenset(CLOSERS + ENDS + ".")  # a word that ends a sentence ends in one of these
INNER_END = re.compile(f"(?<=[{re.escape(STOPS)}])(?!{GO_ON.pattern}|$)")

Sentences = list[list[int]]  # the token sequences of a line


def split_sentences(text: str, inside: bool) -> Iterator[str]:
    """Yield the sentences of a normalised text, also those `inside` words without spaces."""
    sentence: list[str] = []
    for word in text.split():
        last = tail = word
        if inside and is_unspaced(word):
            *ended, last = INNER_END.split(word)
            tail = word[-TAIL:]  # all that a stream looks at
            for part in ended:
                yield " ".join([*sentence, part])
                sentence = []
        sentence.append(last)
        if word[-1] in LAST_LETTERS and ends_sentence(tail):
            yield " ".join(sentence)
            sentence = []
    if sentence:
        yield " ".join(sentence)


def split_tokens(words: Sequence[list[int]], limit: int) -> Iterator[list[int]]:
    """Cut the tokens of a sentence, given by word, into pieces of at most `limit` tokens.

    A piece ends before the first word that does not fit. Only a word that is itself longer than a
    piece is cut.
    """
    piece: list[int] = []
    for word in words:
        rest = word
        if piece and len(rest) > limit - len(piece):
            yield piece
            piece = []
        while len(rest) > limit:
            yield rest[:limit]
            rest = rest[limit:]
        piece = piece + rest
    if piece:
        yield piece


class SentenceCutter:
    """Cuts and tokenizes lines; `slides` if the system can translate text without sentence ends."""

    def __init__(
        self, tokenizer: Tokenizer, limit: int, segmentation: Segmentation, slides: bool
    ) -> None:
        self.tokenizer, self.limit, self.segmentation = tokenizer, limit, segmentation
        self.windows = segmentation.mode if slides else ""

    def encode(self, lines: Sequence[str], threads: int = -1) -> list[Sentences | None]:
        """The token sequences of every line: [] without words, None if it needs a window."""
        texts = [normalise(line) for line in lines]
        if self.segmentation.punctuated:
            sentences = [list(split_sentences(text, self._is_unspaced(text))) for text in texts]
        else:
            sentences = [[text] if text else [] for text in texts]
        flat = [sentence for line in sentences for sentence in line]
        tokens = iter(self.tokenizer.encode_many(flat, threads))
        return [
            self._line(text, line, [next(tokens) for _ in line])
            for text, line in zip(texts, sentences, strict=True)
        ]

    def _is_unspaced(self, text: str) -> bool:
        """Whether a text has words that are read token by token."""
        return self.tokenizer.grows and is_unspaced(text)

    def _line(self, text: str, parts: list[str], sentences: Sentences) -> Sentences | None:
        lengths = [len(tokens) for tokens in sentences]
        if self._needs_window(lengths):
            return None
        if max(lengths, default=0) > self.limit and self._is_unspaced(text):
            return list(self._read(text))
        pairs = zip(parts, sentences, strict=True)
        return [piece for pair in pairs for piece in self._pieces(*pair)]

    def _needs_window(self, lengths: list[int]) -> bool:
        """Whether a stream would move on within a sentence of this line."""
        if self.windows in ("none", "pause"):
            return bool(lengths)  # where the model ends a sentence, the window moves on
        if self.windows != "auto" or not lengths:
            return False
        first, *later = lengths
        return (
            first > min(self.limit, self.segmentation.window) or max(later, default=0) > self.limit
        )

    def _pieces(self, sentence: str, tokens: list[int]) -> Iterator[list[int]]:
        if len(tokens) > self.limit:
            words = [self.tokenizer.encode(word) for word in sentence.split()]
            yield from split_tokens(words, self.limit)
        elif tokens:
            yield tokens

    def _read(self, text: str) -> Iterator[list[int]]:
        """The same for long sentences without spaces, whose tokens are read one by one."""
        reader = Reader(self.tokenizer, segmentation=self.segmentation)
        reader.add(text)
        reader.end()
        words: list[list[int]] = []
        for piece in reader.queue:
            if piece is not None:
                words.append(piece.tokens)
            else:
                yield from split_tokens(words, self.limit)
                words = []
