"""The experiments with spoken text: their commands, a small run, and their tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments import spoken
from tests.commands import done_quietly, parsed
from tests.evaluations import evaluated_model
from waitinfo.evaluation.conditions import ALL
from waitinfo.trained.saving import LoadedModel

TEXTS = {"de": "Das ist gut.\nWir danken Ihnen.\n", "en": "That is good.\nWe thank you.\n"}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return evaluated_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (*spoken.SETS, *spoken.DEV):
        for side, text in TEXTS.items():
            (folder / f"{name}.{side}").write_text(text, "utf-8")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["spoken.py", *map(str, arguments)])
    spoken.main()


def commands(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> list[list[str]]:
    """Commands that are run, without running them."""
    found: list[list[str]] = []
    monkeypatch.setattr(
        spoken.Job, "call", lambda self, *command: found.append([str(word) for word in command])
    )
    run(monkeypatch, *arguments, "--models", "de-en", "--dry-run")
    return found


def test_commands_are_valid(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = (data, "--results", tmp_path / "results", "--work", tmp_path / "work")
    made = [parsed(*command[3:]) for command in commands(monkeypatch, "conditions", *where)]
    assert [options["source"].name for options in made] == [f"{name}.de" for name in spoken.SETS]
    assert all(options["condition"] == "all" and options["k"] == "5.0" for options in made)
    made = [parsed(*command[3:]) for command in commands(monkeypatch, "lag", *where, "--lines", 1)]
    assert made[0]["calibrate"] and len(made) == 1 + 3 * len(spoken.SETS)
    assert made[1]["source"].name == "newstest2015-1.de" and made[1]["lag"] == "4,5,6"
    assert made[3]["documents"] == spoken.STREAM and made[3]["lag"] is None
    made = [parsed(*command[3:]) for command in commands(monkeypatch, "windows", *where)]
    sizes = [f"none:{n}" for n in spoken.WINDOWS]
    assert [options["segment"] for options in made] == 2 * sizes
    assert [options["source"].stem for options in made[::5]] == spoken.DEV
    with pytest.raises(SystemExit, match="give the folder with the sets"):
        run(monkeypatch, "conditions", tmp_path / "none")


def test_a_model_says_its_languages(loaded: LoadedModel) -> None:
    assert spoken.Model.find("de-en").target == "en"
    with pytest.raises(spoken.WaitinfoError, match="does not say which languages"):
        spoken.Model.find(str(loaded.folder))


def test_conditions_of_a_small_set(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spoken.Job, "call", lambda self, *command: done_quietly(*command[3:]))
    where = ("--sets", "newstest2015", "--results", tmp_path, "--models", "de-en")
    run(monkeypatch, "conditions", data, *where)
    rows = (tmp_path / "models/spoken.md").read_text("utf-8").splitlines()
    rows = [line for line in rows if line.startswith("| de-en")]
    assert [line.split(" | ")[2] for line in rows] == list(ALL)


def test_an_hour_of_a_few_words(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(monkeypatch, "hour", data, "--results", tmp_path, "--models", "de-en")
    found = json.loads((tmp_path / "models/long-stream.json").read_text("utf-8"))["de-en"]
    assert found["words"] == 12 and found["lines"] == 4 and found["k"] == 5
    assert len(found["MiB_halves"]) == 1 and found["most_lag"] == found["lag_halves"][0]
    assert found["of_segmented"] == pytest.approx(found["BLEU"] / found["segmented_BLEU"], abs=0.01)
