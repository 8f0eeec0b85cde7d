"""Experiments: their commands and settings are valid, match the results, and a small one runs."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from experiments import run
from experiments.chain import read_chain
from experiments.experiment import SETTINGS, Experiment, read_experiment
from experiments.pages.tables import RESULTS, points_of
from tests.commands import parsed
from tests.conftest import toy_pairs
from tests.experiment_commands import ROOT, commands_of
from waitinfo.config import apply_settings, from_mapping
from waitinfo.evaluation.points import Point, read_points
from waitinfo.model.config import ModelConfig
from waitinfo.training.config import RunConfig

NAMES = sorted(path.stem for path in SETTINGS.glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line takes it, and a run can be made with its recipe and settings."""
    commands = commands_of(name, monkeypatch)
    assert "evaluate" in {command[0] for command in commands}
    for command in commands:
        options = parsed(*command)
        if command[0] == "train":
            recipe = tomllib.loads(options["config"].read_text("utf-8"))
            values = apply_settings(copy.deepcopy(recipe) | {"data": "x"}, options["settings"])
            values["system"] = {**values.get("system", {}), "name": options["system"]}
            made = RunConfig.from_values(values)
            shape = {"source_vocabulary": 9, "target_vocabulary": 9, **made.system.model_defaults}
            made.system.check_model(from_mapping(ModelConfig, {**shape, **made.model}, "model"))


@pytest.mark.parametrize("name", NAMES)
def test_corpora_can_be_made(name: str) -> None:
    """Each is defined, or a stage of the experiment's chain has its name."""
    settings = read_experiment(name)
    trained = [each for each in settings["runs"] if "model" not in each]
    names = {each.get("corpus", settings["corpus"]) for each in trained}
    if "chain" in settings:
        made = {stage.name: stage.makes for stage in read_chain(settings["chain"])[1]}
        assert all(made[corpus] == f"corpora/{corpus}" for corpus in names)
    else:
        assert names <= set(settings.get("corpora", {}))


@pytest.mark.parametrize("name", NAMES)
def test_points_in_results_match_the_experiment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point of the first seed comes from a command, if its run can still be made."""
    made: set[tuple[Any, ...]] = set()
    for command in commands_of(name, monkeypatch):
        if command[0] == "evaluate":
            o = parsed(*command)
            dials = o["lag"] or o["k"]
            name = o["name"] + ("-lag" if o["lag"] else "")
            for k in map(float, dials.split(",")) if dials else [None]:
                made.add((o["run"], name, o["source"].stem, k, o["ending"], o["beam"],
                          o["label"]))  # fmt: skip
    without_dial = {key[:3] for key in made if key[3] is None}
    runs = {key[0] for key in made}
    for point in points_of(RESULTS, name):
        if point["seed"] in (None, 1) and point["run"] in runs:
            condition = r"-(lower|errors-\d+|documents|documents-lower)$"
            start = point["run"], point["name"], re.sub(condition, "", point["set"])
            k = None if start in without_dial else point["k"]
            end = point["settings"]["ending"], point["settings"]["beam"], point.get("label")
            assert (*start, k, *end) in made


def test_training_settings_in_results_match_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (RESULTS / "runs.jsonl").read_text("utf-8").splitlines()
    recorded = {
        each["run"]: each
        for each in map(json.loads, lines)
        if (each["experiment"], each["seed"]) == ("de-en-ablations", 1)
    }
    trained = [c for c in commands_of("de-en-ablations", monkeypatch) if c[0] == "train"]
    assert len(trained) == len(recorded)
    for command in trained:
        options = parsed(*command)
        settings = recorded[re.sub(r"-1$", "", options["out"].name)]["settings"]
        assert settings["system"]["name"] == options["system"]
        for given in options["settings"]:
            path, value = given.split("=")
            section, key = path.split(".")
            assert str(settings[section][key]).lower().removesuffix(".0") == value, given


def point(run: str, name: str, k: float) -> Point:
    return {"name": run, "run": run, "set": name, "seed": 1, "k": k}


def test_points_of_every_condition_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without its points in lower case, or of documents, is not done."""
    made = Experiment.read("de-en-ingredients", tmp_path, tmp_path, tmp_path)
    (europarl,) = made.chosen("europarl")
    sets = [f"newstest2013{end}" for end in ("", "-lower", "-documents", "-documents-lower")]
    points = [point("europarl", each, k) for each in sets[:2] for k in (1, 3, 5, 9)]
    points += [point("europarl", each, 5) for each in sets[2:]]
    for missing in (None, *range(len(points))):
        here = [p for number, p in enumerate(points) if number != missing]
        monkeypatch.setattr(Experiment, "points", lambda self, run, here=here: here)
        assert made.scored(europarl) == (missing is None)


@pytest.mark.parametrize("name", ["conditions", "windows", "lag"])
def test_published_points_of_given_models_are_complete(name: str, tmp_path: Path) -> None:
    """What these experiments ask for, without training, is what is published."""
    made = Experiment.read(name, tmp_path, tmp_path, RESULTS)
    assert all(made.scored(each) for each in made.chosen(None))


# A small one

EXPERIMENT = """
languages = ["aa", "bb"]
recipe = "{folder}/recipe.toml"
corpus = "toy"
results = "group"
sets = ["test", "head"]
runs = [{{ run = "small", system = "wait-info", score = "dials", settings = ["system.k_max=4"] }}]
[[make]]
file = "head.aa"
command = "for s in aa bb; do head -n 3 {{data}}/test.$s > {{work}}/head.$s; done"
[corpora.toy]
train = ["train"]
dev = ["dev"]
exclude = ["test"]
options = ["--vocab", "words:1"]
[scores]
dials = [
    {{ name = "{{curve}}", k = "1,3" }},
    {{ name = "{{curve}}-allow", k = "1", ending = "allow", sets = ["test"] }},
]
"""
RECIPE = """
size = "tiny"
[training]
updates = 4
batch_tokens = 256
validate_every = 4
validate_sentences = 5
log_every = 2
warmup = 2
"""


def write_text(folder: Path, name: str, count: int, seed: int) -> None:
    pairs = toy_pairs(count, seed)
    for number, side in enumerate(("aa", "bb")):
        text = "".join(f"{pair[number]}\n" for pair in pairs)
        (folder / f"{name}.{side}").write_text(text, "utf-8")


@pytest.fixture
def toy(tmp_path: Path) -> list[str]:
    """Arguments of a small experiment whose text and settings are there."""
    (tmp_path / "data").mkdir()
    for number, (name, count) in enumerate((("train", 60), ("dev", 10), ("test", 6))):
        write_text(tmp_path / "data", name, count, number)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "toy.toml").write_text(EXPERIMENT.format(folder=tmp_path))
    places = [str(tmp_path / name) for name in ("toy.toml", "data", "work")]
    return [*places, "--results", str(tmp_path / "results"), "--device", "cpu", "--seed", "7"]


def test_a_small_experiment_from_text_to_points(
    toy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = Experiment.waitinfo

    def noted(self: Experiment, arguments: list[str]) -> None:
        calls.append(arguments[0])
        real(self, arguments)

    monkeypatch.setattr(Experiment, "waitinfo", noted)
    monkeypatch.setattr(sys, "argv", sys.argv)
    run.main([*toy, "--here"])
    assert calls == ["prepare", "train", *["evaluate"] * 3]
    file = tmp_path / "results" / "group" / "toy.jsonl"
    found = {(p["set"], p["name"], p["k"], p["run"], p["seed"]) for p in read_points([file])}
    assert found == {
        ("test", "small", 1, "small", 7), ("test", "small", 3, "small", 7),
        ("test", "small-allow", 1, "small", 7),
        ("head", "small", 1, "small", 7), ("head", "small", 3, "small", 7),
    }  # fmt: skip
    (line,) = (file.parents[1] / "runs.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert (record["experiment"], record["run"], record["seed"]) == ("toy", "small", 7)
    assert record["last"]["update"] == record["validations"][-1]["update"] == 4
    assert record["settings"]["system"]["k_max"] == 4
    assert str(tmp_path) not in line  # records name no folders of a machine
    before = file.read_bytes()
    calls.clear()
    run.main([*toy, "--here"])  # all points exist, so nothing is computed
    assert not calls and file.read_bytes() == before
    file.write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    run.main([*toy, "--here"])  # one is missing
    assert calls == ["evaluate"] * 3 and len(read_points([file])) == 5
    calls.clear()
    shutil.rmtree(tmp_path / "work" / "models")
    file.write_bytes(b"".join(before.splitlines(keepends=True)[1:]))
    run.main([*toy, "--here"])  # the model is gone: a new one, and none of the old one's points
    assert calls == ["train", *["evaluate"] * 3]
    assert len({p["model"]["sha256"] for p in read_points([file])}) == 1
    assert len(read_points([file])) == 5


def test_runs_in_processes_of_their_own(toy: list[str], tmp_path: Path) -> None:
    """What the command does without --here; its log is beside the corpora."""
    command = [sys.executable, "-m", "experiments.run", *toy, "--set", "training.updates=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(read_points([tmp_path / "results"])) == 5
    assert "$ waitinfo train" in (tmp_path / "work" / "small-7.log").read_text("utf-8")
    (tmp_path / "results" / "group" / "toy.jsonl").unlink()
    shutil.rmtree(tmp_path / "work" / "models")
    failed = [*command, "training.warmup=none"]
    done = subprocess.run(failed, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode and re.search(
        r"failed: toy small, seed 7 \(.*small-7.log\)", done.stderr
    )


def test_a_run_that_was_stopped_is_not_scored(
    toy: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Experiment, "waitinfo", lambda self, arguments: None)
    with pytest.raises(SystemExit, match="stopped; the same command continues"):
        run.main([*toy, "--here"])


def test_unknown_names(tmp_path: Path) -> None:
    for name, error in (("multi31k", "unknown name 'multi31k'; choose from: .*multi30k.*students"),
                        ("my.toml", "my.toml: no such file")):  # fmt: skip
        with pytest.raises(SystemExit, match=error):
            run.main([name, str(tmp_path), str(tmp_path)])
    with pytest.raises(SystemExit, match="unknown run 'x'; choose from: .*wait-info"):
        run.main(["multi30k", str(tmp_path), str(tmp_path), "--runs", "x", "--here"])
    with pytest.raises(SystemExit, match="a chain is made alone"):
        run.main(["students", "multi30k", str(tmp_path), str(tmp_path)])
