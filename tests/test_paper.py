"""The paper's tables and figures as targets: their commands exist, and stages are done once."""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.pages import __main__ as drawing
from experiments.pages import analyses, claims, figures, leads
from experiments.pages.tables import RESULTS, points_of
from experiments.paper import make, switched
from tests.commands import parsed
from tests.evaluations import point
from tests.experiment_commands import ROOT, check_commands, runner
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.points import read_points, select
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model

PAPER = ROOT / "experiments" / "paper"
EXPERIMENTS = sorted(
    f"paper/{path.stem}" for path in PAPER.glob("*.toml") if path.stem != "targets"
)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_command_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(name, monkeypatch)


@pytest.mark.parametrize("target", make.read_targets())
def test_every_stage_of_a_target_exists(target: str, tmp_path: Path) -> None:
    """Experiments have the runs that are named, and analyses parse."""
    maker = make.Maker(tmp_path / "data", tmp_path / "work", tmp_path / "results")
    stages = make.read_targets()[target]["stages"]
    for job in maker.trainings(stages):
        assert job.minutes > 0 and job.command[1] == str(make.RUN)
    for stage in filter(make.trains, stages):
        known = {run["run"] for run in runner.read_experiment(stage["experiment"])["runs"]}
        assert set(stage["runs"].split(",")) <= known
    for job in maker.others(stages):
        if job.command[1:4] == ["-m", "waitinfo", "analyse"]:
            assert parsed(*job.command[3:])["out"].is_relative_to(tmp_path)
        elif job.command[1] != "-m":
            assert Path(job.command[1]).exists()


def test_every_item_of_the_paper_has_a_target() -> None:
    titles = " ".join(target["paper"] for target in make.read_targets().values())
    numbers = {
        kind: {int(n) for found in re.findall(rf"{kind}s? ([\d, and()abcto]+)", titles)
               for n in re.findall(r"\d+", found)}
        for kind in ("figure", "table")
    }  # fmt: skip
    assert numbers["figure"] >= {3, 4, 5, 6, 7, 8, 9, 10} and numbers["table"] >= {1, 2, 3, 4, 5, 6}


def python(code: str, *arguments: object, minutes: float = 0.0) -> Any:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return make.Job(" ".join(map(str, arguments)), command, minutes)


def maker_in(folder: Path, **settings: Any) -> Any:
    return make.Maker(folder, folder / "work", folder, **settings)


def test_stages_are_done_once_and_continue(tmp_path: Path) -> None:
    note = tmp_path / "note"
    write = f"open({str(note)!r}, 'a').write('x')"
    fail = python("import os, sys; sys.exit(not os.path.exists(sys.argv[1]))", tmp_path / "ok")
    jobs = [python(write), fail, python(write, "again")]
    maker = maker_in(tmp_path)
    with pytest.raises(SystemExit, match="failed with status 1; the same command continues"):
        maker.make(jobs)
    assert note.read_text() == "x"
    (tmp_path / "ok").touch()
    maker.make(jobs)
    assert note.read_text() == "xx"  # the first stage was not done again
    maker.make(jobs)
    assert note.read_text() == "xx"


def test_runs_of_all_targets_by_turns(tmp_path: Path) -> None:
    """Shared runs once, all seeds of a run together, finished ones not at all."""
    stage = {
        "experiment": "multi30k-ablations",
        "results": "ablations",
        "data": "x",
        "minutes": 1.0,
        "seeds": [1, 2],
    }
    stages = [
        {**stage, "turn": 2, "runs": "full"},
        {**stage, "turn": 1, "runs": "wait-info,zeta-source"},
        {**stage, "turn": 1, "runs": "wait-info"},
    ]
    names = [job.name for job in maker_in(tmp_path, jobs=1).trainings(stages)]
    runs = ("wait-info", "zeta-source", "full")
    assert names == [f"multi30k-ablations {run}, seed {seed}" for run in runs for seed in (1, 2)]
    published = make.Maker(tmp_path, tmp_path, ROOT / "results", jobs=3)
    left = list(published.trainings([{**stage, "turn": 1, "runs": "wait-info,zeta-source,full"}]))
    assert not any("wait-info" in job.name or "full" in job.name for job in left)
    assert {job.minutes for job in left} <= {1 + 2 * make.BESIDE}


def test_no_target_begins_a_published_run_again(tmp_path: Path) -> None:
    """A run that begins again removes its points: it has all points of its experiment, or none."""
    published = make.Maker(tmp_path, tmp_path, ROOT / "results")
    for target in make.read_targets().values():
        for stage in (stage for stage in target["stages"] if "experiment" in stage):
            name = make.short_name(stage)
            found = points_of(RESULTS, name)
            for run, seed in ((r, s) for r in stage["runs"].split(",") for s in stage["seeds"]):
                some = any(p["run"] == run and p["seed"] in (None, seed) for p in found)
                assert published.scored(stage, run, seed) == some, (name, run, seed)


def test_own_results_beside_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of one's own, 10 BLEU lower: it is drawn, and only the figures it is in are printed."""
    monkeypatch.setattr(figures, "MINE", mine := [])
    monkeypatch.setattr(claims, "MINE", mine)
    published = (RESULTS / "ablations" / "multi30k-ablations.jsonl").read_text("utf-8")
    own = [p for p in map(json.loads, published.splitlines()) if p["run"] == "lambda-1"]
    lower = [{**p, "quality": {**p["quality"], "BLEU": p["quality"]["BLEU"] - 10}} for p in own]
    folder = tmp_path / "ablations"
    folder.mkdir()
    own_file = folder / "multi30k-ablations.jsonl"
    folder.joinpath("multi30k-ablations.jsonl").write_text(
        "".join(json.dumps(p) + "\n" for p in lower)
    )
    before = claims.claims()
    monkeypatch.setattr(sys, "argv", ["claims.py", "--results", str(tmp_path)])
    claims.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = (each for each in lines if each.startswith("lambda 1, captions  "))
    published_figure = before["lambda 1, captions"]
    gap = float(published_figure.split()[0].replace("−", "-"))
    assert f"{gap - 10:+.1f}".replace("-", "−") in line and published_figure in line
    changed = [name for name in before if any(line.startswith(f"{name} ") for line in lines)]
    assert changed and len(changed) == len(lines)
    assert all("lambda 1" in name or "all together" in name for name in changed), changed
    # Runs that are not complete take no place, and those of other seeds harm nothing.
    mine.clear()
    more = [{**p, "run": "wait-info", "name": "wait-info", "seed": 4} for p in lower]
    for kept in (lower[:3], more):
        text = "".join(json.dumps(p) + "\n" for p in kept)
        own_file.write_text(text)
        claims.main()
        mine.clear()
    assert "no figure differs" in capsys.readouterr().out
    folder.joinpath("multi30k-ablations.jsonl").write_text(
        "".join(json.dumps(p) + "\n" for p in lower)
    )
    monkeypatch.setattr(sys, "argv", ["pages", str(tmp_path)])
    drawing.main()
    assert capsys.readouterr().out.split() == [
        "ablations/multi30k-ablations.md#multi30k-ablations", "ablations/multi30k-ablations.svg",
    ]  # fmt: skip
    last = [p["quality"]["BLEU"] for p in lower if p["k"] == 11]  # of three seeds
    assert f"{np.mean(last):.2f}" in (folder / "multi30k-ablations.md").read_text("utf-8")
    assert "<svg" in (folder / "multi30k-ablations.svg").read_text("utf-8")


def test_a_corpus_is_prepared_once(tmp_path: Path) -> None:
    stage = {
        "experiment": "multi30k-ablations",
        "results": "ablations",
        "data": "x",
        "minutes": 1.0,
        "seeds": [2],
    }
    stages = [
        {**stage, "turn": 2, "runs": "full"},
        {**stage, "turn": 1, "runs": "wait-info,full", "seeds": [1]},
        {**stage, "turn": 1, "experiment": "en-vi", "runs": "multipath"},
    ]
    first, second = (job.command for job in maker_in(tmp_path).preparations(stages))
    assert first[2] == "multi30k-ablations" and first[-1] == "--prepare"
    assert first[first.index("--runs") + 1] == "full,wait-info" and second[2] == "en-vi"


def test_finished_runs_need_no_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = {
        "experiment": "en-vi",
        "results": "systems",
        "data": "x",
        "minutes": 1.0,
        "seeds": [1, 2],
        "turn": 1,
    }
    stages = [{**stage, "runs": "wait-info"}, {**stage, "runs": "full,multipath"}]
    done = {("wait-info", 1), ("wait-info", 2), ("full", 1)}
    monkeypatch.setattr(make.Maker, "scored", lambda _, stage, run, seed: (run, seed) in done)
    (job,) = maker_in(tmp_path).preparations(stages)
    assert job.command[job.command.index("--runs") + 1] == "full,multipath"
    done |= {("full", 2), ("multipath", 1), ("multipath", 2)}
    assert not list(maker_in(tmp_path).preparations(stages))


def test_a_lead_is_over_the_best_curve_at_each_latency() -> None:
    """By hand: 30 at AL 2 and 34 at AL 6, over curves of 29 to 35 and of constant 31."""
    catch_up = "multipath-by-catch-up-of-6"
    heights = {
        "own": {2: 30, 6: 34}, "multipath": {2: 29, 6: 35}, catch_up: {2: 31, 4: 31, 6: 31},
    }  # fmt: skip
    found = [
        {**point(name, al, al, bleu), "seed": 1}
        for name, curve in heights.items()
        for al, bleu in curve.items()
    ]
    found.append({**point("own", 4, 4, 60), "seed": 2})  # a seed that only one of them has
    made = leads.lead(found, "own", r"multipath(-by-catch-up-of-\d+)?")
    assert made == "−1.0 to +0.2, largest at AL 3.5"
    assert leads.lead(found, "absent", "multipath") == "no common latency"


def test_a_lead_is_not_looked_for_beside_a_steep_curve() -> None:
    """By hand: 26 everywhere, over 20 and 25 at AL 1 and 2, then 25.5 at AL 3 and 6."""
    catch_up = "multipath-by-catch-up-of-6"
    others = {1: 20, 2: 25, 3: 25.5, 6: 25.5}
    heights = {"own": {1: 26, 6: 26}, "multipath": others, catch_up: others}
    found = [
        {**point(name, al, al, bleu), "seed": 1}
        for name, curve in heights.items()
        for al, bleu in curve.items()
    ]
    made = leads.lead(found, "own", r"multipath(-by-catch-up-of-\d+)?")
    assert made == "+0.5 to +0.8, largest at AL 2.5"
    dials = ((1, 1, 20), (2, 2, 25), (3, 3, 26))
    steps = [{**point("multipath", k, al, bleu), "seed": 1} for k, al, bleu in dials]
    assert leads.above_the_line(steps, "multipath") == pytest.approx([2.0])


def test_early_stops_at_equal_latency() -> None:
    """By hand: 30% at AL 1 and 10% at AL 3 are 20% at AL 2; a second seed has 40%."""
    found = [
        {**point("own", al, al, 30), "seed": seed, "early_stop": share}
        for seed, shares in ((1, {1: 0.3, 3: 0.1}), (2, {1: 0.5, 3: 0.3}))
        for al, share in shares.items()
    ]
    assert figures.early_at(found, ["own", "own"], [2, 3]) == "30, 20% and 30, 20%"


def test_differences_of_all_changes_together() -> None:
    """Three systems and four seeds, against least squares with an effect for each."""
    names = ("wait-info", "zeta-source", "zeta-target")
    scores = np.array([[30, 31, 29, 32], [33, 33, 31, 34], [30, 32, 30, 31]], float)
    found = [
        {**point(name, al, al, score), "seed": seed}
        for name, row in zip(names, scores, strict=True)
        for seed, score in enumerate(row)
        for al in (2, 9)
    ]
    effects = np.zeros((12, 7))  # of each system and each seed
    for place, (system, seed) in enumerate(np.ndindex(3, 4)):
        effects[place, [system, 3 + seed]] = 1
    fitted = effects @ np.linalg.lstsq(effects, scores.ravel(), rcond=None)[0]
    half = claims.student(6) * (2 / 4 * ((scores.ravel() - fitted) ** 2).sum() / 6) ** 0.5
    assert claims.pooled(found).startswith(f"±{half:.1f} (3 systems, 4 seeds), p = 0.0")
    known = {10: 2.228, 12: 2.179, 20: 2.086}  # from a printed table
    assert all(abs(claims.student(free) - t) < 0.005 for free, t in known.items())


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
        maker_in(tmp_path, jobs=2).train(jobs)
    assert "done in 0.0 minutes: last" in capfd.readouterr().err


def test_no_run_starts_that_cannot_end_in_time(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = [python("pass", "long", minutes=50), python("pass", "short", minutes=2)]
    maker = maker_in(tmp_path, jobs=1, minutes=10)
    maker.train(jobs)
    said = capfd.readouterr().err
    assert "not started, for lack of time: long" in said and "minutes: short" in said
    maker.ratios = [1.0, 11.0]  # runs take six times as long as estimated
    assert not maker.in_time(jobs[1]) and maker.in_time(python("", minutes=1.5))
    maker.plan(jobs)
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
    maker = maker_in(tmp_path, jobs=1, minutes=5)

    def over(running: Any) -> bool:
        if (tmp_path / "started").exists():
            maker.began -= 600
        return bool(make.Maker.over(maker, running))

    maker.over = over
    maker.train([job])
    assert (tmp_path / "saved").read_text() == "checkpoint"
    assert "stopped, for lack of time" in capfd.readouterr().err


def script(name: str, *arguments: object) -> None:
    subprocess.run(
        [sys.executable, str(PAPER / f"{name}.py"), *map(str, arguments)], check=True, cwd=ROOT
    )


def test_points_of_the_authors_code(tmp_path: Path) -> None:
    """A table becomes points that compare can read."""
    data = tmp_path / "multi30k-de-en"
    data.mkdir()
    for side in ("de", "en"):
        (data / f"test_2016_flickr.{side}").write_text("a\nb\n", "utf-8")
    row = {"data": "multi30k", "system": "wait-info", "bleu": 38.5, "bleu_lc": 38.8, "al": 1.7,
           "dal": 2.4, "ap": 0.6, "cw": 1.2, "early_stop": 0.14}  # fmt: skip
    with (tmp_path / "table.csv").open("w") as stream:
        writer = csv.DictWriter(stream, ["k", *row])
        writer.writeheader()
        writer.writerows([{**row, "k": 1}, {**row, "k": 3, "al": 3.5, "bleu": 40}])
    script("authors", tmp_path / "table.csv", tmp_path, tmp_path / "out" / "authors-code.jsonl")
    (curve,) = make_curves(read_points([tmp_path / "out"]), "paper.AL", "BLEU")
    assert (curve.name, curve.xs, curve.ys) == ("authors-wait-info", [1.7, 3.5], [38.5, 40])


def test_numbers_of_an_analysis_are_collected_without_text(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"test": {"source": {"file": "news.de"}}}
    written = [{"token": "Hello", "info": 0.5, "read": 1}, {"token": "there", "info": 1, "read": 2}]
    subject = {"name": "x", "k": 3, "text": "Hello there", "written": written,
               "source": [{"token": "Hallo", "info": 1.5}]}  # fmt: skip
    case = {"line": 7, "latency": "paper.AL", "reference": "Hello.", "subjects": [subject]}
    for name, numbers in (("ratio", {"a": 1.23456789}), ("case", case)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"facts": facts, name: numbers}))
    for _ in range(2):
        script("collect", tmp_path, tmp_path / "out" / "x.json")
    script("collect", tmp_path, tmp_path / "out" / "x.json", "--name", "de-en")
    text = (tmp_path / "out" / "x.json").read_text()
    found = json.loads(text)
    assert set(found) == {"news", "de-en"} and found["news"] == found["de-en"]
    assert found["news"]["facts"] == facts and found["news"]["ratio"] == {"a": 1.23457}
    assert "ello" not in text and "Hallo" not in text
    (kept,) = found["news"]["case"]["subjects"]
    assert [(token["info"], token["read"]) for token in kept["written"]] == [(0.5, 1), (1, 2)]
    assert kept["source"] == [{"token": "1", "info": 1.5}] and "text" not in kept


def test_a_model_is_copied_with_a_switch_changed(tmp_path: Path) -> None:
    switched.switched(
        "de-en", tmp_path / "copy", dict([switched.change("info_self_attention=false")])
    )
    one, other = (
        load_model(path, "cpu").model for path in (find_model("de-en"), tmp_path / "copy")
    )
    assert other.config == replace(one.config, info_self_attention=False)
    assert all(torch.equal(one.weights()[name], w) for name, w in other.weights().items())
    for wrong in ("info_dropout=false", "info_self_attention=0", "info_self_attention"):
        with pytest.raises(argparse.ArgumentTypeError, match="give one of info_self_attention"):
            switched.change(wrong)


def test_where_differences_lie() -> None:
    def at(latency: float, difference: float, p: float) -> dict[str, float]:
        return {"latency": latency, "difference": difference, "p": p}

    span = analyses.span
    found = [at(3, 0.51, 0.01), at(4, -0.22, 0.3), at(5.5, 0.1, 0.04)]
    assert span(found, "word.LAAL") == "−0.2 to +0.5, significant at LAAL 3, 5.5"
    assert span(found[1:2], "paper.AL") == "−0.2, significant nowhere"
    assert span(found[:1], "paper.AL") == "+0.5, significant at AL 3"


def test_leads_of_two_analyses_are_over_the_best_of_both() -> None:
    def analysed(*others: dict[float, float]) -> dict[str, Any]:
        against = [
            {"at": [{"latency": x, "difference": y, "interval": [y - 1, y + 1]}
                    for x, y in other.items()]}
            for other in others
        ]  # fmt: skip
        return {"significance": {"against": against}}

    lead = leads.lead_on_same_weights
    one, other = analysed({3: 0.5, 4: 0.4}, {4: 0.9}), analysed({4: -0.2, 5: -3})
    assert lead(one) == "+0.4 to +0.5, largest: +0.5 (−0.5 to +1.5) at AL 3"
    assert lead(one, other) == "−0.2 to +0.5, largest: +0.5 (−0.5 to +1.5) at AL 3"


def test_the_authors_points_belong_to_our_test_set() -> None:
    """Their captions are those of results/multi30k, so that both can be compared."""
    points = [*points_of(RESULTS, "multi30k"), *points_of(RESULTS, "authors-code")]
    captions = select(points, ["set=test_2016_flickr"])
    assert len({p["test"]["source"]["sha256"] for p in captions}) == 1
    assert {p["settings"]["ending"] for p in captions if p["name"].startswith("authors")} == {
        "allow"
    }


def test_the_page_has_the_figures_of_the_results() -> None:
    page = " ".join((ROOT / "docs" / "paper.md").read_text("utf-8").split())  # lines are wrapped
    for name, figure in claims.claims().items():
        assert figure in page, f"{name}: {figure} (python -m experiments.pages.claims)"
