"""A system test: each system learns a task whose right answer needs waiting.

Every target word tells the source word two places ahead (and the last two tell nothing), so a
translator that lags three tokens can be perfect and one that lags less can only guess.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conftest import write_pairs
from waitinfo.evaluation.latency import PROFILES, Lags, corpus_latency
from waitinfo.model.saving import load_model
from waitinfo.streaming.decoder import Decoder
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

WORDS = list("abcdef")


def ahead_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        source = [draw.choice(WORDS) for _ in range(draw.randint(4, 9))]
        target = [word.upper() for word in source[2:]] + ["-", "-"]
        pairs.append((" ".join(source), " ".join(target)))
    return pairs


@pytest.fixture(scope="module")
def ahead_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    tsv = write_pairs(folder / "t.tsv", ahead_pairs(4000, seed=1))
    options = PrepareOptions(vocab="words:1", holdout=100)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", options)
    return folder / "corpus"


def accuracy_and_lag(
    run: Path,
    corpus: Corpus,
    k: float,
    system: str | None = None,
    options: dict | None = None,
) -> tuple[float, float]:
    loaded = load_model(run, system=system, options=options)
    pairs = corpus.dev_text()
    sources = [corpus.vocabulary.source.encode(pair.source) for pair in pairs]
    found = Decoder(loaded.model, loaded.system).decode(sources, k)
    right = total = 0
    for pair, hypothesis in zip(pairs, found, strict=True):
        gold = corpus.vocabulary.target.encode(pair.target)
        right += sum(a == b for a, b in zip(gold, hypothesis.tokens, strict=False))
        total += len(gold)
    lags = [Lags(h.path, h.source_length, len(h.path)) for h in found]
    return right / total, corpus_latency(lags, PROFILES["paper"])["AL"]


def learn(corpus: Path, out: Path, system: dict, **training: object) -> Path:
    values = {
        "data": str(corpus),
        "size": "tiny",
        "system": system,
        "model": {"width": 64, "ffn": 128, "dropout": 0.0},
        "training": {
            "updates": 300, "batch_tokens": 500, "lr": 4e-3, "warmup": 80, "cooldown": 0.4,
            "validate_every": 500, "validate_sentences": 0, "checkpoint_every": 500,
            "ema_decay": 0.98, **training,
        },
    }  # fmt: skip
    train(values, out, display=SilentDisplay())
    return out


SYSTEMS = [
    {"name": "multipath"},
    {"name": "moe-wait-k", "equal_updates": 150},
    # Without the floor, which makes K = 1 lag two tokens and more.
    {"name": "wait-info", "whole_source_updates": 50, "floor": False},
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system["name"])
def test_one_model_over_its_dial(ahead_corpus: Path, tmp_path: Path, system: dict) -> None:
    run = learn(ahead_corpus, tmp_path / "run", system)
    corpus = Corpus(ahead_corpus)
    points = [accuracy_and_lag(run, corpus, k) for k in (1, 2, 4, 8)]
    accuracies, lags = zip(*points, strict=True)
    assert accuracies[-1] > 0.97
    assert accuracies[0] < accuracies[-1] - 0.1
    assert lags[0] < lags[1] < lags[2] < lags[3]
    if system["name"] == "multipath":
        waits_until_it_knows(run, corpus)


def waits_until_it_knows(run: Path, corpus: Corpus) -> None:
    """Adaptive wait-k on the same model: a higher bar waits longer, and guesses less."""
    level = {"rho_last": 1.0}  # never above the dial: the same bar at every lag
    points = [
        accuracy_and_lag(run, corpus, rho, "adaptive-wait-k", level) for rho in (0.0, 0.3, 0.6, 0.9)
    ]
    accuracies, lags = zip(*points, strict=True)
    assert list(accuracies) == sorted(accuracies) and accuracies[-1] > accuracies[0] + 0.5
    assert lags[0] < lags[1] < lags[2] < lags[3]


def test_one_wait_k_model_for_each_k(ahead_corpus: Path, tmp_path: Path) -> None:
    corpus = Corpus(ahead_corpus)
    points = []
    for k in (1, 3):
        system = {"name": "wait-k", "k": k}
        run = learn(
            ahead_corpus, tmp_path / f"run{k}", system, updates=150, warmup=40, batch_tokens=600
        )
        points.append(accuracy_and_lag(run, corpus, k))
    (low, short), (high, long) = points
    assert high > 0.97 and low < high - 0.3 and short < long


def test_monotonic_heads_find_the_shortest_wait(ahead_corpus: Path, tmp_path: Path) -> None:
    """Told only that waiting costs, heads must find out that three tokens are enough."""
    system = {"name": "mma", "latency_weight": 0.1, "latency_after": 50}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=200, warmup=50, batch_tokens=700)
    corpus = Corpus(ahead_corpus)
    accuracy, lag = accuracy_and_lag(run, corpus, 0.5)
    assert accuracy > 0.93 and 2.8 < lag < 3.7
    assert accuracy_and_lag(run, corpus, 0.9)[1] > lag


def test_gaussian_positions_find_their_alignment(ahead_corpus: Path, tmp_path: Path) -> None:
    system = {"name": "gma", "delta": 2.0}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=200, warmup=50, batch_tokens=1000)
    corpus = Corpus(ahead_corpus)
    (low, short), (high, long) = (accuracy_and_lag(run, corpus, delta) for delta in (0.0, 2.0))
    assert high > 0.93 and 2.8 < long < 3.9
    assert low < high - 0.3 and short < long


def test_latent_actions_find_the_lag_they_need(ahead_corpus: Path, tmp_path: Path) -> None:
    system = {"name": "gsimt", "zeta": 3, "whole_source_updates": 100}
    run = learn(ahead_corpus, tmp_path / "run", system, updates=220, batch_tokens=300, warmup=60)
    corpus = Corpus(ahead_corpus)
    points = [accuracy_and_lag(run, corpus, threshold) for threshold in (0.1, 0.5, 0.9)]
    accuracies, lags = zip(*points, strict=True)
    assert accuracies[1] > 0.95
    assert accuracies[0] < accuracies[1] - 0.3
    assert lags[0] < lags[1] - 0.5 and lags[1] < lags[2] - 0.5
    assert 2.8 < lags[1] < 3.5
