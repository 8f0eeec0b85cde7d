"""Targets and schedules: their runs exist, and jobs run together, in time, and once."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments import collect
from experiments.experiment import RESULTS, read_experiment
from experiments.pages.tables import points_of
from experiments.plan import BESIDE, TARGETS, Plan, TargetStage, known_targets, trains
from experiments.schedule import Job, Schedule
from tests.commands import parsed

STAGE: TargetStage = {"experiment": "multi30k-ablations", "minutes": 1.0, "seeds": [1, 2]}


def plan(stages: list[TargetStage], folder: Path, **options: Any) -> Plan:
    return Plan(stages, folder / "data", folder / "work", **{"results": folder, **options})


@pytest.mark.parametrize("target", known_targets())
def test_every_stage_of_a_target_exists(target: str, tmp_path: Path) -> None:
    """Experiments have the runs that are named, analyses parse, and modules can be run."""
    stages = known_targets()[target]
    made = plan(stages, tmp_path)
    for stage in filter(trains, stages):
        known = {run["run"] for run in read_experiment(stage["experiment"])["runs"]}
        assert set(stage["runs"].split(",")) <= known
    for job in made.trainings():
        assert job.minutes > 0 and job.command[2] == "experiments.run"
    for job in made.others():
        if job.command[1:4] == ["-m", "waitinfo", "analyse"]:
            assert parsed(*job.command[3:])["out"].is_relative_to(tmp_path)
        elif job.command[2] == "experiments.collect":
            assert collect.parse(job.command[3:])
        elif job.command[1] == "-m":
            assert job.command[2] in ("experiments.pages", "experiments.run")
        else:
            assert Path(job.command[1]).is_file()


def test_every_run_of_the_ingredients_is_in_a_target() -> None:
    runs = {run["run"] for run in read_experiment("de-en-ingredients")["runs"]}
    stages = known_targets()["ingredients"]
    assert {run for stage in stages for run in stage["runs"].split(",")} == runs


def test_every_item_of_the_paper_has_a_target() -> None:
    targets = tomllib.loads((TARGETS / "paper.toml").read_text("utf-8"))
    titles = " ".join(target["paper"] for target in targets.values())
    numbers = {
        kind: {int(n) for found in re.findall(rf"{kind}s? ([\d, and()abcto]+)", titles)
               for n in re.findall(r"\d+", found)}
        for kind in ("figure", "table")
    }  # fmt: skip
    assert numbers["figure"] >= {3, 4, 5, 6, 7, 8, 9, 10} and numbers["table"] >= {1, 2, 3, 4, 5, 6}


def test_no_target_begins_a_published_run_again(tmp_path: Path) -> None:
    """A run that begins again removes its points: it has all points of its experiment, or none."""
    stages = [stage for stage in known_targets()["paper"] if "experiment" in stage]
    published = plan(stages, tmp_path, results=RESULTS)
    for stage in stages:
        found = points_of(RESULTS, stage["experiment"])
        for run, seed in ((r, s) for r in stage["runs"].split(",") for s in stage["seeds"]):
            some = any(p["run"] == run and p["seed"] in (None, seed) for p in found)
            assert published.scored(stage, run, seed) == some, (stage["experiment"], run, seed)


def test_runs_of_all_targets_by_turns(tmp_path: Path) -> None:
    """Shared runs once, all seeds of a run together, finished ones not at all."""
    stages = [
        {**STAGE, "turn": 2, "runs": "full"},
        {**STAGE, "turn": 1, "runs": "wait-info,zeta-source"},
        {**STAGE, "turn": 1, "runs": "wait-info"},
    ]
    names = [job.name for job in plan(stages, tmp_path, jobs=1).trainings()]
    runs = ("wait-info", "zeta-source", "full")
    assert names == [f"multi30k-ablations {run}, seed {seed}" for run in runs for seed in (1, 2)]
    stages = [{**STAGE, "turn": 1, "runs": "wait-info,zeta-source,full", "seeds": [1, 4]}]
    left = list(plan(stages, tmp_path, results=RESULTS, jobs=3).trainings())
    assert [job.name[-6:] for job in left] == ["seed 4"] * 3
    assert {job.minutes for job in left} == {1 + 2 * BESIDE}


def test_an_hour_of_a_few_words(tmp_path: Path) -> None:
    """The long stream of every bundled model, on two sentences of each set."""
    (tmp_path / "data" / "de-en").mkdir(parents=True)
    for name in ("newstest2015", "europarl.test-german"):
        for side, text in (("de", "Das ist gut.\nWir danken Ihnen.\n"),
                           ("en", "That is good.\nWe thank you.\n")):  # fmt: skip
            (tmp_path / "data" / "de-en" / f"{name}.{side}").write_text(text, "utf-8")
    Schedule(tmp_path).in_order(list(plan(known_targets()["hour"], tmp_path).others()))
    found = json.loads((tmp_path / "models" / "long-stream.json").read_text("utf-8"))["de-en"]
    assert found["words"] == 12 and found["lines"] == 4 and found["k"] == 5
    assert len(found["MiB_halves"]) == 1 and found["most_lag"] == found["lag_halves"][0]
    assert found["of_segmented"] == pytest.approx(found["BLEU"] / found["segmented_BLEU"], abs=0.01)


def test_corpora_of_what_is_to_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each experiment; runs that are finished need none."""
    stages = [
        {**STAGE, "turn": 2, "runs": "full", "seeds": [2]},
        {**STAGE, "turn": 1, "runs": "wait-info,full", "seeds": [1]},
        {**STAGE, "turn": 1, "experiment": "en-vi", "runs": "multipath"},
    ]
    first, second = (job.command for job in plan(stages, tmp_path).preparations())
    assert first[3] == "multi30k-ablations" and first[-1] == "--prepare"
    assert first[first.index("--runs") + 1] == "full,wait-info" and second[3] == "en-vi"
    done = {("full", 2), ("full", 1), ("multipath", 1)}
    monkeypatch.setattr(Plan, "scored", lambda _, stage, run, seed: (run, seed) in done)
    first, second = (job.command for job in plan(stages, tmp_path).preparations())
    assert first[first.index("--runs") + 1] == "wait-info" and second[3] == "en-vi"
    done |= {("wait-info", 1), ("multipath", 2)}
    assert not list(plan(stages, tmp_path).preparations())


# Schedules


def python(code: str, *arguments: object, minutes: float = 0.0) -> Job:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return Job(" ".join(map(str, arguments)), command, minutes)


def test_jobs_are_done_once_and_continue(tmp_path: Path) -> None:
    note = tmp_path / "note"
    write = f"open({str(note)!r}, 'a').write('x')"
    fail = python("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", tmp_path / "ok")
    jobs = [python(write), fail, python(write, "again")]
    schedule = Schedule(tmp_path)
    with pytest.raises(SystemExit, match="failed with status 1; the same command continues"):
        schedule.in_order(jobs)
    assert note.read_text() == "x"
    (tmp_path / "ok").touch()
    schedule.in_order(jobs)
    assert note.read_text() == "xx"  # the first stage was not done again
    schedule.in_order(jobs)
    assert note.read_text() == "xx"


def test_several_runs_at_a_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two that wait for each other end only if both run; one that fails does not stop the rest."""
    wait = """
import pathlib, sys, time
folder, mine, other = map(pathlib.Path, sys.argv[1:])
(folder / mine).touch()
while not (folder / other).exists():
    time.sleep(0.01)
"""
    jobs = [
        python("import sys; sys.exit(3)", "bad", minutes=1),
        python(wait, tmp_path, "a", "b", minutes=1),
        python(wait, tmp_path, "b", "a", minutes=1),
        python("pass", "last", minutes=1),
    ]
    with pytest.raises(SystemExit, match="failed: bad; the same command tries again"):
        Schedule(tmp_path, jobs=2).together(jobs)
    assert "done in 0.0 minutes: last" in capfd.readouterr().err


def test_runs_that_share_a_model_go_one_after_the_other(tmp_path: Path) -> None:
    """The one that would be alone in its folder may overtake the one that would not."""
    alone = """
import pathlib, sys, time
folder, beside = map(pathlib.Path, sys.argv[1:])
folder.mkdir()  # an error if another one is there
while not beside.exists():
    time.sleep(0.01)
folder.rmdir()
"""
    shared, beside = tmp_path / "model", tmp_path / "beside"
    same = [replace(python(alone, shared, beside), model=shared) for _ in range(2)]
    other = replace(python("import sys; open(sys.argv[1], 'w')", beside), model=beside)
    Schedule(tmp_path, jobs=2).together([*same, other])
    stages = [
        {"experiment": name, "turn": 1, "seeds": [4], "minutes": 1, "runs": "full,wait-info"}
        for name in ("de-en-systems", "de-en-parts")
    ]
    models = [job.model for job in plan(stages, tmp_path, jobs=1).trainings()]
    assert models[0] != models[1] and models[:2] == models[2:]


def test_no_run_starts_that_cannot_end_in_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [python("pass", "long", minutes=50), python("pass", "short", minutes=2)]
    schedule = Schedule(tmp_path, jobs=1, minutes=10)
    schedule.together(jobs)
    said = capfd.readouterr().err
    assert "not started, for lack of time: long" in said and "minutes: short" in said
    schedule.ratios = [1.0, 11.0]  # runs take six times as long as estimated
    assert not schedule.in_time(jobs[1]) and schedule.in_time(python("", minutes=1.5))
    schedule.plan(jobs)
    assert capfd.readouterr().out.splitlines()[1:] == [f"{'':15}long", "   0.0    2.0  short"]


def test_runs_are_stopped_when_the_time_is_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Asked to end first, so that a checkpoint can be written."""
    code = """
import signal, sys, time
def stop(*_):
    open(sys.argv[1], "w").write("checkpoint")
    sys.exit(1)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[2], "w").close()
time.sleep(600)
"""
    job = python(code, tmp_path / "saved", tmp_path / "started", minutes=0.001)
    schedule = Schedule(tmp_path, jobs=1, minutes=5)

    def over(running: Any) -> bool:
        if (tmp_path / "started").exists():
            schedule.began -= 600
        return bool(Schedule.over(schedule, running))

    schedule.over = over
    schedule.together([job])
    assert (tmp_path / "saved").read_text() == "checkpoint"
    assert "stopped, for lack of time" in capfd.readouterr().err
