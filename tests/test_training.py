"""Training as a user runs it: killed, resumed, distributed, timed, and misused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.conftest import toy_pairs, write_pairs
from tests.engines import TRAINED
from tests.training_runs import assert_same_tensors, command, metrics, values
from waitinfo.errors import WaitinfoError
from waitinfo.systems import SYSTEMS
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.trained.saving import load_model
from waitinfo.training import train, updates
from waitinfo.training.display import SilentDisplay
from waitinfo.training.validation import Validation


@pytest.mark.parametrize("average", ["ema", "last"])
def test_killed_and_resumed_is_bit_identical(
    toy_corpus: Path, tmp_path: Path, average: str
) -> None:
    config = values(toy_corpus, average=average, average_last=3)
    train(config, tmp_path / "whole", display=SilentDisplay())

    killed = tmp_path / "killed"
    script = f"""
        import json, os, signal
        from pathlib import Path
        from waitinfo.training import train
        from waitinfo.training.trainer import Trainer
        step = Trainer.step
        def deadly(self, *given):
            step(self, *given)
            if self.update == 27:
                os.kill(os.getpid(), signal.SIGKILL)
        Trainer.step = deadly
        train(json.loads({json.dumps(config)!r}), Path({str(killed)!r}))
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stderr=subprocess.DEVNULL, check=False
    )
    assert process.returncode == -signal.SIGKILL
    assert metrics(killed)[-1]["update"] == 25 and not (killed / "last").exists()
    if average == "ema":  # once as a user does; starting a process takes seconds
        subprocess.run([sys.executable, *command(killed, None, "--resume")], check=True)
    else:
        train({}, killed, resume=True, display=SilentDisplay())

    for name in ("weights", "optimizer", "average"):
        file = Path("checkpoints") / "00000060" / f"{name}.safetensors"
        assert_same_tensors(tmp_path / "whole" / file, killed / file)
    assert_same_tensors(
        tmp_path / "whole" / "last" / "model.safetensors", killed / "last" / "model.safetensors"
    )
    timeless = ("update", "epoch", "loss", "nll", "lr", "validation_loss", "bleu", "best")

    def curve(run: Path) -> list[list]:
        return [[record.get(name) for name in timeless] for record in metrics(run)]

    assert curve(tmp_path / "whole") == curve(killed)


def test_two_processes_repeat_one(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=30)
    alone = {**config, "training": {**config["training"], "accumulate": 2}}
    train(alone, tmp_path / "one", display=SilentDisplay())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [sys.executable, *launcher, *command(tmp_path / "two", config)],
        check=True, capture_output=True, timeout=600,
    )  # fmt: skip
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [r["update"] for r in one] == [r["update"] for r in two]
    for name in ("loss", "nll", "info_sum", "validation_loss"):
        left = [r[name] for r in one if name in r]
        right = [r[name] for r in two if name in r]
        assert left and left == pytest.approx(right, rel=1e-4)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_first(toy_corpus: Path, tmp_path: Path, number: int) -> None:
    config = values(toy_corpus, updates=10**6, checkpoint_every=10**6, log_every=1)
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, *command(run, config)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    while not (run / "metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    with pytest.raises(WaitinfoError, match="another process is training in it"):
        train({}, run, resume=True, display=SilentDisplay())
    process.send_signal(number)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0 and "continue with --resume" in said
    assert "Traceback" not in said
    saved = list((run / "checkpoints").glob("0*"))
    assert len(saved) == 1 and int(saved[0].name) >= 1


def test_resuming_remembers_the_best(toy_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    """Scores 30, 20, 25: the first must stay the best, killed and resumed after it or not."""
    scores = {10: 30.0, 20: 20.0, 30: 25.0}
    monkeypatch.setattr(
        "waitinfo.training.validation.Validator.__call__",
        lambda self, model: Validation(1.0, next(coming), 3.0),
    )
    config = values(toy_corpus, updates=30, validate_every=10)
    coming = iter(scores.values())
    train(
        values(toy_corpus, updates=30, validate_every=10), tmp_path / "a", display=SilentDisplay()
    )
    coming = iter(scores.values())
    config["training"]["updates"] = 10
    train(config, tmp_path / "b", display=SilentDisplay())
    train({"training": {"updates": 30}}, tmp_path / "b", resume=True, display=SilentDisplay())
    for run in ("a", "b"):
        best = [record["update"] for record in metrics(tmp_path / run) if record.get("best")]
        assert best == [10], run


def test_resuming_before_the_first_checkpoint(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=8, log_every=1)
    train(config, tmp_path / "run", display=SilentDisplay())
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    train({}, tmp_path / "run", resume=True, display=SilentDisplay())
    updates = [record["update"] for record in metrics(tmp_path / "run") if "loss" in record]
    assert updates == list(range(1, 9))


def test_the_run_folder_is_complete(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, part_mib=0.02)
    train(config, tmp_path / "run", display=SilentDisplay())
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["given"]["training"]["lr"] == 3e-3
    assert run["resolved"]["training"]["clip"] == 1.0
    assert run["resolved"]["model"]["info"] == "attention"
    assert run["corpus"]["splits"]["train"]["pairs"] > 0
    assert {"git", "torch", "python"} <= run["environment"].keys()
    assert (tmp_path / "run" / "tokenizer.model").exists()
    assert len(list((tmp_path / "run" / "best").glob("model-*-of-*.safetensors"))) > 1
    records = metrics(tmp_path / "run")
    assert records[-1]["update"] == 60
    assert {"loss", "nll", "tokens_per_second", "lr", "epoch", "minutes_left"} <= records[1].keys()
    first, last = (r["loss"] for r in (records[0], [r for r in records if "loss" in r][-1]))
    assert last < first
    assert load_model(tmp_path / "run").folder.name == "best"


def test_pausing_and_resuming(toy_corpus: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(values(toy_corpus), whole, display=SilentDisplay())
    summary = train(values(toy_corpus, pause_minutes=1e-6), parts, display=SilentDisplay())
    assert summary["paused"] and not (parts / "last").exists()
    train({"training": {"pause_minutes": 0}}, parts, resume=True, display=SilentDisplay())
    assert_same_tensors(whole / "last" / "model.safetensors", parts / "last" / "model.safetensors")


def test_a_run_goes_on_after_new_settings_were_invented(toy_corpus: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(values(toy_corpus, updates=5), run, display=SilentDisplay())
    record = json.loads((run / "run.json").read_text("utf-8"))
    new = {"model": "info_dropout", "system": "info_weight", "training": "clip"}
    for section, key in new.items():
        del record["resolved"][section][key]  # as in a record of an earlier release
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(WaitinfoError, match=r"clip is 2.0 but the run was started with 1.0"):
        train({"training": {"clip": 2.0}}, run, resume=True)
    train({"training": {"updates": 7}}, run, resume=True, display=SilentDisplay())
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["update"] == 7


def test_a_run_keeps_what_later_releases_have_changed(toy_corpus: Path, tmp_path: Path) -> None:
    """A run of a release in which zeta was another one by default."""
    run = tmp_path / "run"
    train(values(toy_corpus, updates=5), run, display=SilentDisplay())
    record = json.loads((run / "run.json").read_text("utf-8"))
    record["resolved"]["system"]["info_total"] = "source"
    (run / "run.json").write_text(json.dumps(record), "utf-8")
    with pytest.raises(WaitinfoError, match="info_total is target but .* with source"):
        train({"system": {"info_total": "target"}}, run, resume=True)
    for length in (7, 8):
        train({"training": {"updates": length}}, run, resume=True, display=SilentDisplay())
    resolved = json.loads((run / "run.json").read_text("utf-8"))["resolved"]
    assert resolved["system"]["info_total"] == "source"


def test_resuming_another_run_is_refused(toy_corpus: Path, tmp_path: Path, monkeypatch) -> None:
    train(values(toy_corpus, updates=5), tmp_path / "run", display=SilentDisplay())
    with pytest.raises(WaitinfoError, match=r"training.beta2 is 0.9 but the run was started with"):
        train({"training": {"beta2": 0.9}}, tmp_path / "run", resume=True)
    monkeypatch.setenv("WORLD_SIZE", "1")
    other = tmp_path / "other-corpus"
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(500))
    prepare(ParallelText(tsv=[tsv]), other, PrepareOptions(vocab="words:1", holdout=40))
    with pytest.raises(WaitinfoError, match="the corpus is not the one"):
        train({"data": str(other)}, tmp_path / "run", resume=True)
    with pytest.raises(WaitinfoError, match="already in use; add resume"):
        train(values(toy_corpus), tmp_path / "run")
    with pytest.raises(WaitinfoError, match="no run to resume"):
        train(values(toy_corpus), tmp_path / "other", resume=True)
    # Longer is allowed.
    train({"training": {"updates": 8}}, tmp_path / "run", resume=True, display=SilentDisplay())
    assert metrics(tmp_path / "run")[-1]["update"] == 8


@pytest.mark.parametrize("kind", ["frequency", "norm"])
def test_heuristic_info_trains(toy_corpus: Path, tmp_path: Path, kind: str) -> None:
    config = values(toy_corpus, updates=15)
    config["model"]["info"] = kind
    train(config, tmp_path / "run", display=SilentDisplay())
    model = load_model(tmp_path / "run").model
    assert model.source_info.kind == kind
    tokens = torch.arange(4, 10, device=model.device)[None]
    info = model.embed_source(tokens).info
    assert bool(((info > 0) & (info < 2)).all()) and info.std() > 0


def test_info_aware_full_sentence_model_trains(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=10)
    config["system"] = {"name": "full"}
    config["model"]["info"] = "attention"
    train(config, tmp_path / "run", display=SilentDisplay())
    assert "info_sum" in metrics(tmp_path / "run")[0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", [n for n in TRAINED if not SYSTEMS[n].plans_by_length])
def test_recorded_updates_learn_what_plain_ones_do(
    toy_corpus: Path, tmp_path: Path, name: str, accumulate: int
) -> None:
    curves = []
    for graphs in (False, True):
        given = values(toy_corpus, device="cuda", log_every=1, precision="float32", graphs=graphs)
        given["training"]["accumulate"] = accumulate
        given["system"] = {"name": name}
        given["model"]["dropout"] = 0.0
        train(given, tmp_path / str(graphs), display=SilentDisplay())
        curves.append([row["loss"] for row in metrics(tmp_path / str(graphs)) if "loss" in row])
    assert len(curves[0]) == 60
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)


def test_batches_of_recorded_updates_add_up(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a GPU: what would be recorded is called, and its losses are written in one place."""

    class Called:
        places: ClassVar[dict[str, torch.Tensor]] = {}

        def run(self, update, batch, dial, share, stage) -> dict[str, torch.Tensor]:
            found = update(batch, None if dial is None else torch.tensor(dial), torch.tensor(share))
            for name, value in found.items():
                self.places.setdefault(name, value.clone()).copy_(value)
            return {name: self.places[name] for name in found}

    given = values(toy_corpus, updates=12, log_every=1, accumulate=3)
    given["model"] |= {"dropout": 0.0, "info": "attention"}
    given["system"] = {"name": "wait-info", "whole_source_updates": 5}
    train(given, tmp_path / "plain", display=SilentDisplay())
    monkeypatch.setattr(updates.Updater, "_graphs", lambda updater: Called())
    train(given, tmp_path / "summed", display=SilentDisplay())
    plain, summed = (
        [row["loss"] for row in metrics(tmp_path / name) if "loss" in row]
        for name in ("plain", "summed")
    )
    assert len(plain) == 12 and plain == pytest.approx(summed, rel=1e-4)


def test_where_nothing_can_be_compiled_training_goes_on(
    toy_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object, **named: object) -> None:
        raise RuntimeError("no compiler here\nand a long story")

    class Notes(SilentDisplay):
        notes: ClassVar[list[str]] = []

        def note(self, text: str) -> None:
            self.notes.append(text)

    monkeypatch.setattr(torch, "compile", broken)
    summary = train(values(toy_corpus, compile=True, updates=3), tmp_path / "run", display=Notes())
    assert summary["updates"] == 3
    assert Notes.notes[0] == "cannot compile (no compiler here); training without"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="compiling takes long on a CPU")
def test_a_compiled_model_learns_the_same(toy_corpus: Path, tmp_path: Path) -> None:
    curves = []
    for compiled in (False, True):
        given = values(toy_corpus, device="cuda", log_every=1, updates=20, compile=compiled)
        given["training"]["precision"] = "float32"
        given["model"]["dropout"] = 0.0
        train(given, tmp_path / str(compiled), display=SilentDisplay())
        curves.append([row["loss"] for row in metrics(tmp_path / str(compiled)) if "loss" in row])
    assert curves[0] == pytest.approx(curves[1], rel=1e-3)
