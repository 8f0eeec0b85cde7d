"""Adaptive wait-k: thresholds by hand, wait-k as limiting cases, decisions by brute force."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

import waitinfo
from tests.conftest import tiny_config
from tests.engines import restless, sentences
from tests.oracle import batch_of
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.systems import LossContext, PolicyState, Step, build_system, check_dial
from waitinfo.systems.adaptive_wait_k import threshold
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.saving import load_model, save_model

pytestmark = pytest.mark.usefixtures("loops_are_not_cut")


def outcome(found: list[Hypothesis]) -> list[tuple]:
    return [(h.tokens, h.path, h.ended) for h in found]


@pytest.mark.parametrize("ending", ["guard", "allow"])
@pytest.mark.parametrize(("rho", "k_max", "k"), [(0.0, 6, 1), (1.0, 4, 4), (0.5, 1, 1)])
def test_extreme_thresholds_are_wait_k(
    tiny_model, rho: float, k_max: int, k: int, ending: str
) -> None:
    model = restless(tiny_model(seed=3))
    sources = sentences(25, seed=6)
    adaptive = build_system("adaptive-wait-k", {"rho_last": rho, "k_max": k_max})
    found = Decoder(model, adaptive, ending).decode(sources, rho)
    fixed = Decoder(model, build_system("wait-k"), ending).decode(sources, k)
    assert outcome(found) == outcome(fixed)


def test_thresholds_by_hand() -> None:
    lag = torch.tensor([1, 2, 3, 4, 5])
    falling = threshold(lag, torch.full((5,), 0.9, dtype=torch.float64), 0.1, 5)
    assert falling.tolist() == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])
    level = threshold(lag, torch.full((5,), 0.2, dtype=torch.float64), 0.6, 5)
    assert level.tolist() == pytest.approx([0.2] * 5), "a threshold never rises with the lag"


def test_decisions_by_hand() -> None:
    """Lags 0 to 4 with k_max 4 and thresholds 0.8, 0.6, 0.4 at lags 1, 2, 3."""
    system = build_system("adaptive-wait-k", {"rho_last": 0.2, "k_max": 4})
    rows = [  # lag, probability of the best token, expected `ready`, expected `accept`
        (0, 0.99, False, None), (1, 0.79, True, False), (1, 0.81, True, True),
        (2, 0.59, True, False), (2, 0.61, True, True), (3, 0.39, True, False),
        (3, 0.41, True, True), (4, 0.05, True, True), (6, 0.05, True, True),
    ]  # fmt: skip
    count = len(rows)
    written = torch.full((count,), 3)
    zeros = torch.zeros(count, dtype=torch.float64)
    state = PolicyState(
        k=torch.full((count,), 0.8, dtype=torch.float64),
        read=written + torch.tensor([row[0] for row in rows]),
        written=written,
        complete=torch.zeros(count, dtype=torch.bool),
        source_info=zeros,
        target_info=zeros,
    )
    best = torch.tensor([row[1] for row in rows])
    # The remaining probability is spread over forty other tokens.
    logits = torch.cat([best[:, None].log(), ((1 - best) / 40).log()[:, None].expand(-1, 40)], 1)
    step = Step(logits.argmax(-1), asked={"logits": logits})
    accepted = system.accept(state, step).tolist()
    assert system.ready(state).tolist() == [row[2] for row in rows]
    assert accepted[1:] == [row[3] for row in rows[1:]]


@torch.no_grad()
def by_brute_force(
    model: Transformer, source: list[int], rho: tuple[float, float], k_max: int, guard: bool
) -> tuple[list[int], list[int]]:
    """The rule in plain numbers: every step recomputes everything."""
    tokens = [*source, EOS]
    read, written, path = 1, [], []
    while True:
        lag, complete = read - len(written), read == len(tokens)
        if lag < 1 and not complete:
            read += 1
            continue
        encoded = model.encode(
            model.embed_source(torch.tensor([tokens[:read]])), torch.tensor([read])
        )
        target = model.embed_target(torch.tensor([[BOS, *written]]))
        states = model.decode(target, encoded, torch.tensor([[*path, read]])).states[0, -1]
        scores = model.logits(states).tolist()
        allowed = {t: math.exp(s) for t, s in enumerate(scores) if t not in (PAD, BOS)}
        best = max(allowed, key=lambda t: allowed[t])
        needed = rho[0] + (rho[1] - rho[0]) * (lag - 1) / (k_max - 1)
        sure = allowed[best] / sum(allowed.values()) >= needed
        early_end = guard and best == EOS
        if not complete and (early_end or not (sure or lag >= k_max)):
            read += 1
            continue
        written.append(best)
        path.append(read)
        if best == EOS or (complete and len(written) == 2 * read + 10):
            return written, path


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("rho", [(0.5, 0.0), (0.3, 0.15)])
def test_rule_equals_brute_force(tiny_model, rho: tuple[float, float], guard: bool) -> None:
    model = restless(tiny_model(seed=3))
    sources = sentences(12, seed=8)
    system = build_system("adaptive-wait-k", {"rho_last": rho[1], "k_max": 5})
    found = Decoder(model, system, "guard" if guard else "allow").decode(sources, rho[0])
    lags = set()
    for source, hypothesis in zip(sources, found, strict=True):
        tokens, path = by_brute_force(model, source, rho, 5, guard)
        assert (hypothesis.tokens, hypothesis.path) == ([t for t in tokens if t != EOS], path)
        lags |= {g - i for i, g in enumerate(path) if g <= len(source)}
    assert len(lags) > 2, "the test needs a model that is sure at some lags and not at others"


def test_training_equals_multipath(tiny_model) -> None:
    model = tiny_model()
    batch = batch_of([([5, 6, 7, 8, 9], [10, 11, 12]), ([20, 21], [22])])
    adaptive = build_system("adaptive-wait-k", {"k_max": 6})
    for seed in range(4):
        losses = [
            system.loss(model, batch, LossContext(0, random.Random(seed))).total
            for system in (adaptive, build_system("multipath"))
        ]
        assert losses[0] == losses[1]
    validated = adaptive.loss(model, batch, LossContext(0, random.Random(0), k=0.4)).total
    middle = build_system("wait-k").loss(model, batch, LossContext(0, random.Random(0), k=3)).total
    assert validated == middle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rho_last": 1.5}, "system.rho_last 1.5: must be from 0 to 1"),
        ({"k_max": 0}, "system.k_max 0: must be at least 1"),
        ({"catch_up": 1}, "unknown setting 'system.catch_up'"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        build_system("adaptive-wait-k", options)


def test_the_dial_is_a_probability() -> None:
    system = build_system("adaptive-wait-k")
    assert check_dial(system, None) == system.dial.default
    assert check_dial(system, 1) == 1
    for value in (-0.1, 1.1, math.nan):
        with pytest.raises(WaitinfoError, match="rho_1 must be a number from 0 to 1"):
            check_dial(system, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A multipath model with its own options."""
    tokenizer, _ = train_tokenizer([f"w{i}" for i in range(36)], VocabularySpec("words", 1))
    torch.manual_seed(1)
    model = restless(Transformer(tiny_config()))
    system = build_system("multipath", {"k": 5, "catch_up": 2})
    vocabulary = Vocabulary(tokenizer, tokenizer)
    save_model(tmp_path / "m", model, model.weights(), system, vocabulary)
    return tmp_path / "m"


def test_a_model_is_decoded_with_another_system(folder: Path) -> None:
    own = load_model(folder).system
    assert (own.name, own.options.k, own.options.catch_up) == ("multipath", 5, 2)
    changed = load_model(folder, options={"catch_up": "0"}).system
    assert (changed.name, changed.options.k, changed.options.catch_up) == ("multipath", 5, 0)
    same = load_model(folder, system="multipath", options={"k": 4}).system
    assert (same.options.k, same.options.catch_up) == (4, 2)
    other = load_model(folder, system="wait-k").system
    assert (other.name, other.options.k, other.options.catch_up) == ("wait-k", 3, 0)

    translator = waitinfo.load(folder, system="adaptive-wait-k", options={"k_max": 4})
    fixed = waitinfo.load(folder, system="wait-k")
    text = " ".join(f"w{i}" for i in range(8))
    assert translator.system.options.k_max == 4
    assert translator.translate(text, 0) == fixed.translate(text, 1) != ""


@pytest.mark.parametrize(
    ("system", "options", "message"),
    [
        ("wait-j", None, "unknown system 'wait-j'; choose one of: full"),
        ("adaptive-wait-k", {"k": 3}, "unknown setting 'system.k'; choose one of: .*k_max"),
        (None, {"rho_last": 0}, "unknown setting 'system.rho_last'"),
        ("wait-info", None, "wait-info requires info"),
    ],
)
def test_incompatible_systems_are_rejected(
    folder: Path, system: str | None, options: dict | None, message: str
) -> None:
    with pytest.raises(WaitinfoError, match=message):
        load_model(folder, system=system, options=options)
