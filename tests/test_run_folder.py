"""A run folder belongs to one process, and wrong settings leave no trace in it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training_runs import command, metrics, values
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay
from waitinfo.training.run_folder import settings_like


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def live_run(toy_corpus: Path, tmp_path: Path):
    """The folder of a run that another process trains in, which is stopped and still holds it.

    It is past its first checkpoint, has recorded updates after it, and has a newer snapshot.
    """
    run = tmp_path / "run"
    config = values(
        toy_corpus, updates=10**6, average="last", checkpoint_every=40, log_every=1,
        validate_every=10**6,
    )  # fmt: skip
    process = subprocess.Popen([sys.executable, *command(run, config)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    log = run / "metrics.jsonl"
    while not (run / "checkpoints" / "00000040").exists() or log.read_text().count("\n") <= 41:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    snapshots = run / "snapshots"
    shutil.copyfile(next(iter(snapshots.iterdir())), snapshots / "00999999.safetensors")
    yield run
    process.kill()
    process.wait()


@pytest.mark.parametrize("processes", [1, 2])
def test_a_refused_resume_touches_nothing(live_run: Path, processes: int) -> None:
    before = contents(live_run)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    again = command(live_run, None, "--resume", "--set", "training.updates=7")
    if processes == 2:
        recorded = json.loads(before["run.json"]) | {"processes": 2}
        (live_run / "run.json").write_text(json.dumps(recorded))
        before = contents(live_run)
        again = launcher + again
    done = subprocess.run(
        [sys.executable, *again], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode != 0
    assert f"{live_run}: another process is training in it" in done.stderr
    assert contents(live_run) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "/no/such/corpus"}, "not a prepared corpus"),
        ({"training": {"validate_k": 1e30}}, "k = 1e.30: K must be a number from 0 to 100000"),
        ({"training": {"updates": float("inf")}}, "training.updates: 'inf' is not a valid int"),
        ({"training": {"device": [1, 2]}}, r"training.device: '\[1, 2\]' is not a valid str"),
        ({"training": 3}, "training '3': is a section"),
    ],
)
def test_wrong_settings_leave_no_folder(
    toy_corpus: Path, tmp_path: Path, change: dict, message: str
) -> None:
    with pytest.raises(WaitinfoError, match=message):
        train({**values(toy_corpus), **change}, tmp_path / "run", display=SilentDisplay())
    assert not (tmp_path / "run").exists()


def test_a_recipe_with_infinity_is_one_line_of_error(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[training]\nupdates = inf\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", "--system", "wait-info", "--data", str(toy_corpus), "--config", str(recipe),
              "--out", str(tmp_path / "run")])  # fmt: skip
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "setting training.updates: 'inf' is not a valid int" in said
    assert len(said.strip().splitlines()) == 1


def test_a_folder_with_only_a_lock_is_new(toy_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    train(values(toy_corpus, updates=1), tmp_path / "run", display=SilentDisplay())
    assert (tmp_path / "run" / "last").exists()


def test_device_and_threads_are_flags(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=1)
    for name in ("device", "threads"):
        del config["training"][name]
    given = command(tmp_path / "run", config, "--device", "cpu", "--threads", "1")
    with pytest.raises(SystemExit) as stop:
        main(given[2:])
    assert not stop.value.code
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["given"]["training"]
    assert (recorded["device"], recorded["threads"]) == ("cpu", 1)


def test_an_unknown_device_is_named(
    toy_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = values(toy_corpus, updates=1)
    del config["training"]["device"]
    with pytest.raises(SystemExit) as stop:
        main(command(tmp_path / "run", config, "--device", "abacus")[2:])
    assert stop.value.code == 2
    assert "training.device abacus: unknown; use auto" in capsys.readouterr().err


# Runs like others


def test_another_system_is_trained_alike(toy_corpus: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    train(values(toy_corpus, updates=4, seed=5), first, display=SilentDisplay())
    with pytest.raises(SystemExit) as stop:
        main(["train", "--like", str(first), "--system", "multipath", "--out", str(second)])
    assert not stop.value.code
    records = [json.loads((run / "run.json").read_text())["resolved"] for run in (first, second)]
    assert records[0]["training"] == records[1]["training"]
    assert records[1]["system"]["name"] == "multipath"
    sizes = ("width", "ffn", "encoder_layers", "decoder_layers", "heads", "dropout")
    assert all(records[0]["model"][name] == records[1]["model"][name] for name in sizes)
    assert metrics(first)[-1]["update"] == metrics(second)[-1]["update"] == 4


def test_a_timed_run_is_repeated_by_its_updates(toy_corpus: Path, tmp_path: Path) -> None:
    train(values(toy_corpus, updates=4), tmp_path / "run", display=SilentDisplay())
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    record["resolved"]["training"] |= {"updates": 10**6, "max_minutes": 3.0}
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    found = settings_like(tmp_path / "run")
    assert found["training"]["updates"] == 4 and found["training"]["max_minutes"] == 0
    assert found["training"]["cooldown"] == 0.25  # as timed runs have
    assert found["system"] == record["resolved"]["system"]
    with pytest.raises(WaitinfoError, match="nowhere: is no folder of a run"):
        settings_like(tmp_path / "nowhere")
