"""Experiments: definitions match the command line and the results, and a small one runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments import run as runner
from experiments.pages.tables import RESULTS, points_of
from tests.commands import parsed
from tests.conftest import toy_pairs
from tests.experiment_commands import ROOT, check_commands, commands_of
from waitinfo.cli.app import main
from waitinfo.evaluation.points import read_points

NAMES = sorted(path.stem for path in (ROOT / "experiments").glob("*.toml"))


@pytest.mark.parametrize("name", NAMES)
def test_every_command_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(name, monkeypatch)


@pytest.mark.parametrize("name", NAMES)
def test_points_in_results_match_the_experiment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every point of the first seed comes from one of the commands."""
    made: set[tuple[Any, ...]] = set()
    for command in commands_of(name, monkeypatch):
        if command[0] == "evaluate":
            o = parsed(*command)
            dials = [float(k) for k in o["k"].split(",")] if o["k"] else [None]
            for k in dials:
                made.add((o["run"], o["name"], o["source"].stem, k, o["ending"], o["beam"],
                          o["label"]))  # fmt: skip
    without_dial = {key[:3] for key in made if key[3] is None}
    for point in points_of(RESULTS, name):
        if point["seed"] in (None, 1):
            start = point["run"], point["name"], point["set"]
            k = None if start in without_dial else point["k"]
            end = point["settings"]["ending"], point["settings"]["beam"], point.get("label")
            assert (*start, k, *end) in made


def test_training_settings_in_results_match_the_experiment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = (RESULTS / "ablations" / "runs.jsonl").read_text("utf-8").splitlines()
    recorded = {
        run["run"]: run
        for run in map(json.loads, lines)
        if (run["experiment"], run["seed"]) == ("de-en-ablations", 1)
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


def write_text(folder: Path, name: str, count: int, seed: int) -> None:
    pairs = toy_pairs(count, seed)
    for number, side in enumerate(("aa", "bb")):
        text = "".join(f"{pair[number]}\n" for pair in pairs)
        (folder / f"{name}.{side}").write_text(text, "utf-8")


EXPERIMENT = """
languages = ["aa", "bb"]
recipe = "{folder}/recipe.toml"
corpus = "toy"
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


def test_a_small_experiment_from_text_to_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data, work, results = (tmp_path / name for name in ("data", "work", "results"))
    data.mkdir()
    for number, (name, count) in enumerate((("train", 60), ("dev", 10), ("test", 6))):
        write_text(data, name, count, number)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "toy.toml").write_text(EXPERIMENT.format(folder=tmp_path))
    calls: list[str] = []
    real = runner.Runner.execute

    def in_process(self: Any, command: list[str], log: str, text: str = "") -> int:
        """Like the original, without starting a new Python process for each command."""
        if command[0] == "bash":
            calls.append("make")
            return real(self, command, log, text)
        given = [each["arguments"] for each in json.loads(text)] if text else [command[3:]]
        for arguments in given:
            calls.append(arguments[0])
            with pytest.raises(SystemExit) as stop:
                main(arguments)
            assert not stop.value.code, capfd.readouterr().err
        return 0

    monkeypatch.setattr(runner.Runner, "execute", in_process)
    arguments = [str(tmp_path / "toy.toml"), str(data), str(work), str(results)]
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments, "--device", "cpu", "--seed", "7"])
    runner.main()
    assert calls == ["make", "prepare", "train", *["evaluate"] * 3]
    found = {(p["set"], p["name"], p["k"], p["run"], p["seed"]) for p in read_points([results])}
    assert found == {
        ("test", "small", 1, "small", 7), ("test", "small", 3, "small", 7),
        ("test", "small-allow", 1, "small", 7),
        ("head", "small", 1, "small", 7), ("head", "small", 3, "small", 7),
    }  # fmt: skip
    (line,) = (results / "runs.jsonl").read_text().splitlines()
    run = json.loads(line)
    assert (run["experiment"], run["run"], run["seed"]) == ("toy", "small", 7)
    assert run["last"]["update"] == 4
    assert run["validations"][-1]["update"] == 4 and run["settings"]["system"]["k_max"] == 4
    assert str(tmp_path) not in line  # records name no folders of a machine
    before = (results / "toy.jsonl").read_bytes()
    calls.clear()
    runner.main()  # all points exist, so nothing is computed
    assert not calls and (results / "toy.jsonl").read_bytes() == before
    (results / "toy.jsonl").write_bytes(b"".join(before.splitlines(keepends=True)[:-1]))
    runner.main()  # one is missing
    assert calls == ["evaluate"] * 3 and len(read_points([results])) == 5
    calls.clear()
    shutil.rmtree(work / "models")
    (results / "toy.jsonl").write_bytes(b"".join(before.splitlines(keepends=True)[1:]))
    runner.main()  # the model is gone: a new one, and none of the old one's points
    assert calls == ["train", *["evaluate"] * 3]
    assert len({p["model"]["sha256"] for p in read_points([results])}) == 1
    assert len(read_points([results])) == 5


def test_commands_in_one_process(tmp_path: Path) -> None:
    """In order, until one fails or does not make what it is to make."""

    def together(*commands: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "experiments" / "together.py")],
            input=json.dumps(commands), text=True, capture_output=True, check=False,
        )  # fmt: skip

    help_ = {"arguments": ["compare", "--help"]}
    done = together(help_, {"arguments": ["train", "--help"], "makes": str(ROOT)})
    assert done.returncode == 0 and "waitinfo train" in done.stdout
    stopped = together({**help_, "makes": str(tmp_path / "gone")}, help_)
    assert stopped.returncode == 1 and stopped.stderr.count("$ waitinfo") == 1
    failed = together({"arguments": ["compare", str(tmp_path / "gone")]}, help_)
    assert failed.returncode == 2 and failed.stderr.count("$ waitinfo") == 1


def test_a_failing_command_ends_the_experiment(tmp_path: Path) -> None:
    failing = runner.Runner({}, tmp_path, tmp_path, tmp_path)
    with pytest.raises(SystemExit, match=r"failed \(see .*x\.log\): bash -c 'exit 3'"):
        failing.call(["bash", "-c", "exit 3"], "x.log")
