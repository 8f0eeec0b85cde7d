"""Points in one file: adding, resuming, replacing, selecting; with several processes."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.evaluations import SENTENCES, evaluated_model, interrupt_once, point, written_set
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, TrainingRun, evaluate_point
from waitinfo.evaluation.output import FileOutput, FolderOutput, Output, text_folder
from waitinfo.evaluation.points import PointKey, parse, read_file, read_points, select, set_name
from waitinfo.model.transformer import Transformer
from waitinfo.trained.saving import LoadedModel


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return evaluated_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture
def test_set(tmp_path: Path) -> TestSet:
    return written_set(tmp_path)


def run_point(name: str = "a", k: float = 1.0, **changes: Any) -> dict:
    """A point with invented figures and the fields that identify a run."""
    return {**point(name, k, al=k, bleu=20 + k), "run": "r", "seed": 1, "set": "news", **changes}


def test_the_name_selects_the_kind_of_output(tmp_path: Path) -> None:
    folder, file = Output.at(tmp_path / "results"), Output.at(tmp_path / "points.jsonl")
    assert isinstance(folder, FolderOutput) and folder.text
    assert isinstance(file, FileOutput) and not file.text
    assert Output.at(tmp_path / "points.jsonl", text=True).text
    assert not Output.at(tmp_path / "results", text=False).text
    (tmp_path / "points.jsonl").mkdir()
    with pytest.raises(WaitinfoError, match="is a folder"):
        file.prepare()
    (tmp_path / "results").touch()
    with pytest.raises(WaitinfoError, match="is a file"):
        folder.prepare()


@pytest.mark.parametrize(
    ("file", "name"),
    [("newstest2015.de", "newstest2015"), ("europarl.test.de.xz", "europarl.test"), ("x", "x")],
)
def test_the_name_of_a_test_set(file: str, name: str) -> None:
    assert set_name(file) == name


def test_points_are_added_and_replaced_line_by_line(tmp_path: Path) -> None:
    output = FileOutput(tmp_path / "points.jsonl")
    for k in (1.0, 3.0):
        output.write(run_point(k=k))
    output.write(run_point(k=1.0, run="other"))
    before = (tmp_path / "points.jsonl").read_text().splitlines()
    assert len(before) == 3 and all(parse(line) for line in before)
    output.write(run_point(k=3.0, label="three\u2028lines\x85in one"))
    after = (tmp_path / "points.jsonl").read_text().split("\n")[:-1]
    assert after[0] == before[0] and after[2] == before[2]  # not even a byte changes
    assert json.loads(after[1])["label"].startswith("three")
    assert [PointKey.of(p).k for p in read_file(tmp_path / "points.jsonl")] == [1, 3, 1]
    output.remove(PointKey("a", 3.0, "r", 1, "news"))
    assert (tmp_path / "points.jsonl").read_text().split("\n")[:-1] == [before[0], before[2]]
    assert [path.name for path in tmp_path.iterdir()] == ["points.jsonl"]


def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    """Processes and threads add points to one file at the same time."""
    path = tmp_path / "points.jsonl"
    program = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from waitinfo.evaluation.output import FileOutput\n"
        "output, point = FileOutput(Path(sys.argv[1])), json.loads(sys.argv[2])\n"
        "for k in range(20):\n"
        "    output.write({**point, 'k': float(k), 'run': sys.argv[3]})\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", program, path, json.dumps(run_point()), f"p{n}"])
        for n in range(2)
    ]

    def write(n: int) -> None:
        for k in range(20):
            FileOutput(path).write(run_point(k=float(k), run=f"t{n}"))

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    assert [process.wait() for process in started] == [0, 0]
    keys = {(p["run"], p["k"]) for p in read_file(path)}
    assert keys == {(run, float(k)) for run in ("p0", "p1", "t0", "t1", "t2") for k in range(20)}
    assert len(path.read_text().splitlines()) == 100


def test_an_evaluation_continues_in_a_file(
    loaded: LoadedModel,
    test_set: TestSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluation = Evaluation(loaded, test_set)
    output = FileOutput(tmp_path / "points.jsonl", text=False)
    first = evaluate_point(evaluation, Decoding(2.0), output)
    assert (first["run"], first["seed"], first["set"]) == ("m", None, "t")
    in_folder = evaluate_point(evaluation, Decoding(2.0), FolderOutput(tmp_path / "folder"))
    for part in ("quality", "paper", "word", "settings", "test", "run", "set"):
        assert in_folder[part] == first[part]

    calls = interrupt_once(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        evaluate_point(evaluation, Decoding(3.0), output)
    (partial,) = tmp_path.glob(".points.t.m.wait-info-3.*.partial.jsonl")
    assert len(read_points([tmp_path / "points.jsonl"])) == 1
    evaluate_point(evaluation, Decoding(3.0), output)
    assert calls == [5, 3] and not partial.exists()
    assert evaluate_point(evaluation, Decoding(2.0), output)["paper"] == first["paper"]
    assert calls == [5, 3]  # existing points are not computed again
    evaluate_point(evaluation, Decoding(2.0), replace(output, overwrite=True))
    assert calls == [5, 3, 5]
    found = read_points([tmp_path / "points.jsonl"])
    assert sorted(p["k"] for p in found) == [2, 3]


def test_a_file_keeps_runs_and_sets_apart(
    loaded: LoadedModel,
    test_set: TestSet,
    tmp_path: Path,
) -> None:
    """The same system and dial with another run, another set and other settings."""
    output = FileOutput(tmp_path / "points.jsonl", text=True)
    other_set = replace(test_set, source=tmp_path / "other.de")
    evaluations = [
        Evaluation(loaded, test_set, run="one"),
        Evaluation(loaded, test_set, run="two"),
        Evaluation(loaded, other_set, run="one"),
    ]
    for evaluation in evaluations:
        evaluate_point(evaluation, Decoding(2.0), output)
    found = read_points([tmp_path])
    assert [(p["run"], p["set"]) for p in found] == [("one", "t"), ("two", "t"), ("one", "other")]
    folders = [text_folder(p) for p in found]
    assert len(set(folders)) == 3
    for folder in folders:
        assert len((folder / "hypotheses.txt").read_text().splitlines()) == len(SENTENCES)
    with pytest.raises(WaitinfoError, match="with another ending"):
        evaluate_point(evaluations[0], Decoding(2.0, "allow"), output)
    evaluate_point(evaluations[0], Decoding(2.0, "allow"), replace(output, overwrite=True))
    assert [p["settings"]["ending"] for p in read_points([tmp_path])] == ["guard"] * 2 + ["allow"]


def test_a_point_knows_its_training_run(loaded: LoadedModel, tmp_path: Path) -> None:
    run = tmp_path / "de-en-7"
    (run / "best").mkdir(parents=True)
    assert TrainingRun.of(run / "best") == TrainingRun("best")
    training = {"seed": 7, "batch_tokens": 500, "accumulate": 2}
    for record, expected in (
        ({"resolved": {"training": {"seed": 7}}}, TrainingRun("de-en-7", 7)),
        ({"of": "another version"}, TrainingRun("best")),
        ({"resolved": {"training": training}, "processes": 4}, TrainingRun("de-en-7", 7)),
    ):
        (run / "run.json").write_text(json.dumps(record))
        assert TrainingRun.of(run / "best") == expected
    lines = [{"update": n, "loss": 1.0} for n in (1, 50, 100)] + [{"update": 90, "bleu": 20.0}]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert TrainingRun.of(run / "best") == TrainingRun("de-en-7", 7, 100, 4000)
    assert TrainingRun.of(loaded.folder) == TrainingRun("m")


def test_another_precision_is_another_point(
    loaded: LoadedModel,
    test_set: TestSet,
    tmp_path: Path,
) -> None:
    output = FileOutput(tmp_path / "points.jsonl")
    exact = Evaluation(loaded, test_set)
    assert exact.settings(Decoding(2.0))["dtype"] == "float32"
    evaluate_point(exact, Decoding(2.0), output)
    half = Transformer(loaded.model.config)
    half.load_state_dict(loaded.model.state_dict())
    coarse = Evaluation(replace(loaded, model=half.bfloat16().eval()), test_set)
    with pytest.raises(WaitinfoError, match="with another dtype"):
        evaluate_point(coarse, Decoding(2.0), output)


def test_evaluate_command_writes_to_a_file(
    loaded: LoadedModel,
    test_set: TestSet,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    monkeypatch.setattr("waitinfo.cli.options.usable_cores", lambda: 4)

    def evaluate(*arguments: str) -> tuple[int | None, str]:
        with pytest.raises(SystemExit) as stop:
            main(["evaluate", "--model", str(loaded.folder), "--source", str(test_set.source),
                  "--reference", str(test_set.reference), "--k", "2",
                  "--out", str(tmp_path / "p.jsonl"), *arguments])  # fmt: skip
        found = capsys.readouterr()
        return stop.value.code, found.out + found.err

    code, text = evaluate("--dtype", "bfloat16", "--threads", "3", "--run", "half")
    assert not code and used == [3], text
    assert not evaluate("--save-text")[0]
    half, whole = read_points([tmp_path / "p.jsonl"])
    assert (half["run"], half["settings"]["dtype"]) == ("half", "bfloat16")
    assert (whole["run"], whole["settings"]["dtype"]) == ("m", "float32")
    assert (tmp_path / "p" / "t.m.wait-info-2" / "instances.log").exists()
    for arguments, message in (
        (["--threads", "-1"], "--threads -1: must be 0 or more"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--run", "a/b"], "--run a/b: must be a plain file name"),
    ):
        code, text = evaluate(*arguments)
        assert code == 2 and message in text


# Reading and selecting


def test_files_folders_and_lines_are_read_the_same_way(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a-1.json").write_text(json.dumps(point("a", 1, 2, 20), indent=2))
    (tmp_path / "folder" / "metrics.jsonl").write_text('{"update": 1}\n')
    (tmp_path / "folder" / ".partial.jsonl").write_text(json.dumps(run_point()) + "\n")
    (tmp_path / "folder" / "bytes.json").write_bytes(b"\xff\xfe")
    lines = tmp_path / "points.jsonl"
    lines.write_text("".join(json.dumps(run_point(k=k)) + "\n" for k in (1.0, 3.0)))
    found = read_points([tmp_path / "folder", lines, tmp_path])
    assert [(p["run"], p["set"]) for p in found] == [(None, ""), ("r", "news"), ("r", "news")]
    lines.write_text(lines.read_text() + '{"cut off')
    with pytest.raises(WaitinfoError, match="points.jsonl, line 3: not a point"):
        read_points([lines])
    with pytest.raises(WaitinfoError, match="line 3: not a point"):
        FileOutput(lines).prepare()
    lines.write_text("")
    with pytest.raises(WaitinfoError, match="contains no points"):
        read_points([lines])


def test_points_are_selected_by_their_fields() -> None:
    points = [
        run_point(k=k, run=run, seed=seed)
        for k in (1.0, 0.5)
        for run, seed in (("x", 1), ("x", 2), ("y", None))
    ]
    assert select(points, []) == points
    assert [p["k"] for p in select(points, ["k=0.5"])] == [0.5] * 3
    assert {p["seed"] for p in select(points, ["run=x", "seed=2"])} == {2}
    assert len(select(points, ["run=x,y", "ending=guard", "seed="])) == 2
    for conditions, message in (
        (["set"], "write it as FIELD=VALUE"),
        (["place=x"], "unknown where field 'place'; choose one of: set, run"),
        (["run=z"], "unknown where run 'z'; choose one of: x, y"),
        (["run=y", "seed=1"], "unknown where seed '1'"),
    ):
        with pytest.raises(WaitinfoError, match=message):
            select(points, conditions)


def test_comparing_one_of_several_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sums = {"source": {"sha256": "c"}, "reference": {"sha256": "d"}}
    points = [run_point(k=k, seed=seed) for k in (1.0, 3.0) for seed in (1, 2)]
    points += [run_point(k=9.0, set="talks", test=sums)]
    path = tmp_path / "points.jsonl"
    path.write_text("".join(json.dumps(p) + "\n" for p in points))

    def compare(*arguments: str) -> tuple[int | None, str]:
        with pytest.raises(SystemExit) as stop:
            main(["compare", str(path), *arguments])
        found = capsys.readouterr()
        return stop.value.code, found.out + found.err

    code, text = compare()
    assert code == 2 and "choose one with --where set=NAME: news, talks" in text
    code, text = compare("--where", "set=news", "--at", "2")
    assert not code and "22.00" in text
    code, text = compare("--where", "set=talks")
    assert not code and "9.00: 29.00" in text


def test_reading_and_comparing_need_no_torch() -> None:
    program = "import sys\nimport waitinfo.cli.compare\nassert 'torch' not in sys.modules\n"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
