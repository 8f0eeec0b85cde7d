"""A newcomer's first run: its size, its validations, and what it is told at the end."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.training_runs import FakeTime, idle_trainer, metrics, new_trainer, values
from waitinfo.cli.app import main
from waitinfo.evaluation.points import UNLIKE
from waitinfo.evaluation.quality import bleu
from waitinfo.model import SIZES
from waitinfo.streaming.decoder import Decoder
from waitinfo.training import train
from waitinfo.training.config import RunConfig
from waitinfo.training.defaults import (
    CANDIDATES,
    Circumstances,
    Speed,
    choose_settings,
    choose_size,
    expected_loss,
    layer_parameters,
)
from waitinfo.training.display import SilentDisplay
from waitinfo.training.run import advice, shortcoming
from waitinfo.training.validation import Validator

ROOT = Path(__file__).resolve().parents[1]
WORK = 2e-10  # seconds for a token and a parameter: a core


def chosen_size(tokens: int, minutes: float, work: float = WORK) -> tuple[str, list[str]]:
    """The size chosen, and those tried, on a machine of this speed."""
    run = RunConfig.from_values(
        {"data": "x", "system": "wait-info", "training": {"max_minutes": minutes}}
    )

    def settings(run: RunConfig) -> tuple[dict, Circumstances]:
        sizes = SIZES[run.size]
        speed = Speed(0.01, work * layer_parameters(**sizes)) if minutes else None
        seen = Circumstances(tokens // 10, tokens, sizes["width"], speed=speed)
        names = {"training": {"max_minutes"}, "system": set()}
        return choose_settings(run, names, seen), seen

    found = choose_size(run, settings)
    return found["size"], list(found["sizes"])


def test_layers_have_as_many_weights_as_a_model(toy_corpus: Path, tmp_path: Path) -> None:
    """Without its embeddings, norms, biases and info."""
    trainer = new_trainer({**values(toy_corpus), "model": {}}, tmp_path)
    matrices = (w for n, w in trainer.model.weights().items() if "layers" in n and w.dim() == 2)
    assert sum(w.numel() for w in matrices) == layer_parameters(**SIZES["tiny"])
    counts = [layer_parameters(**SIZES[size]) for size in CANDIDATES]
    assert counts == sorted(counts)


def test_the_size_fits_the_time() -> None:
    """Minutes on a core, hours on a core, and a GPU that is 10,000 times as fast."""
    assert chosen_size(200_000, 1) == ("tiny", ["tiny", "mini"])
    assert chosen_size(60_000_000, 1000)[0] == "mini"
    assert chosen_size(60_000_000, 60, WORK / 10_000)[0] == "base"


def test_the_size_fits_the_text() -> None:
    """However long the run is, a small text is not learned by heart."""
    for minutes in (0, 10_000):
        assert chosen_size(80_000, minutes) == ("tiny", ["tiny"])
        assert chosen_size(200_000, minutes)[0] == "mini"
        assert chosen_size(60_000_000, minutes, WORK / 100)[0] == "base"


def test_a_token_that_comes_again_counts_for_less() -> None:
    once, twice, often = (expected_loss(10**6, n * 10**6, 10**6) for n in (1, 2, 100))
    new = expected_loss(10**6, 2 * 10**6, 2 * 10**6)
    assert once > twice > often
    assert twice == pytest.approx(new, rel=0.01)  # the first repetition is as good as new text
    assert often == pytest.approx(expected_loss(10**6, 10**9, 10**6), rel=0.01)
    # By hand, in units of the text: 1 + 15.39 (1 - e^(-99 / 15.39))
    worth = 10**6 * (1 + 15.39 * (1 - math.exp(-99 / 15.39)))
    assert often == pytest.approx(521 / 10 ** (6 * 0.353) + 1488 / worth**0.353)


def test_the_choice_is_recorded_kept_and_explained(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = values(toy_corpus, updates=4)
    del given["size"], given["model"]
    train(given, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["chosen"]["size"] == record["resolved"]["size"] == "tiny"
    assert "size tiny: should learn most from this text (epochs it sees: tiny " in (
        capsys.readouterr().err
    )
    train({"training": {"updates": 6}}, tmp_path / "run", resume=True, display=SilentDisplay())
    assert json.loads((tmp_path / "run" / "run.json").read_text())["resolved"]["size"] == "tiny"
    # A size that is given, or part of a shape, leaves nothing to choose.
    given["model"] = {"width": 32, "encoder_layers": 1, "decoder_layers": 1}
    train(given, tmp_path / "shape", display=SilentDisplay())
    assert json.loads((tmp_path / "shape" / "run.json").read_text())["resolved"]["size"] == "base"


# Validations of a timed run


def test_no_two_validations_come_together(toy_corpus: Path, tmp_path: Path) -> None:
    """Updates of a second, validations of one, and 10 minutes; one is due every 50 updates."""
    config = values(toy_corpus, updates=10**6, max_minutes=10)
    del config["training"]["validate_every"]
    chosen = {"training": {"validate_every": 50}}
    idle_trainer(config, tmp_path, FakeTime(), 1.0, 1.0, chosen).train()
    at = [row["update"] for row in metrics(tmp_path) if "validation_loss" in row]
    assert len(at) > 5 and min(b - a for a, b in pairwise(at)) > 25


class SlowModel:
    """A clock that moves when a model computes."""

    def __init__(self, patch: pytest.MonkeyPatch, validator: Validator) -> None:
        self.seconds, self.asked = 0.0, []
        decode, loss = Decoder.decode, validator.system.loss

        def slow_decode(decoder: Decoder, sources: list, k: float) -> list:
            self.asked.append(len(sources))
            self.seconds += 0.1 * len(sources)
            return decode(decoder, sources, k)

        def slow_loss(*given: object) -> object:
            self.seconds += 1.0
            return loss(*given)

        patch.setattr(Decoder, "decode", slow_decode)
        patch.setattr(validator.system, "loss", slow_loss)


@pytest.mark.parametrize(("limit", "scored"), [(None, 300), (20.0, 125), (4.0, 0)])
def test_a_validation_takes_no_more_than_its_share(
    toy_corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: float | None,
    scored: int,
) -> None:
    """Half of the limit is for the loss, and half for translations, a tenth of a second each."""
    trainer = new_trainer(values(toy_corpus), tmp_path)
    validator = Validator(trainer.corpus, trainer.system, 3.0, 1000, limit)
    pairs = (validator.pairs * 300)[:300]
    validator.pairs, validator.level = pairs, 1e9
    validator.sources = [trainer.corpus.vocabulary.source.encode(p.source) for p in pairs]
    slow = SlowModel(monkeypatch, validator)
    validator.now = lambda: slow.seconds
    first, began = validator(trainer.model), slow.seconds
    second = validator(trainer.model)
    assert first == second
    if not scored:
        assert first.bleu is None and validator.missing and not validator.translates
        return
    assert sum(slow.asked) == 2 * scored and slow.asked[-1] == scored
    decoder = Decoder(trainer.model, trainer.system)
    found = [h.tokens for h in decoder.decode(validator.sources[:scored], 3.0)]
    texts = [trainer.corpus.vocabulary.target.decode(tokens) for tokens in found]
    assert second.bleu == bleu(texts, [pair.target for pair in pairs[:scored]])
    assert limit is None or began < 1.3 * limit


# The end


@pytest.mark.parametrize(
    ("epochs", "losses", "said"),
    [
        (0.12, [(100, 9.0)], "the run saw only 0.12 of its text"),
        (3.0, [(100, 6.1)], "hardly learned"),
        (3.0, [(10, 5.0), (60, 4.0), (90, 3.3), (100, 3.2)], "from 4.00 to 3.20"),
        (3.0, [(60, 3.25), (90, 3.22), (100, 3.2)], None),
        (3.0, [(100, 3.0)], None),
        (3.0, [], None),
    ],
)
def test_a_run_that_ended_too_early_is_told_so(
    epochs: float, losses: list[tuple[int, float]], said: str | None
) -> None:
    found = shortcoming(epochs, losses, level=6.0)
    assert found is None if said is None else said in (found or "")


def test_the_warning_says_what_would_help(toy_corpus: Path, tmp_path: Path) -> None:
    rows = [{"update": 5, "epoch": 0.3}, {"update": 5, "validation_loss": 7.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = values(toy_corpus)
    run = RunConfig.from_values({**config, "size": "small", "model": {}})
    found = advice(run, tmp_path, level=5.0) or ""
    assert found.startswith("warning: the run saw only 0.30 of its text; ")
    assert f"waitinfo train --out {tmp_path} --resume --set training.updates=180" in found
    assert "leave out --size, or --size mini" in found
    timed = replace(run, sizes={"small": 0.3}, training=replace(run.training, max_minutes=4))
    found = advice(timed, tmp_path, level=5.0) or ""
    assert found.endswith("--resume --max-minutes 12")


def test_a_finished_run_prints_its_warning(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(values(toy_corpus, updates=2), tmp_path / "run")
    assert "warning: the run saw only" in capsys.readouterr().err.splitlines()[-1]


# The README


def commands_of_the_readme() -> list[list[str]]:
    text = (ROOT / "README.md").read_text("utf-8")
    block = text.partition("## Train your own")[2].partition("\n## ")[0]
    lines = re.findall(r"^    waitinfo (.*)$", block, re.M)
    return [shlex.split(line, comments=True) for line in lines]


def test_the_training_block_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As it stands there, with a few seconds instead of three minutes, and 20 test sentences."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = commands_of_the_readme()
    assert [words[0] for words in commands] == [
        "prepare", "train", "translate", "train", "evaluate", "evaluate", "compare",
    ]  # fmt: skip
    assert all("results" not in words for words in commands)  # the checkout's own points are there
    for words in commands:
        shortened = ["0.1" if word == "3" else word for word in words]
        with pytest.raises(SystemExit) as stop:
            main([word.replace("corpus/dev", "few") for word in shortened])
        assert not stop.value.code, words
        if words[0] == "prepare":
            for side in ("source", "target"):
                whole = (tmp_path / f"corpus/dev.{side}.txt").read_text("utf-8")
                few = "".join(whole.splitlines(keepends=True)[:20])
                (tmp_path / f"few.{side}.txt").write_text(few, "utf-8")
    runs = [json.loads((tmp_path / r / "run.json").read_text()) for r in ("wait-info", "multipath")]
    assert runs[0]["corpus"] == runs[1]["corpus"]
    assert (
        runs[0]["resolved"]["training"]["batch_tokens"]
        == runs[1]["resolved"]["training"]["batch_tokens"]
    )
    assert UNLIKE not in capsys.readouterr().err
    assert (tmp_path / "curves.svg").exists()
