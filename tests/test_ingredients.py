"""What each ingredient of the students gives: its runs, their order, and its tables."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import chain
from experiments import run as runner
from experiments.pages import ingredients as gains
from experiments.paper import make
from tests.commands import parsed
from tests.experiment_commands import ROOT, check_commands, commands_of
from waitinfo.config import apply_settings, from_mapping
from waitinfo.evaluation.points import Point
from waitinfo.model.config import ModelConfig
from waitinfo.training.config import RunConfig

NAME = "ingredients/de-en-ingredients"
FOLDER = ROOT / "experiments" / "ingredients"


def test_every_command_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(NAME, monkeypatch)


def test_every_setting_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tomllib.loads((ROOT / "recipes" / "student.toml").read_text("utf-8"))
    trained = [c for c in commands_of(NAME, monkeypatch) if c[0] == "train"]
    assert len(trained) == len(runner.read_experiment(NAME)["runs"])
    for command in trained:
        options = parsed(*command)
        values = apply_settings(copy.deepcopy(recipe) | {"data": "corpus"}, options["settings"])
        values["system"]["name"] = options["system"]
        run = RunConfig.from_values(values)
        assert run.training.updates == 3000
        shape = {"source_vocabulary": 9, "target_vocabulary": 9, **run.system.model_defaults}
        run.system.check_model(from_mapping(ModelConfig, {**shape, **run.model}, "model"))


def test_every_run_has_a_target_and_a_title() -> None:
    runs = {run["run"] for run in runner.read_experiment(NAME)["runs"]}
    targets = make.read_targets(FOLDER / "targets.toml")
    stages = [stage for target in targets.values() for stage in target["stages"]]
    assert {run for stage in stages for run in stage["runs"].split(",")} == runs
    systems = {"multipath", "multipath-cold"}
    assert set(gains.TITLES) - set(gains.REMOVED) == runs - systems and systems < set(gains.SYSTEMS)


def test_every_corpus_is_a_stage() -> None:
    experiment = runner.read_experiment(NAME)
    _, stages = chain.read_chain(experiment["chain"])
    made = {stage.name: stage.makes for stage in stages}
    names = {run.get("corpus", experiment["corpus"]) for run in experiment["runs"]}
    assert all(made[name] == f"corpora/{name}" for name in names)


def test_a_plan_within_half_an_hour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = make.read_targets(FOLDER / "targets.toml")
    maker = make.Maker(tmp_path, tmp_path, tmp_path, jobs=5, minutes=30)
    stages = [stage for target in targets.values() for stage in target["stages"]]
    make.make(maker, stages, plan=True)
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 17 and rows[0].endswith("ingredients all, seed 1")
    assert all(row.strip()[0].isdigit() for row in rows)  # these fit


def test_points_of_every_condition_are_needed(tmp_path: Path) -> None:
    """A run without its points in lower case, or of documents, is not done."""
    made = runner.Runner(runner.read_experiment(NAME), tmp_path, tmp_path, tmp_path)
    (run,) = [run for run in made.experiment["runs"] if run["run"] == "europarl"]
    sets = [f"newstest2013{end}" for end in ("", "-lower", "-documents", "-documents-lower")]
    points = [point("europarl", each, k, 5, 20) for each in sets[:2] for k in (1, 3, 5, 9)]
    points += [point("europarl", each, 5, 5, 20) for each in sets[2:]]
    made.points = lambda run: points
    assert made.scored(run)
    for missing in range(len(points)):
        made.points = lambda run, missing=missing: points[:missing] + points[missing + 1 :]
        assert not made.scored(run)


# Tables


def point(run: str, name: str, k: float, lag: float, bleu: float, seed: int = 1) -> Point:
    settings: dict[str, Any] = {"system": "s", "options": {}, "k": k}
    return {
        "name": run, "run": run, "set": name, "seed": seed, "k": k, "settings": settings,
        "model": {"parameters": 1}, "paper": {"AL": lag, "DAL": lag + 2}, "quality": {"BLEU": bleu},
    }  # fmt: skip


def line(run: str, name: str, start: float, seed: int = 1) -> list[Point]:
    """BLEU start + AL, at AL 2 and 10."""
    return [point(run, name, k, lag, start + lag, seed) for k, lag in ((3, 2), (9, 10))]


def test_text_is_compared_with_the_run_before() -> None:
    points = [*line("europarl", gains.DEV, 10), *line("parallel", gains.DEV, 12.5)]
    points += [point("parallel", f"{gains.DEV}-documents", 5, 5, 17.25)]
    ((_, heads, rows),) = gains.tables(points)
    assert heads[1:4] == ["AL 3", "AL 5", "AL 8"] and len({len(row) for row in rows}) == 1
    assert rows[0][1:5] == ["13.00", "15.00", "18.00", ""]
    assert rows[1][1:4] == ["15.50", "17.50", "20.50"] and rows[1][7] == "17.25"
    assert rows[2][:5] == ["", "+2.50", "+2.50", "+2.50", ""] and rows[2][7] == ""


def test_options_are_compared_with_all_text() -> None:
    points = [p for seed, start in ((1, 10), (2, 11)) for p in line("all", gains.DEV, start, seed)]
    points += line("four-draws", gains.DEV, 10)
    tables = {title.split(",")[0]: rows for title, _, rows in gains.tables(points)}
    deviation = f"{np.std([10, 11], ddof=1):.2f}"
    ((_, *spread),) = tables["Standard deviation over the 2 seeds of all text:"]
    assert spread == [deviation] * 3 + [""] * 5
    rows = tables["Training options"]
    assert rows[0][:2] == ["`system.draws=4`", "13.00"] and rows[1][:2] == ["", "-0.50"]


def test_the_lead_over_multipath_has_its_interval() -> None:
    """Against the pooled two-sample interval from numpy's variances; t(4) = 2.776."""
    starts = {"all": (10.0, 11.0, 12.6), "multipath": (9.0, 9.5, 9.1)}
    points = [
        p
        for run, values in starts.items()
        for seed, start in enumerate(values, 1)
        for p in line(run, gains.TEST, start, seed)
    ]
    *_, (_, heads, rows), (_, heads_by_dal, _) = gains.tables(points)
    assert heads_by_dal == ["DAL", "5", "6", "7", "8"]
    assert heads == ["AL", "3", "4", "5", "6"] and [row[0] for row in rows] == [
        "wait-info", "multipath", "wait-info − multipath",
    ]  # fmt: skip
    ours, theirs = map(np.array, starts.values())
    pooled = (ours.var(ddof=1) + theirs.var(ddof=1)) / 2
    half = 2.776 * np.sqrt(pooled * (1 / 3 + 1 / 3))
    assert rows[2][1] == f"{ours.mean() - theirs.mean():+.2f} ± {half:.2f}"
    alone = 4.303 * ours.std(ddof=1) / np.sqrt(3)
    assert rows[0][2] == f"{ours.mean() + 4:.2f} ± {alone:.2f}"
