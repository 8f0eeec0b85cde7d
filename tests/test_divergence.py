"""Gradients and weights that are not finite: skipped, counted, never saved, never published."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training_runs import assert_same_tensors, metrics, new_trainer, values
from waitinfo.errors import WaitinfoError
from waitinfo.text.files import sha256
from waitinfo.training import train
from waitinfo.training.checkpoint import optimizer_tensors
from waitinfo.training.display import SilentDisplay
from waitinfo.training.trainer import MOST_SKIPPED, Trainer
from waitinfo.training.updates import FiniteGuard, Objective

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


class Notes(SilentDisplay):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def poison(monkeypatch: pytest.MonkeyPatch, bad: set[int], by: float = math.nan) -> None:
    """Have the losses of these updates, and with them their gradients, be NaN or infinite."""
    healthy = Objective.forward

    def forward(self, batch, context):
        total, parts = healthy(self, batch, context)
        return (total * by if context.update in bad else total), parts

    monkeypatch.setattr(Objective, "forward", forward)


def finite_files(run: Path) -> bool:
    files = [*run.rglob("*.safetensors")]
    assert files
    return all(bool(t.isfinite().all()) for file in files for t in load_file(file).values())


def state(trainer: Trainer) -> dict[str, torch.Tensor]:
    optimizer = optimizer_tensors(trainer.optimizer)
    return {n: t.detach().clone() for n, t in (trainer.model.weights() | optimizer).items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("by", [math.nan, math.inf])
def test_a_skipped_update_is_as_if_it_had_not_been(
    toy_corpus: Path, tmp_path: Path, monkeypatch, device: str, clip: float, by: float
) -> None:
    """Every second batch is bad: the same in the end as training on the good ones alone."""
    poison(monkeypatch, {1}, by)
    config = values(toy_corpus, device=device, clip=clip, graphs=False)
    one, other = (new_trainer(config, tmp_path) for _ in range(2))
    with one.batches() as stream:
        items = [next(stream) for _ in range(24)]
    for number, item in enumerate(items):
        before = state(one)
        one.update = number % 2
        one.step(item)
        one.update = 0
        if number % 2:
            assert number == 1 or same(before, state(one))
        else:
            other.update = 0
            other.step(item)
            assert same(state(one), state(other))
    assert one.updater.guard.counts() == (12, 1)
    assert other.updater.guard.counts() == (0, 0)
    assert one.tally.means(one.processes) == pytest.approx(
        other.tally.means(other.processes), rel=1e-12
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
def test_recorded_updates_skip_too(toy_corpus: Path, tmp_path: Path) -> None:
    """A weight is made NaN for an update that is replayed, and is put right afterwards."""
    trainer = new_trainer(values(toy_corpus, device="cuda", precision="float32"), tmp_path)
    with trainer.batches() as stream:
        item = next(stream)
    for _ in range(4):
        trainer.step(item)
    assert len(trainer.updater.graphs.recordings) == 1
    weight = trainer.model.target_embedding.weight
    good = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(math.nan)
    before = state(trainer)
    trainer.step(item)
    after = state(trainer)
    assert all(torch.equal(before[n], after[n]) or bool(before[n].isnan().all()) for n in before)
    assert trainer.updater.guard.counts() == (1, 1)
    with torch.no_grad():
        weight.copy_(good)
    trainer.step(item)
    assert trainer.updater.guard.counts() == (1, 0)
    assert not torch.equal(weight, good) and bool(weight.isfinite().all())


def test_a_fused_optimizer_obeys_the_guard() -> None:
    """As on a GPU, where nothing but the flag on the device tells it to skip."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, 3))
    twin = torch.nn.Parameter(weight.detach().clone())
    optimizer, free = (torch.optim.AdamW([p], lr=0.1, fused=True) for p in (weight, twin))
    guard = FiniteGuard(torch.device("cpu"))
    optimizer.found_inf = guard.skip
    for number in range(6):
        gradient = torch.randn(5, 3)
        if number % 3 == 1:
            weight.grad = gradient * math.inf
        else:
            weight.grad, twin.grad = gradient, gradient.clone()
            free.step()
        guard.judge(weight.grad.norm())
        optimizer.step()
        assert torch.equal(weight, twin)
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, free.state[twin][name]), name
    assert guard.counts() == (2, 0)


def test_skipped_updates_are_counted_and_told(
    toy_corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    poison(monkeypatch, {3, 4, 29, 59})
    display = Notes()
    summary = train(values(toy_corpus, log_every=1), tmp_path / "run", display=display)
    assert summary["skipped"] == 4 and summary["updates"] == 60
    counts = {row["update"]: row["skipped"] for row in metrics(tmp_path / "run") if "loss" in row}
    assert counts[3] == 0 and counts[6] == 2 and counts[59] == 3
    assert not {4, 5, 30, 60} & counts.keys(), "there is no loss to show of a skipped update"
    assert any("skipped 3" in note for note in display.notes)
    assert any("60 (4 skipped)" in note for note in display.notes[-2:])
    # The checkpoint due at update 30 waited for the next good update.
    assert finite_files(tmp_path / "run")


def test_a_checkpoint_waits_for_a_good_update_and_resuming_repeats_it(
    toy_corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    poison(monkeypatch, {18, 19, 20})
    config = values(toy_corpus, keep_checkpoints=10, average="last")
    train(config, tmp_path / "whole", display=SilentDisplay())
    saved = [path.name for path in sorted((tmp_path / "whole" / "checkpoints").iterdir())]
    assert saved == ["00000010", "00000022", "00000030", "00000040", "00000050", "00000060"]
    config["training"]["updates"] = 24
    train(config, tmp_path / "parts", display=SilentDisplay())
    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "00000024")
    summary = train(
        {"training": {"updates": 60}}, tmp_path / "parts", resume=True, display=SilentDisplay()
    )
    assert summary["skipped"] == 3
    last = Path("checkpoints") / "00000060" / "weights.safetensors"
    assert_same_tensors(tmp_path / "whole" / last, tmp_path / "parts" / last)


def test_a_run_that_has_diverged_ends_and_keeps_its_good_checkpoint(
    toy_corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    with monkeypatch.context() as patch:
        poison(patch, set(range(13, 10**6)))
        with pytest.raises(WaitinfoError, match="the loss is not finite at update .*lower"):
            train(values(toy_corpus, updates=1000), tmp_path / "run", display=SilentDisplay())
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000010"]
    assert finite_files(tmp_path / "run")
    assert metrics(tmp_path / "run")[-1]["update"] < 13 + MOST_SKIPPED
    config = {"training": {"updates": 20}}
    train(config, tmp_path / "run", resume=True, display=SilentDisplay())
    assert metrics(tmp_path / "run")[-1]["update"] == 20


def test_weights_that_are_not_finite_are_never_saved(
    toy_corpus: Path, tmp_path: Path, monkeypatch
) -> None:
    """The gradient and the loss are finite; the optimizer breaks a weight."""
    step = torch.optim.AdamW.step

    def broken(self, *given):
        step(self, *given)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 20:
            with torch.no_grad():
                self.param_groups[0]["params"][0].view(-1)[0] = math.nan

    monkeypatch.setattr(torch.optim.AdamW, "step", broken)
    with pytest.raises(WaitinfoError, match="the weights are not finite at update 20"):
        train(values(toy_corpus, validate_every=5), tmp_path / "run", display=SilentDisplay())
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["00000010"]
    assert (tmp_path / "run" / "best").exists() and finite_files(tmp_path / "run")


def test_one_process_with_broken_weights_stops_all(toy_corpus: Path, tmp_path: Path) -> None:
    """Of two processes the second, which saves nothing, has a weight that is not finite."""
    config = values(toy_corpus, updates=20, checkpoint_every=20, validate_every=1000)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
        import json, os, torch
        from pathlib import Path
        from waitinfo.errors import WaitinfoError
        from waitinfo.training import train
        from waitinfo.training.trainer import Trainer

        step = Trainer.step
        def broken(self, *given):
            step(self, *given)
            if self.update == 20 and self.processes.rank == 1:
                with torch.no_grad():
                    next(self.model.parameters()).view(-1)[0] = float("inf")
        Trainer.step = broken
        out = Path({str(tmp_path)!r})
        try:
            train(json.loads({json.dumps(config)!r}), out / "run")
        except WaitinfoError as error:
            (out / f"said-{{os.environ['RANK']}}").write_text(str(error))
        """)
    )
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run(
        [sys.executable, *launcher, str(script)], capture_output=True, timeout=600, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    for rank in (0, 1):
        said = (tmp_path / f"said-{rank}").read_text()
        assert "the weights are not finite at update 20" in said
    assert not (tmp_path / "run" / "last").exists()
    assert not list((tmp_path / "run").glob("checkpoints/0*"))


def make_bad(checkpoint: Path, name: str) -> None:
    """Put a NaN into a checkpoint, with the right checksum."""
    file = checkpoint / f"{name}.safetensors"
    tensors = load_file(file)
    biggest = max(tensors, key=lambda key: tensors[key].numel())
    tensors[biggest].view(-1)[0] = math.nan
    save_file(tensors, file)
    record = json.loads((checkpoint / "state.json").read_text())
    record["sha256"][file.name] = sha256(file)
    (checkpoint / "state.json").write_text(json.dumps(record))


@pytest.mark.parametrize("name", ["weights", "optimizer", "average"])
def test_resuming_passes_over_a_checkpoint_that_is_not_finite(
    toy_corpus: Path, tmp_path: Path, name: str
) -> None:
    train(values(toy_corpus), tmp_path / "whole", display=SilentDisplay())
    run = tmp_path / "run"
    train(values(toy_corpus, updates=20), run, display=SilentDisplay())
    make_bad(run / "checkpoints" / "00000020", name)
    display = Notes()
    more = {"training": {"updates": 60, "keep_checkpoints": 1}}
    train(more, run, resume=True, display=display)
    assert any("00000020" in note and "not finite" in note for note in display.notes)
    assert "resuming after update 10" in display.notes
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["00000060"]
    last = Path("last") / "model.safetensors"
    assert_same_tensors(tmp_path / "whole" / last, run / last)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_learning_rate_far_too_high_is_said(
    toy_corpus: Path, tmp_path: Path, clip: float
) -> None:
    config = values(toy_corpus, lr=1e30, warmup=1, clip=clip, log_every=1000, updates=100)
    with pytest.raises(WaitinfoError, match="not finite .*; lower training.lr"):
        train(config, tmp_path / "run", display=SilentDisplay())
    assert not list((tmp_path / "run").glob("*/*.safetensors"))
    assert not list((tmp_path / "run").glob("checkpoints/0*"))
