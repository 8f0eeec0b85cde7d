"""Settings that fit: the rules, what is recorded of them, and that a newcomer's model learns."""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.conftest import write_pairs
from tests.number_words import number_pairs
from tests.training_runs import (
    FakeTime,
    assert_same_tensors,
    idle_trainer,
    metrics,
    new_trainer,
    values,
)
from waitinfo.systems import SYSTEMS
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.training import defaults, train
from waitinfo.training.config import RunConfig, TrainingConfig, given_names
from waitinfo.training.defaults import (
    Circumstances,
    Speed,
    Trial,
    choose_settings,
    fastest_threads,
    observe,
)
from waitinfo.training.display import SilentDisplay
from waitinfo.training.distributed import ProcessGroup
from waitinfo.training.run_folder import fit_settings
from waitinfo.training.validation import token_entropy

LARGE = Circumstances(pairs=1_900_000, tokens=60_000_000, width=512)
SMALL = Circumstances(pairs=2300, tokens=24_000, width=128)
FAST = Speed(update=0.01, token=1e-7)  # a GPU: 93 updates of 8,192 tokens a second
SLOW = Speed(update=0.01, token=1e-4)  # a core: 1.2 of them


def choose(circumstances: Circumstances, system: dict | str = "wait-info", **training) -> dict:
    given = {"data": "x", "system": system, "training": training}
    return choose_settings(RunConfig.from_values(given), given_names(given), circumstances)


def test_a_large_corpus_and_a_long_run_get_the_stock_settings() -> None:
    for chosen in (choose(LARGE), choose(replace(LARGE, speed=FAST), max_minutes=600)):
        for name, value in chosen["training"].items():
            assert value == getattr(TrainingConfig(), name), name
        assert chosen["system"] == {"whole_source_updates": 4000}


def test_nothing_given_is_chosen() -> None:
    given = {
        "batch_tokens": 111, "updates": 22, "lr": 3.0, "warmup": 4, "validate_every": 5,
        "log_every": 6, "validate_sentences": 7, "ema_decay": 0.9, "threads": 8, "max_minutes": 9,
    }  # fmt: skip
    system = {"name": "wait-info", "whole_source_updates": 10}
    chosen = choose(replace(SMALL, threads=1, speed=SLOW), system, **given)
    assert chosen == {"training": {}, "system": {}}


def test_a_small_corpus_gets_small_batches_and_a_narrow_model_a_high_rate() -> None:
    chosen = choose(SMALL)["training"]
    assert chosen["batch_tokens"] == 448  # 24,000 tokens in 50 batches, in multiples of 64
    assert chosen["updates"] == 3214  # 60 epochs
    assert chosen["lr"] == pytest.approx(2e-3)
    assert chosen["warmup"] == 642 and chosen["validate_every"] == 321
    assert choose(replace(SMALL, processes=2))["training"]["batch_tokens"] == 256
    assert choose(replace(SMALL, tokens=100))["training"]["batch_tokens"] == 256


def test_a_short_run_gets_a_short_warm_up_short_stages_and_enough_updates() -> None:
    """Half a minute on a slow core: 24 seconds of updates that take 10 ms and 0.1 ms a token."""
    chosen = choose(replace(LARGE, speed=SLOW), max_minutes=0.5)
    assert chosen["training"]["batch_tokens"] == 256
    expected = int(24 / (0.01 + 256e-4))
    assert chosen["expected_updates"] == expected == 674
    assert chosen["training"]["warmup"] == 134
    assert chosen["training"]["ema_decay"] == round(1 - 10 / 674, 4)
    assert chosen["training"]["validate_every"] == 67 and chosen["training"]["log_every"] == 33
    assert chosen["training"]["validate_sentences"] == 150
    assert chosen["system"] == {"whole_source_updates": 168}
    # Ten minutes: 1,000 updates of up to 4,700 tokens would fit.
    more = choose(replace(LARGE, speed=SLOW), max_minutes=10)["training"]
    assert more["batch_tokens"] == 4672 and more["warmup"] == 201
    # Fewer updates than fit the time were asked for.
    assert (
        choose(replace(LARGE, speed=SLOW), max_minutes=10, updates=50)["training"]["warmup"] == 10
    )


@pytest.mark.parametrize(
    ("system", "stages"),
    [
        ("full", {}),
        ("multipath", {}),
        ("moe-wait-k", {"equal_updates": 100}),
        ("mma", {"latency_after": 100}),
        ("wait-info", {"whole_source_updates": 100}),
    ],
)
def test_stages_of_every_system_fit_the_run(system: str, stages: dict) -> None:
    assert choose(LARGE, system, updates=400)["system"] == stages
    long = choose(LARGE, system, updates=6000)["system"]
    options = SYSTEMS[system].Options()
    assert long == {name: getattr(options, name) for name in stages}


@pytest.mark.parametrize("recipe", sorted(Path("recipes").glob("*.toml")), ids=lambda p: p.name)
@pytest.mark.parametrize("system", SYSTEMS)
def test_recipes_mean_what_they_say(recipe: Path, system: str) -> None:
    """Only the number of threads is chosen for a recipe, and stages that would fill its run."""
    given = tomllib.loads(recipe.read_text("utf-8"))
    given = {**given, "data": "x", "system": given.get("system", {}) | {"name": system}}
    run = RunConfig.from_values(given)
    for circumstances in (LARGE, SMALL):
        chosen = choose_settings(run, given_names(given), replace(circumstances, speed=SLOW))
        assert not chosen["training"]
        for name, value in chosen["system"].items():
            stock = getattr(run.system.options, name)
            assert value == stock or 3 * stock > 2 * run.training.updates


def test_time_is_measured_only_if_something_depends_on_it(
    toy_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []

    def seen(run, corpus, processes, timed, free):
        asked.append((timed, free))
        return SMALL

    monkeypatch.setattr("waitinfo.training.run_folder.observe", seen)
    corpus = Corpus(toy_corpus)

    def fit(**training: object) -> None:
        given = {"data": str(toy_corpus), "system": "wait-info", "training": training}
        fit_settings(given, RunConfig.from_values(given), corpus, ProcessGroup())

    fit()
    fit(max_minutes=1, threads=2)
    assert asked == [(False, True), (True, False)]


@pytest.mark.parametrize(
    ("seconds", "most", "best"),
    [
        ({1: 1.0, 2: 3.0}, 4, 1),
        ({1: 1.0, 2: 0.95, 4: 0.1}, 4, 1),  # hardly faster: not worth a second thread
        ({1: 1.0, 2: 0.6, 4: 0.4, 8: 0.5}, 8, 4),
        ({1: 1.0, 2: 0.6, 3: 0.4}, 3, 3),
        ({}, 1, 1),  # other processes need the rest
    ],
)
def test_more_threads_are_used_only_if_they_are_faster(
    seconds: dict[int, float], most: int, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = [8]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    assert fastest_threads(lambda most=None: seconds[threads[0]], most) == best
    assert threads == [8]


def test_idle_threads_leave_busy_cores_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    for busy, idle in ((0.1, 8), (3.0, 5), (7.9, 1), (50.0, 1)):
        monkeypatch.setattr(defaults.os, "getloadavg", lambda busy=busy: (busy, 0, 0))
        assert defaults.idle_threads() == idle


def test_speed_is_fitted_to_two_sizes(toy_corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunConfig.from_values(values(toy_corpus))
    trial = Trial(run, Corpus(toy_corpus), ProcessGroup())
    assert trial.seconds(64) > 0
    monkeypatch.setattr(trial, "seconds", lambda tokens: 0.25 + 0.5 * tokens)
    speed = trial.speed()
    assert (speed.update, speed.token) == pytest.approx((0.25, 0.5))
    assert speed.seconds(100) == pytest.approx(50.25)


def test_measuring_leaves_the_run_as_it_would_have_been(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=3)
    first = new_trainer(config, tmp_path / "a").model.weights()
    run, corpus = RunConfig.from_values(config), Corpus(toy_corpus)
    assert observe(run, corpus, ProcessGroup(), timed=True, free=True).speed is not None
    second = new_trainer(config, tmp_path / "b").model.weights()
    assert all(torch.equal(first[name], second[name]) for name in first)


def unset(config: dict, *names: str) -> dict:
    training = {k: v for k, v in config["training"].items() if k not in names}
    return {**config, "system": {"name": "wait-info"}, "training": training}


CHOSEN = ("batch_tokens", "lr", "warmup", "validate_every", "log_every", "threads")


def test_what_was_chosen_is_recorded_and_a_resumed_run_keeps_it(
    toy_corpus: Path, tmp_path: Path
) -> None:
    # The number of threads is measured, so two runs may choose another one.
    config = unset(values(toy_corpus, updates=40), *CHOSEN)
    config["training"]["threads"] = 1
    train(config, tmp_path / "whole", display=SilentDisplay())
    record = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert record["given"]["training"].keys().isdisjoint(set(CHOSEN) - {"threads"})
    assert record["chosen"]["training"]["warmup"] == 8
    assert record["chosen"]["system"] == {"whole_source_updates": 10}
    assert record["resolved"]["training"]["warmup"] == 8
    assert record["resolved"]["system"]["whole_source_updates"] == 10

    paused = {**config, "training": {**config["training"], "pause_minutes": 1e-6}}
    assert train(paused, tmp_path / "parts", display=SilentDisplay())["paused"]
    train({"training": {"pause_minutes": 0}}, tmp_path / "parts", resume=True)
    assert json.loads((tmp_path / "parts" / "run.json").read_text())["chosen"] == record["chosen"]
    last = Path("last") / "model.safetensors"
    assert_same_tensors(tmp_path / "whole" / last, tmp_path / "parts" / last)
    # A longer run keeps its warm-up.
    train({"training": {"updates": 50}}, tmp_path / "parts", resume=True, display=SilentDisplay())
    resumed = json.loads((tmp_path / "parts" / "run.json").read_text())
    assert resumed["resolved"]["training"]["warmup"] == 8


def test_a_run_from_before_settings_were_chosen_goes_on_with_the_stock_ones(
    toy_corpus: Path, tmp_path: Path
) -> None:
    given = values(toy_corpus, updates=5, ema_decay=0.999)
    train(given, tmp_path / "run", display=SilentDisplay())
    file = tmp_path / "run" / "run.json"
    record = json.loads(file.read_text())
    del record["chosen"], record["given"]["training"]["log_every"]
    file.write_text(json.dumps(record))
    train({"training": {"updates": 7}}, tmp_path / "run", resume=True, display=SilentDisplay())
    assert json.loads(file.read_text())["resolved"]["training"]["log_every"] == 50


def test_choices_are_shown(toy_corpus: Path, tmp_path: Path, capsys) -> None:
    train(unset(values(toy_corpus, updates=40), *CHOSEN), tmp_path / "run")
    said = capsys.readouterr().err
    assert "chosen to fit: batch_tokens 256, lr 0.008, warmup 8," in said
    assert "whole_source_updates 10" in said


def test_stages_end_in_time_where_a_machine_becomes_slow(toy_corpus: Path, tmp_path: Path) -> None:
    """400 updates were expected, 100 of them whole-source; only 40 fit."""
    config = values(toy_corpus, updates=10**6, max_minutes=1)
    del config["system"]["whole_source_updates"]
    chosen = {"system": {"whole_source_updates": 100}, "expected_updates": 400}
    trainer = idle_trainer(config, tmp_path, FakeTime(), 1.4, 0.1, chosen)
    run, seen = trainer.updater.run, []

    def record(item, position, lr):
        seen.append(position < trainer.system.options.whole_source_updates)
        return run(item, position, lr)

    trainer.updater.run = record
    trainer.train()
    assert 35 < len(seen) < 45
    assert seen == sorted(seen, reverse=True) and 8 <= sum(seen) <= 12


def test_validations_of_a_timed_run_take_a_tenth_of_its_time(
    toy_corpus: Path, tmp_path: Path
) -> None:
    """Updates take a second and validations ten; after every fifth update is too often."""
    config = values(toy_corpus, updates=10**6, max_minutes=10)
    counts = {}
    for name in ("chosen", "given"):
        out = tmp_path / name
        out.mkdir()
        every = {"validate_every": 5}
        training = config["training"] | every
        if name == "chosen":
            del training["validate_every"]
        given = {**config, "training": training}
        idle_trainer(given, out, FakeTime(), 1.0, 10.0, {"training": every}).train()
        counts[name] = sum("validation_loss" in row for row in metrics(out))
    assert 4 <= counts["chosen"] <= 7  # 60 seconds of 600, and the last
    assert counts["given"] > 30


def test_a_model_that_knows_nothing_is_not_asked_to_translate(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(toy_corpus)
    assert token_entropy(corpus) == pytest.approx(entropy_by_hand(toy_corpus))
    trainer = new_trainer(values(toy_corpus), tmp_path)
    validator = trainer.validator
    found = validator(trainer.model)
    assert found.loss > validator.level and found.bleu is None
    monkeypatch.setattr(validator, "_loss", lambda model: 0.9 * validator.level)
    assert validator(trainer.model).bleu is not None


def entropy_by_hand(corpus: Path) -> float:
    """Of the words of the target, and the ends of its lines."""
    split = Corpus(corpus).train
    counts: Counter[int] = Counter()
    for i in range(len(split)):
        tokens, _ = split.gather(torch.tensor([i]).numpy(), 1)
        counts.update([*tokens.tolist(), -1])
    total = sum(counts.values())
    return -sum(c / total * math.log(c / total) for c in counts.values())


@pytest.fixture(scope="module")
def number_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    tsv = write_pairs(folder / "numbers.tsv", number_pairs(3000, below=21))
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", PrepareOptions())
    return folder / "corpus"


def test_a_newcomers_corpus_is_learned_with_the_chosen_settings(
    number_corpus: Path, tmp_path: Path
) -> None:
    """Fewer updates than half a minute allows on one core, with everything else chosen."""
    config = {
        "data": str(number_corpus), "size": "tiny", "system": "wait-info",
        "training": {"updates": 250, "device": "cpu", "validate_every": 250},
    }  # fmt: skip
    train(config, tmp_path / "run", display=SilentDisplay())
    (validation,) = (row for row in metrics(tmp_path / "run") if "validation_loss" in row)
    assert validation["bleu"] > 70
