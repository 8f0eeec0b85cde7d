"""The paper's tables and figures as targets: their commands exist, and stages are done once."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_experiments import ROOT, check_commands, load_script, parsed, runner
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.points import read_points, select

PAPER = ROOT / "experiments" / "paper"
EXPERIMENTS = sorted(
    f"paper/{path.stem}" for path in PAPER.glob("*.toml") if path.stem != "targets"
)
make = load_script("paper/make")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_command_is_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_commands(name, monkeypatch)


@pytest.mark.parametrize("target", make.read_targets())
def test_every_stage_of_a_target_exists(target: str, tmp_path: Path) -> None:
    """Experiments have the runs that are named, and analyses parse."""
    maker = make.Maker(tmp_path / "data", tmp_path / "work", tmp_path / "results")
    for stage in make.read_targets()[target]["stages"]:
        for command in maker.commands(stage):
            if "experiment" in stage:
                known = {run["run"] for run in runner.read_experiment(stage["experiment"])["runs"]}
                assert set(stage.get("runs", "").split(",")) - {""} <= known
            elif "analyse" in stage:
                assert parsed(command[3:])["out"].is_relative_to(tmp_path)
            else:
                assert Path(command[1]).exists()


def test_every_item_of_the_paper_has_a_target() -> None:
    titles = " ".join(target["paper"] for target in make.read_targets().values())
    numbers = {
        kind: {int(n) for found in re.findall(rf"{kind}s? ([\d, and()abcto]+)", titles)
               for n in re.findall(r"\d+", found)}
        for kind in ("figure", "table")
    }  # fmt: skip
    assert numbers["figure"] >= {3, 4, 5, 6, 7, 8, 9, 10} and numbers["table"] >= {1, 2, 3, 4, 5, 6}


def test_stages_are_done_once_and_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    note = tmp_path / "note"
    write = [sys.executable, "-c", f"open({str(note)!r}, 'a').write('x')"]
    code = "import os, sys; sys.exit(not os.path.exists(sys.argv[1]))"
    fail = [sys.executable, "-c", code, str(tmp_path / "ok")]
    target = {"stages": [{"script": write}, {"script": fail}, {"script": [*write, "again"]}]}
    maker = make.Maker(tmp_path, tmp_path / "work", tmp_path)
    with pytest.raises(SystemExit, match="failed with status 1; the same command continues"):
        maker.make("t", target)
    assert note.read_text() == "x"
    (tmp_path / "ok").touch()
    maker.make("t", target)
    assert note.read_text() == "xx"  # the first stage was not done again
    maker.make("t", target)
    assert note.read_text() == "xx"


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
    script("authors", tmp_path / "table.csv", tmp_path, tmp_path / "out")
    (curve,) = make_curves(read_points([tmp_path / "out"]), "paper.AL", "BLEU")
    assert (curve.name, curve.xs, curve.ys) == ("authors-wait-info", [1.7, 3.5], [38.5, 40])


def test_numbers_of_an_analysis_are_collected_without_text(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"test": {"source": {"file": "news.de"}}}
    for name, numbers in (("ratio", {"a": 1.23456789}), ("case", {"reference": "A sentence."})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"facts": facts, name: numbers}))
    for _ in range(2):
        script("collect", tmp_path, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "measurements.json").read_text())
    assert found == {"news": {"facts": facts, "ratio": {"a": 1.23457}}}


def test_the_authors_points_belong_to_our_test_set() -> None:
    """Their captions are those of results/multi30k, so that both can be compared."""
    points = read_points([ROOT / "results/multi30k", ROOT / "results/authors-code"])
    captions = select(points, ["set=test_2016_flickr"])
    assert len({p["test"]["source"]["sha256"] for p in captions}) == 1
    assert {p["settings"]["ending"] for p in captions if p["name"].startswith("authors")} == {
        "allow"
    }


def test_the_page_has_the_figures_of_the_results() -> None:
    page = (ROOT / "docs" / "paper.md").read_text("utf-8")
    for name, figure in load_script("paper/claims").claims().items():
        assert figure in page, f"{name}: {figure} (python experiments/paper/claims.py)"
