"""System tests: each system learns a task whose right answers are known to need waiting.

The target says the next source letter at every position, and A at the last one, where the source
ends. Letters are drawn independently, so target letter i is known once source letter i + 1 (or the
end) has been read, and before that any guess is right once in six: no policy and no training can
do better. Hence the tests measure what was known and what was guessed apart, and compare the first
with 1 and the second with 1/6. How much is known at a dial follows from the policy by hand.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import write_pairs
from tests.oracle import batch_of
from waitinfo.evaluation.latency import PROFILES, Lags, corpus_latency
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import LossContext
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.text.special import BOS
from waitinfo.trained.saving import load_model
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

LETTERS = "abcdef"
CHANCE = 1 / len(LETTERS)
FILLER = "_"


def next_letter_pairs(count: int, fillers: int) -> list[tuple[str, str]]:
    """Sentences of 2 to 7 letters, with so many fillers after each letter of the source."""
    draw = random.Random(1)
    pairs = []
    for _ in range(count):
        letters = [draw.choice(LETTERS) for _ in range(draw.randint(2, 7))]
        source = [word for letter in letters for word in [letter, *[FILLER] * fillers]]
        target = [letter.upper() for letter in letters[1:]] + ["A"]
        pairs.append((" ".join(source), " ".join(target)))
    return pairs


def prepare_corpus(folder: Path, fillers: int) -> Corpus:
    tsv = write_pairs(folder / "t.tsv", next_letter_pairs(4000, fillers))
    options = PrepareOptions(vocab="words:1", holdout=200)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", options)
    return Corpus(folder / "corpus")


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_corpus(tmp_path_factory.mktemp("letters"), fillers=0)


@pytest.fixture(scope="module")
def letters_and_fillers(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return prepare_corpus(tmp_path_factory.mktemp("fillers"), fillers=1)


def learn(
    corpus: Corpus, out: Path, system: dict, model: dict | None = None, **training: object
) -> Path:
    values = {
        "data": str(corpus.folder),
        "size": "tiny",
        "system": system,
        "model": {"width": 64, "ffn": 128, "dropout": 0.0, **(model or {})},
        "training": {
            "updates": 250, "batch_tokens": 500, "lr": 4e-3, "warmup": 60, "cooldown": 0.4,
            "validate_every": 500, "validate_sentences": 0, "checkpoint_every": 500,
            "ema_decay": 0.98, **training,
        },
    }  # fmt: skip
    train(values, out, display=SilentDisplay())
    return out


@dataclass(frozen=True)
class Outcome:
    """Translations of the dev set at one dial."""

    known: float  # share of the positions written when their letter had been read
    right: float  # accuracy at these positions
    guessed: float  # accuracy at the others
    lag: float  # average lagging


def translate(
    run: Path, corpus: Corpus, k: float, system: str | None = None, options: Any = None
) -> Outcome:
    loaded = load_model(run, system=system, options=options)
    pairs = corpus.dev_text()
    sources = [corpus.vocabulary.source.encode(pair.source) for pair in pairs]
    found = Decoder(loaded.model, loaded.system).decode(sources, k)
    known: list[bool] = []
    guessed: list[bool] = []
    for pair, hypothesis in zip(pairs, found, strict=True):
        words = corpus.vocabulary.target.decode(hypothesis.tokens).split()
        rows = compare(pair.source.split(), pair.target.split(), words, hypothesis.path)
        for was_known, hit in rows:
            (known if was_known else guessed).append(hit)
    lags = [Lags(h.path, h.source_length, len(h.path)) for h in found]
    lag = corpus_latency(lags, PROFILES["paper"])["AL"]
    assert lag is not None
    return Outcome(len(known) / len(known + guessed), mean(known), mean(guessed), lag)


def compare(
    source: list[str], target: list[str], words: list[str], path: Sequence[int]
) -> list[tuple[bool, bool]]:
    """For each target position, whether its letter was known, and whether it was found."""
    places = [place for place, word in enumerate(source, 1) if word != FILLER]
    needed = [*places[1:], len(source) + 1]
    rows = []
    for i, (letter, place) in enumerate(zip(target, needed, strict=True)):
        known = i < len(words) and path[i] >= place
        # Guessing that the source ends here is no guess among six letters: it is left out.
        if known or i < len(target) - 1:
            rows.append((known, words[i : i + 1] == [letter]))
    return rows


def mean(hits: list[bool]) -> float:
    return sum(hits) / max(1, len(hits))


def assert_knows(outcome: Outcome) -> None:
    """It waits until the letters are known, and translates them."""
    assert outcome.known > 0.9 and outcome.right > 0.9, outcome


def assert_guesses(outcome: Outcome, known: float = 0.5) -> None:
    """It does not wait, and cannot see what it has not read."""
    assert outcome.known < known and outcome.guessed < CHANCE + 0.1, outcome


def assert_trains_without_looking_ahead(run: Path, corpus: Corpus, k: float) -> None:
    """At a dial where all letters are guesses, each costs at least log 6 in the training loss."""
    loss, letters = loss_and_letters(run, corpus, k)
    assert loss > 0.9 * letters * math.log(len(LETTERS)), loss / letters


def loss_and_letters(run: Path, corpus: Corpus, k: float) -> tuple[float, int]:
    """The loss of the dev set, its targets given, and the number of letters before the last."""
    loaded, vocabulary = load_model(run), corpus.vocabulary
    pairs = [
        (vocabulary.source.encode(pair.source), vocabulary.target.encode(pair.target))
        for pair in corpus.dev_text()
    ]
    context = LossContext(update=0, draw=random.Random(0), k=k)
    with torch.inference_mode():
        batch = batch_of(pairs).to(loaded.model.device)
        losses = loaded.system.loss(loaded.model, batch, context)
    return float(losses.parts["nll"]), sum(len(target) - 1 for _, target in pairs)


def assert_lags_grow(outcomes: list[Outcome]) -> None:
    lags = [outcome.lag for outcome in outcomes]
    assert all(above > below + 0.3 for below, above in pairwise(lags)), lags


def test_the_whole_source(letters: Corpus, tmp_path: Path) -> None:
    run = learn(letters, tmp_path / "run", {"name": "full"}, updates=150)
    outcome = translate(run, letters, 1)
    assert_knows(outcome)
    lengths = [len(pair.source.split()) + 1 for pair in letters.dev_text()]
    assert outcome.lag == pytest.approx(sum(lengths) / len(lengths))


def test_one_wait_k_model_for_each_k(letters: Corpus, tmp_path: Path) -> None:
    """Lag 1 guesses and lag 2 knows."""
    outcomes = []
    for k in (1, 2):
        run = learn(letters, tmp_path / f"run{k}", {"name": "wait-k", "k": k}, updates=150)
        outcomes.append(translate(run, letters, k))
        if k == 1:
            assert_trains_without_looking_ahead(run, letters, k)
    assert_guesses(outcomes[0])
    assert_knows(outcomes[1])
    assert_lags_grow(outcomes)


@pytest.fixture(scope="module")
def multipath_run(letters: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(letters, tmp_path_factory.mktemp("multipath") / "run", {"name": "multipath"})


def assert_serves_every_k(run: Path, corpus: Corpus) -> None:
    """Lag 1 guesses, every other knows."""
    outcomes = [translate(run, corpus, k) for k in (1, 2, 4, 8)]
    assert_guesses(outcomes[0])
    for outcome in outcomes[1:]:
        assert_knows(outcome)
    assert_lags_grow(outcomes)
    assert_trains_without_looking_ahead(run, corpus, 1)


def test_multipath_serves_every_k(letters: Corpus, multipath_run: Path) -> None:
    assert_serves_every_k(multipath_run, letters)


def test_experts_serve_every_k(letters: Corpus, tmp_path: Path) -> None:
    system = {"name": "moe-wait-k", "equal_updates": 100}
    assert_serves_every_k(learn(letters, tmp_path / "run", system), letters)


def test_adaptive_wait_k_waits_until_it_is_sure(letters: Corpus, multipath_run: Path) -> None:
    """With the same threshold at every lag: 0 is wait-1, 1 is never reached.

    Between them letters are written once they are probable enough. Label smoothing teaches a
    probability of about 0.9 for known letters. Some guesses come out as probable: training never
    sees lag 1 after lag 2.
    """
    outcomes = [
        translate(multipath_run, letters, rho, "adaptive-wait-k", {"rho_last": 1.0})
        for rho in (0.0, 0.85, 1.0)
    ]
    hurried, sure, slow = outcomes
    assert_guesses(hurried)
    assert sure.known > 0.5 and sure.right > 0.9 and sure.lag < 4.5
    assert_knows(slow)
    assert_lags_grow(outcomes)


def test_info_keeps_pace_with_a_source_that_is_twice_as_long(
    letters_and_fillers: Corpus, tmp_path: Path
) -> None:
    """Each letter is followed by a filler, so n = 2m, and zeta = 1.5 m for every m.

    The info-sum loss is 0 where a target letter has info 1.5 and a source letter with its filler
    has 1.5. Then 1.5 i info have been read when letter i + 1 comes, and 1.5 (i - 1) have been used
    before target letter i: K below 1.5 guesses and K above 1.5 knows. If all info were 1, the path
    would be wait-K, which falls behind: from i = 3 on, K = 2.25 would guess.
    """
    corpus = letters_and_fillers
    system = {"name": "wait-info", "whole_source_updates": 50, "floor": False}
    run = learn(corpus, tmp_path / "run", system)
    outcomes = [translate(run, corpus, k) for k in (0.75, 2.25, 3.75, 8)]
    assert_guesses(outcomes[0])
    for outcome in outcomes[1:]:
        assert_knows(outcome)
    assert_lags_grow(outcomes)
    assert_trains_without_looking_ahead(run, corpus, 0.75)
    source, target = mean_infos(run, corpus)
    assert source == pytest.approx(0.75, abs=0.15) and target == pytest.approx(1.5, abs=0.3)


@torch.no_grad()
def mean_infos(run: Path, corpus: Corpus) -> tuple[float, float]:
    """Info of a source and of a target token, on average over the dev set."""
    model, vocabulary = load_model(run).model, corpus.vocabulary
    source: list[float] = []
    target: list[float] = []
    for pair in corpus.dev_text():
        read = torch.tensor([vocabulary.source.encode(pair.source)])
        written = torch.tensor([[BOS, *vocabulary.target.encode(pair.target)]])
        source += model.embed_source(read).info[0].tolist()
        target += model.embed_target(written).info[0, 1:].tolist()
    return sum(source) / len(source), sum(target) / len(target)


def test_monotonic_heads_find_the_shortest_wait(letters: Corpus, tmp_path: Path) -> None:
    """Told only that waiting costs, heads find out that two tokens are enough."""
    system = {"name": "mma", "latency_weight": 0.1, "latency_after": 50}
    run = learn(letters, tmp_path / "run", system, updates=200)
    found, whole = (translate(run, letters, threshold) for threshold in (0.5, 1.0))
    assert_knows(found)
    assert found.lag < 3
    assert_lags_grow([found, whole])


def test_gaussian_positions_find_their_alignment(letters: Corpus, tmp_path: Path) -> None:
    """Target letter i aligns with position i, counted from 0, and so lags delta + 1.

    With delta 0 it ends just before its letter; a position slightly too far includes it.
    """
    system = {"name": "gma", "delta": 2.0}
    run = learn(letters, tmp_path / "run", system)
    outcomes = [translate(run, letters, delta) for delta in (0.0, 2.0, 4.0)]
    assert_guesses(outcomes[0], known=0.8)
    assert_knows(outcomes[1])
    assert_lags_grow(outcomes)
    assert outcomes[1].lag == pytest.approx(3, abs=1)


def test_latent_actions_find_the_lag_they_need(letters: Corpus, tmp_path: Path) -> None:
    """The prior reads three tokens ahead, of which the task needs two.

    It gives WRITE a probability of 0.2 after one token and of 0.05 after as many as are written.
    """
    system = {"name": "gsimt", "zeta": 3, "whole_source_updates": 100}
    run = learn(letters, tmp_path / "run", system, updates=200, batch_tokens=300)
    outcomes = [translate(run, letters, threshold) for threshold in (0.02, 0.5, 0.9)]
    assert_guesses(outcomes[0])
    assert_knows(outcomes[1])
    assert_knows(outcomes[2])
    assert_lags_grow(outcomes)
    assert outcomes[1].lag < 4
