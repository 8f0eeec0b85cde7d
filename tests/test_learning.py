"""A system test: each system learns a task whose right answer needs waiting.

Every target word tells the source word two places ahead, and the last two tell that there is none.
A translator that has read two tokens more than it writes can be perfect, and one that has read less
can only guess. What guessing can reach follows from how the sentences were drawn, so a model is
measured against the best that any translator with its very reads could do. That holds for every
path it may have learned; how fast a path is at a given dial is up to the model.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.conftest import write_pairs
from waitinfo.evaluation.latency import PROFILES, Lags, corpus_latency
from waitinfo.folder import load_model
from waitinfo.streaming.decoder import Decoder
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

WORDS = list("abcdef")
SHORTEST, LONGEST = 4, 9  # words of a source


def ahead_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [draw.choice(WORDS) for _ in range(draw.randint(SHORTEST, LONGEST))]
        target = [word.upper() for word in source[2:]] + ["-", "-"]
        pairs.append((" ".join(source), " ".join(target)))
    return pairs


def best_chance(place: int, read: int, length: int) -> float:
    """The most likely word's probability at a place (from 1), with `read` tokens of a source.

    `length` words and end-of-sentence make the source; all lengths are equally likely.
    """
    if read > length or read >= place + 2:
        return 1.0  # everything is known, or at least the word that is told
    possible = range(max(SHORTEST, read), LONGEST + 1)
    over = sum(place + 2 > n for n in possible) / len(possible)
    return max(over, (1 - over) / len(WORDS))


@dataclass(frozen=True)
class Point:
    """Translations of the dev sentences at one dial."""

    accuracy: float
    known: float  # accuracy where what was read tells the answer; 1 if that is nowhere
    guessed: float  # accuracy elsewhere
    chance: float  # the best that can be expected elsewhere
    lag: float  # AL


def translate(
    run: Path, corpus: Path, k: float, system: str | None = None, options: dict | None = None
) -> Point:
    loaded = load_model(run, system=system, options=options)
    data = Corpus(corpus)
    pairs = data.dev_text()
    sources = [data.vocabulary.source.encode(pair.source) for pair in pairs]
    found = Decoder(loaded.model, loaded.system).decode(sources, k)
    known, guessed, chances = [], [], []
    for pair, hypothesis in zip(pairs, found, strict=True):
        gold = data.vocabulary.target.encode(pair.target)
        written = zip_longest(gold, hypothesis.tokens[: len(gold)], fillvalue=-1)
        hits = [a == b for a, b in written]
        # What was not written could have been written with everything read.
        reads = [*hypothesis.path[: len(gold)], *[len(gold) + 1] * len(gold)]
        for place, (right, read) in enumerate(zip(hits, reads, strict=False), 1):
            chance = best_chance(place, read, len(gold))
            (known if chance == 1 else guessed).append(right)
            if chance < 1:
                chances.append(chance)
    lags = [Lags(h.path, h.source_length, len(h.path)) for h in found]
    lag = corpus_latency(lags, PROFILES["paper"])["AL"]
    return Point(mean([*known, *guessed]), mean(known), mean(guessed), mean(chances), lag)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 1.0


@pytest.fixture(scope="module")
def ahead_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_ahead(tmp_path_factory.mktemp("ahead"))


def prepare_ahead(folder: Path) -> Path:
    tsv = write_pairs(folder / "t.tsv", ahead_pairs(4000, seed=1))
    options = PrepareOptions(vocab="words:1", holdout=200)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", options)
    return folder / "corpus"


def learn(corpus: Path, out: Path, system: dict, **training: object) -> Path:
    values = {
        "data": str(corpus),
        "size": "tiny",
        "system": system,
        "model": {"width": 64, "ffn": 128, "dropout": 0.0},
        "training": {
            "updates": 300, "batch_tokens": 500, "lr": 4e-3, "warmup": 80, "cooldown": 0.4,
            "validate_every": 500, "validate_sentences": 0, "checkpoint_every": 500,
            "log_every": 100, "ema_decay": 0.98, **training,
        },
    }  # fmt: skip
    train(values, out, display=SilentDisplay())
    return out


def test_the_best_chance_is_that_of_many_draws() -> None:
    """Against counting: how often the most frequent answer is right among 50,000 sentences."""
    draws = [(s.split(), t.split()) for s, t in ahead_pairs(50_000, seed=7)]
    for place, read in ((1, 1), (1, 2), (3, 4), (5, 5), (7, 7), (8, 8), (2, 4)):
        sources = [(s, t) for s, t in draws if len(s) >= max(read, place)]
        groups: dict[tuple, dict[str, int]] = {}
        for source, target in sources:
            # Words read early tell nothing about this place: only the one that it tells matters.
            known = tuple(source[place + 1 : read])
            counts = groups.setdefault(known, {})
            counts[target[place - 1]] = counts.get(target[place - 1], 0) + 1
        right = sum(max(counts.values()) for counts in groups.values())
        length = 9
        assert best_chance(place, read, length) == pytest.approx(right / len(sources), abs=0.02)


SYSTEMS = [
    {"name": "multipath"},
    {"name": "moe-wait-k", "equal_updates": 150},
    # Without the floor, which makes K = 1 lag two tokens and more.
    {"name": "wait-info", "whole_source_updates": 50, "floor": False},
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system["name"])
def test_one_model_over_its_dial(ahead_corpus: Path, tmp_path: Path, system: dict) -> None:
    run = learn(ahead_corpus, tmp_path / "run", system)
    points = [translate(run, ahead_corpus, k) for k in (1, 2, 4, 8)]
    for point in points:
        assert point.guessed < point.chance + 0.15, "it knows what it has not read"
    assert points[-1].accuracy > 0.85
    assert [p.lag for p in points] == sorted(p.lag for p in points)
    assert points[-1].lag > points[0].lag + 1
    if system["name"] != "wait-info":  # three tokens are enough, and fewer are not
        assert points[2].accuracy > 0.85 and points[1].accuracy < 0.6
    if system["name"] == "multipath":
        waits_until_it_knows(run, ahead_corpus)


def waits_until_it_knows(run: Path, corpus: Path) -> None:
    """Adaptive wait-k on the same model: a higher bar waits longer, and guesses less."""
    level = {"rho_last": 1.0}  # never above the dial: the same bar at every lag
    low, high = (translate(run, corpus, rho, "adaptive-wait-k", level) for rho in (0.0, 0.9))
    assert high.lag > low.lag + 1 and high.accuracy > low.accuracy + 0.3


def test_one_wait_k_model_for_each_k(ahead_corpus: Path, tmp_path: Path) -> None:
    points = []
    for k in (1, 3):
        system = {"name": "wait-k", "k": k}
        run = learn(
            ahead_corpus, tmp_path / f"run{k}", system, updates=150, warmup=40, batch_tokens=600
        )
        points.append(translate(run, ahead_corpus, k))
    one, three = points
    assert one.guessed < one.chance + 0.15 and one.accuracy < 0.6
    assert three.accuracy > 0.85
    assert one.lag < three.lag - 1


def test_monotonic_heads_find_the_shortest_wait(ahead_corpus: Path, tmp_path: Path) -> None:
    """Told only that waiting costs, heads must find out that three tokens are enough."""
    system = {"name": "mma", "latency_weight": 0.1, "latency_after": 50}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=200, warmup=50, batch_tokens=700)
    point, patient = (translate(run, ahead_corpus, k) for k in (0.5, 0.9))
    assert point.accuracy > 0.85 and 2.5 < point.lag < 5
    assert patient.lag > point.lag


def test_gaussian_positions_find_their_alignment(ahead_corpus: Path, tmp_path: Path) -> None:
    system = {"name": "gma", "delta": 2.0}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=200, warmup=50, batch_tokens=1000)
    hasty, point = (translate(run, ahead_corpus, delta) for delta in (0.0, 2.0))
    assert point.accuracy > 0.8 and 2.5 < point.lag < 5
    assert hasty.accuracy < point.accuracy - 0.2 and hasty.lag < point.lag


def test_latent_actions_find_the_lag_they_need(ahead_corpus: Path, tmp_path: Path) -> None:
    system = {"name": "gsimt", "zeta": 3, "whole_source_updates": 100}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=220, batch_tokens=300, warmup=60)
    hasty, point, patient = (translate(run, ahead_corpus, k) for k in (0.1, 0.5, 0.9))
    assert point.accuracy > 0.85 and 2.5 < point.lag < 5
    assert hasty.accuracy < point.accuracy - 0.2
    assert hasty.lag < point.lag < patient.lag
