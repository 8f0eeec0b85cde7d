"""Part-of-speech taggers: a small one trained on a file of tagged words, or spaCy or stanza."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.errors import WaitinfoError
from waitinfo.progress import Progress, Silent
from waitinfo.text.files import read_lines

# The tags of Universal Dependencies. Content and function words are those of the paper's figure,
# except AUX, which it counts as content words: auxiliaries are a closed class.
CONTENT = ("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM")
FUNCTION = ("DET", "ADP", "PRON", "AUX", "CCONJ", "SCONJ", "PART")
OTHERS = ("INTJ", "PUNCT", "SYM", "X")
TAGS = (*CONTENT, *FUNCTION, *OTHERS)

Sentence = list[tuple[str, str]]  # words with their tags


class Tagger(ABC):
    """Tags words with the parts of speech of Universal Dependencies."""

    about: dict[str, Any]  # how it was made, and its accuracy if measured

    @abstractmethod
    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tag of each word of each sentence."""


def read_tagged(path: Path) -> list[Sentence]:
    """Read a file of lines `word<TAB>TAG`, with an empty line after each sentence.

    A word with underscores, as Vietnamese treebanks write words of several syllables, is read as
    several words with the same tag, because plain text has spaces there.
    """
    sentences: list[Sentence] = [[]]
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            sentences.append([])
            continue
        word, tab, tag = line.partition("\t")
        if not tab or not word or tag.strip() not in TAGS:
            raise WaitinfoError(
                f"{path}, line {number}: not a word, a tab and a tag of Universal Dependencies"
            )
        parts = word.split("_") if word.strip("_") else [word]
        sentences[-1] += [(part, tag.strip()) for part in parts if part]
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        raise WaitinfoError(f"{path}: contains no tagged words")
    return sentences


# The small tagger

BUCKETS = 1 << 18  # rows of the weight matrix; features are hashed into them
BATCH = 64  # words per update
EPOCHS = 6
FREQUENT = 3  # a word seen as often as this has a usual tag
UNKNOWN = len(TAGS)  # usual tag of other words
NOWHERE = len(TAGS) + 1  # usual tag outside the sentence


def _hash(text: str) -> int:
    return zlib.crc32(text.encode("utf-8", "replace"))


def _shape(word: str) -> str:
    """Capitals, small letters, digits and others, each run of them once: `Aa`, `A-a`, `0`."""
    kinds = (
        "A" if c.isupper() else "a" if c.isalpha() else "0" if c.isdigit() else c for c in word
    )
    shape = ""
    for kind in kinds:
        if not shape.endswith(kind):
            shape += kind
    return shape[:6]


def _own_features(word: str) -> list[int]:
    """Hashes of a word's form; the first is of the lower-cased word."""
    small = word.lower()
    texts = [small, word, _shape(word)]
    texts += [small[-n:] for n in range(1, 6)] + [small[:n] for n in range(1, 5)]
    return [_hash(text) for text in texts]


@dataclass(frozen=True)
class TaggedText:
    """Sentences as one row of words, with two empty words around each sentence."""

    words: list[str]
    at: np.ndarray  # positions of the real words

    @classmethod
    def of(cls, sentences: Sequence[Sequence[str]]) -> TaggedText:
        words = ["", ""]
        at: list[int] = []
        for sentence in sentences:
            at += range(len(words), len(words) + len(sentence))
            words += [*sentence, "", ""]
        return cls(words, np.array(at, dtype=np.int64))


class Perceptron(Tagger):
    """An averaged perceptron on the form of a word, its neighbours and their usual tags."""

    def __init__(self, weights: np.ndarray, usual: dict[str, int], about: dict[str, Any]) -> None:
        self.weights, self.usual, self.about = weights, usual, about  # weights [BUCKETS, tags]

    @classmethod
    def train(
        cls, sentences: Sequence[Sentence], about: dict[str, Any], progress: Progress | None = None
    ) -> Perceptron:
        progress = progress or Silent()
        usual = usual_tags(sentences)
        text = TaggedText.of([[word for word, _ in sentence] for sentence in sentences])
        gold = np.array([TAGS.index(tag) for sentence in sentences for _, tag in sentence])
        features = features_of(text, usual)
        weights = np.zeros((BUCKETS, len(TAGS)), np.float32)
        late = np.zeros_like(weights)  # sum of updates, each times the number of its step
        order = np.random.default_rng(1)
        step, steps = 0, EPOCHS * -(-len(gold) // BATCH)
        progress.stage(f"tagger {about.get('train', '')}".strip(), steps)
        for _ in range(EPOCHS):
            for rows in np.split(order.permutation(len(gold)), range(BATCH, len(gold), BATCH)):
                step += 1
                found = weights[features[rows]].sum(1).argmax(-1)
                wrong = rows[found != gold[rows]]
                guessed = found[found != gold[rows]]
                for tags, sign in ((gold[wrong], 1.0), (guessed, -1.0)):
                    np.add.at(weights, (features[wrong], tags[:, None]), sign)
                    np.add.at(late, (features[wrong], tags[:, None]), sign * step)
                if step % 100 == 0:
                    progress.advance(step)
        return cls(weights - late / (step + 1), usual, about)

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        text = TaggedText.of(sentences)
        if not len(text.at):
            return [[] for _ in sentences]
        features = features_of(text, self.usual)
        found = [
            self.weights[features[start : start + 4096]].sum(1).argmax(-1)
            for start in range(0, len(features), 4096)
        ]
        tags = iter(np.concatenate(found).tolist())
        return [[TAGS[next(tags)] for _ in sentence] for sentence in sentences]

    def accuracy(self, sentences: Sequence[Sentence]) -> float:
        found = self.tag([[word for word, _ in sentence] for sentence in sentences])
        right = [
            tag == gold
            for tags, sentence in zip(found, sentences, strict=True)
            for tag, (_, gold) in zip(tags, sentence, strict=True)
        ]
        return sum(right) / len(right)


def usual_tags(sentences: Sequence[Sentence]) -> dict[str, int]:
    """The most frequent tag of every frequent word in small letters."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for sentence in sentences:
        for word, tag in sentence:
            counts[word.lower()][TAGS.index(tag)] += 1
    return {
        word: found.most_common(1)[0][0]
        for word, found in counts.items()
        if found.total() >= FREQUENT
    }


def features_of(text: TaggedText, usual: dict[str, int]) -> np.ndarray:
    """Rows of the weight matrix for each real word: [words, features]."""
    known: dict[str, int] = {}
    numbers = np.array([known.setdefault(word, len(known)) for word in text.words])
    table = np.array([_own_features(word) for word in known], dtype=np.uint32)
    tags = np.array([usual.get(w.lower(), UNKNOWN) if w else NOWHERE for w in known], np.uint32)
    at = {offset: numbers[text.at + offset] for offset in (-2, -1, 0, 1, 2)}
    form = {offset: table[found, 0] for offset, found in at.items()}
    tag = {offset: tags[found] for offset, found in at.items()}
    ending = {offset: table[at[offset], 5] for offset in (-1, 1)}  # three letters
    columns = [*table[at[0]].T, form[-2], form[-1], form[1], form[2], ending[-1], ending[1]]
    columns += [tag[offset] for offset in (-2, -1, 0, 1, 2)]
    pairs = [(tag[-1], tag[0]), (tag[0], tag[1]), (tag[-1], tag[1]), (tag[-2], tag[-1]),
             (tag[1], tag[2]), (tag[-1], form[0]), (tag[1], form[0]), (form[-1], form[0]),
             (form[0], form[1]), (tag[-1], ending[1]), (table[at[0], 5], tag[-1]),
             (table[at[0], 5], tag[1]), (table[at[0], 2], tag[-1])]  # fmt: skip
    columns += [left * np.uint32(2654435761) + right for left, right in pairs]
    # Different columns use different rows of the matrix.
    salt = np.arange(1, len(columns) + 1, dtype=np.uint32) * np.uint32(2246822519)
    mixed = (np.stack(columns, 1) ^ salt) * np.uint32(2654435761)
    return (mixed >> np.uint32(32 - 18)).astype(np.int32)


# Choosing a tagger


def make_tagger(option: str, given: Sequence[str], progress: Progress | None = None) -> Tagger:
    """A tagger from the values of an option: `TRAIN [TEST]`, `spacy:MODEL` or `stanza:LANGUAGE`."""
    kind, colon, name = given[0].partition(":")
    if colon and kind in EXTERNAL:
        if len(given) > 1:
            raise WaitinfoError(f"{option}: {given[0]} takes no further values")
        return EXTERNAL[kind](name)
    if len(given) > 2:
        raise WaitinfoError(f"{option}: give one file to train on and at most one to test on")
    train = read_tagged(Path(given[0]))
    about: dict[str, Any] = {"kind": "averaged perceptron", "train": Path(given[0]).name}
    if len(given) > 1:
        test, about["test"] = read_tagged(Path(given[1])), Path(given[1]).name
    elif len(train) < 2:
        raise WaitinfoError(f"{given[0]}: has one sentence only; give more, or a file to test on")
    else:
        test, train = train[::10], [s for n, s in enumerate(train) if n % 10]
        about["test"] = f"every tenth sentence of {about['train']}"
    tagger = Perceptron.train(train, about, progress)
    about |= {"train_words": sum(map(len, train)), "test_words": sum(map(len, test)),
              "accuracy": tagger.accuracy(test)}  # fmt: skip
    return tagger


class Spacy(Tagger):
    def __init__(self, name: str) -> None:
        try:
            import spacy
        except ImportError:
            raise WaitinfoError(
                f"spacy:{name}: needs the package spacy, or give a file of tagged words"
            ) from None
        try:
            self.pipeline = spacy.load(name, exclude=["ner", "parser"])
        except OSError as error:
            raise WaitinfoError(f"spacy:{name}: cannot be loaded ({error})") from None
        self.about = {"kind": f"spaCy {name}"}

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        from spacy.tokens import Doc

        documents = (Doc(self.pipeline.vocab, words=list(words)) for words in sentences)
        return [
            [w.pos_ if w.pos_ in TAGS else "X" for w in d] for d in self.pipeline.pipe(documents)
        ]


class Stanza(Tagger):
    def __init__(self, name: str) -> None:
        try:
            import stanza
        except ImportError:
            raise WaitinfoError(
                f"stanza:{name}: needs the package stanza, or give a file of tagged words"
            ) from None
        try:
            self.pipeline = stanza.Pipeline(
                name, processors="tokenize,pos", tokenize_pretokenized=True, verbose=False
            )
        except Exception as error:  # stanza has no error class of its own for missing models
            raise WaitinfoError(f"stanza:{name}: cannot be loaded ({error})") from None
        self.about = {"kind": f"stanza {name}"}

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        found = self.pipeline([list(words) for words in sentences])
        return [[w.upos if w.upos in TAGS else "X" for w in s.words] for s in found.sentences]


EXTERNAL: dict[str, type[Spacy] | type[Stanza]] = {"spacy": Spacy, "stanza": Stanza}
