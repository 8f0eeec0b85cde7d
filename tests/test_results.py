"""results/ matches its points: tables, pictures and the comparisons on the pages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments.pages.__main__ import outputs as make_outputs
from experiments.pages.tables import points_of, put_into
from waitinfo.evaluation.curves import Curve, make_curves
from waitinfo.evaluation.plot import curve_id
from waitinfo.evaluation.points import PointKey, read_file, read_points, select
from waitinfo.trained.folder import bundled_models

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def outputs() -> dict[str, Any]:
    return make_outputs()


def test_every_table_matches_the_points(outputs: dict[str, Any]) -> None:
    tables = {name: text for name, text in outputs.items() if isinstance(text, str)}
    marks = {
        f"{path.relative_to(RESULTS)}#{block}"
        for path in RESULTS.rglob("*.md")
        for block in re.findall("<!-- table (.*?) -->", path.read_text("utf-8"))
    }
    assert set(tables) == marks
    for name, text in tables.items():
        file, _, block = name.partition("#")
        page = (RESULTS / file).read_text("utf-8")
        assert put_into(page, f"table {block}", text) == page, f"{name}: run `make results`"


# Pictures are compared by content, because matplotlib versions write different files: the lines in
# the file are those of the points, up to one scale for all of them.


def drawn_lines(path: Path) -> dict[str, np.ndarray]:
    """The corners of each curve's line by its id, in the picture's units."""
    found = {}
    for group in ElementTree.parse(path).getroot().iter(f"{SVG}g"):
        name = group.get("id", "")
        if name.startswith("curve:"):
            line = group.find(f"{SVG}path")
            assert line is not None
            numbers = re.findall(r"-?\d+(?:\.\d+)?", line.get("d", ""))
            found[name] = np.array(numbers, dtype=float).reshape(-1, 2)
    return found


def misfit(picture: list[float], data: list[float]) -> float:
    """Largest error, in the picture's units, of the best linear map from data to picture."""
    matrix = np.stack([data, np.ones(len(data))], axis=1)
    solution, *_ = np.linalg.lstsq(matrix, np.array(picture), rcond=None)
    return float(np.abs(matrix @ solution - picture).max())


def panels_of(made: Any) -> dict[str, Any]:
    """The pictures in one file, by what their curves' ids begin with."""
    if hasattr(made, "pictures"):
        return {f"{number}:": each for number, each in enumerate(made.pictures)}
    return {"": made} if hasattr(made, "curves") else {}


def picture_misfit(path: Path, made: Any) -> float:
    panels, lines = panels_of(made), drawn_lines(path)
    wanted = {curve_id(curve, name) for name, each in panels.items() for curve in each.curves}
    assert set(lines) == wanted, "other curves are drawn"
    return max(panel_misfit(lines, each.curves, name) for name, each in panels.items())


def panel_misfit(lines: dict[str, np.ndarray], curves: list[Curve], panel: str) -> float:
    shown: list[list[float]] = [[], []]
    wanted: list[list[float]] = [[], []]
    for curve in curves:
        line = lines[curve_id(curve, panel)]
        if len(curve.points) == 1:  # drawn as a horizontal line
            shown[1] += list(line[:, 1])
            wanted[1] += curve.ys * len(line)
            continue
        assert len(line) == len(curve.points), f"{curve.name}: another number of points"
        for axis, values in enumerate((curve.xs, curve.ys)):
            shown[axis] += list(line[:, axis])
            wanted[axis] += values
    return max(misfit(shown[axis], wanted[axis]) for axis in (0, 1))


TOLERANCE = 0.01  # points of a picture 475 wide: a BLEU of 0.0005


def test_every_picture_matches_the_points(outputs: dict[str, Any]) -> None:
    pictures = {name: made for name, made in outputs.items() if not isinstance(made, str)}
    assert set(pictures) == {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*.svg")}
    for name, made in pictures.items():
        if panels := panels_of(made):
            assert picture_misfit(RESULTS / name, made) < TOLERANCE, f"{name}: run `make results`"
        text = (RESULTS / name).read_text("utf-8")
        for each in panels.values():
            assert each.title in text and all(f">{curve.name}" in text for curve in each.curves)


def texts_of(path: Path) -> list[str]:
    """Everything that is written in a picture: titles, labels, the numbers at the axes."""
    return [
        "".join(text.itertext()) for text in ElementTree.parse(path).getroot().iter(f"{SVG}text")
    ]


def test_pictures_of_the_analysis_match_its_numbers(
    outputs: dict[str, Any], tmp_path: Path
) -> None:
    """The order of the parts of speech, means and axes are those of a new drawing."""
    pictures = {n: made for n, made in outputs.items() if hasattr(made, "numbers")}
    assert pictures
    for name, made in pictures.items():
        made.draw(tmp_path / "new.svg")
        assert texts_of(RESULTS / name) == texts_of(tmp_path / "new.svg"), (
            f"{name}: run `make results`"
        )


def point_files(results: Path) -> list[Path]:
    return sorted(results.glob("*/*.jsonl"))


def alter_points(path: Path) -> None:
    """Points of K = 5 and 15, and of the first seed, get 0.05 BLEU more."""
    points = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for point in points:
        if not point["name"].endswith("-allow"):
            point["quality"]["BLEU"] += 0.05 * (point["k"] in (5, 15)) + 0.05 * (point["seed"] == 1)
    path.write_text("".join(json.dumps(point) + "\n" for point in points), "utf-8")


def alter_numbers(path: Path) -> None:
    """Another info ratio, and another cost of training."""
    measured = json.loads(path.read_text("utf-8"))
    for name, found in measured.items():
        if name == "systems/cost":
            found["systems"]["wait-info"]["relative"] += 0.1
        if isinstance(found.get("ratio"), dict):
            found["ratio"]["info_ratio"] += 0.01
    path.write_text(json.dumps(measured), "utf-8")


def test_an_altered_point_is_detected(outputs: dict[str, Any], tmp_path: Path) -> None:
    altered = tmp_path / "results"
    shutil.copytree(RESULTS, altered)
    for path in point_files(altered):
        alter_points(path)
    for path in (*altered.glob("paper/*.json"), altered / "ablations/policy.json",
                 altered / "speed/measurements.json"):  # fmt: skip
        alter_numbers(path)
    changed = make_outputs(altered)
    assert set(changed) == set(outputs)
    for name, made in changed.items():
        if isinstance(made, str):
            assert made != outputs[name], name
        elif any(each.curves[0].points[0].points for each in panels_of(made).values()):
            assert picture_misfit(RESULTS / name, made) > TOLERANCE, name  # of points


# Comparisons on the pages: a command, and after it a table with its figures.


def comparisons() -> list[tuple[str, str, str]]:
    """Page, command and table of every comparison."""
    found = []
    for page in (*sorted(RESULTS.glob("*/*.md")), ROOT / "docs" / "paper.md"):
        pattern = r"^    waitinfo compare (results/.*)\n\n((?:\|.*\n)+)"
        for command, table in re.findall(pattern, page.read_text("utf-8"), re.MULTILINE):
            found.append((page.stem, command, table))
    return found


def curves_of(command: str) -> tuple[dict[str, Curve], list[float]]:
    """The curves that a command compares, and its latencies (`--at`)."""
    words = shlex.split(command)
    paths = [ROOT / word for word in words if word.startswith("results/")]
    options = [(a, b) for a, b in pairwise(words) if a.startswith("--")]
    named = dict(options)
    points = select(read_points(paths), [b for a, b in options if a == "--where"])
    curves = make_curves(points, named.get("--x", "paper.AL"), "BLEU")
    return {curve.name: curve for curve in curves}, [float(x) for x in named["--at"].split(",")]


@pytest.mark.parametrize(("page", "command", "table"), comparisons(), ids=lambda text: text[:40])
def test_comparisons_on_the_pages(page: str, command: str, table: str) -> None:
    curves, grid = curves_of(command)
    head, _, *rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n") if line
    ]
    assert [float(cell) for cell in head[1 : len(grid) + 1]] == grid
    for title, *cells in rows:
        name = title.split("`")[1] if "`" in title else title
        values = (curves[name].at(x) for x in grid)
        assert cells[: len(grid)] == ["" if v is None else f"{v:.1f}" for v in values], name


@pytest.mark.parametrize("model", bundled_models())
def test_the_scores_on_the_cards(model: str) -> None:
    """BLEU and lags at every K, written and spoken."""
    card = (ROOT / "src/waitinfo/models" / model / "README.md").read_text("utf-8")
    (rows,) = re.findall(r"\| K \| newstest2015: BLEU \| AL \|.*\n.*\n((?:\| .*\n)+)", card)
    points = select(points_of(RESULTS, "bundled"), [f"name={model}"])
    written = [row[2:-2].split(" | ") for row in rows.splitlines()]
    dials = sorted({point["k"] for point in select(points, ["set=newstest2015"])})
    assert [float(k) for k, *_ in written] == dials and {1, 3, 5, 7} <= set(dials)
    for k, *cells in written:
        at = {p["set"]: p for p in select(points, [f"k={k}"])}
        expected = []
        for name in ("newstest2015", "europarl.test-german"):
            for set_name, whole in ((name, True), (f"{name}-lower", False)):
                if set_name not in {each["set"] for each in points}:
                    continue
                point = at.get(set_name)
                figures = point and (point["quality"]["BLEU"], point["word"]["LAAL"])
                shown = [f"{value:.1f}" for value in figures] if figures else ["", ""]
                lag = f"{point['paper']['AL']:.1f}" if point else ""
                expected += [shown[0], lag, shown[1]] if whole else shown
        assert cells == expected, k


# What belongs in results/


@pytest.mark.parametrize("path", point_files(RESULTS), ids=lambda path: path.stem)
def test_points_are_complete_and_unique(path: Path) -> None:
    keys = [PointKey.of(point) for point in read_file(path)]
    assert keys and len(keys) == len(set(keys)) and all(key.run and key.set for key in keys)


def test_every_run_with_points_has_a_training_record() -> None:
    lines = (RESULTS / "runs.jsonl").read_text("utf-8").splitlines()
    runs = [json.loads(line) for line in lines]
    trained = {(run["experiment"], run["run"], run["seed"]) for run in runs}
    assert len(runs) == len(trained)
    for name in {run["experiment"] for run in runs}:
        (path,) = RESULTS.glob(f"*/{name}.jsonl")
        scored = {(name, point["run"], point["seed"]) for point in read_file(path)}
        assert scored == {run for run in trained if run[0] == name}, name
    for run in runs:
        assert run["last"]["loss"] > 0
        if run["run"] != "confidence-prefix":  # which collapsed, so that it was not scored
            assert run["validations"][-1]["bleu"] > 0


def test_results_name_no_folders_of_a_machine() -> None:
    for path in (path for path in RESULTS.rglob("*.json*") if path.is_file()):
        assert not re.search(r'"(/|~/)\w', path.read_text("utf-8")), path


def test_results_contain_only_pages_and_figures() -> None:
    """Two levels: groups of files that belong to a page, or to the points on one."""
    top = RESULTS / "README.md", RESULTS / "runs.jsonl"
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert len(files) <= 80, "join pictures, or drop some"
    for path in files:
        assert path.suffix in (".md", ".jsonl", ".json", ".svg"), path
        assert path.parent.parent == RESULTS or path in top, path
