"""Checkpoints and model folders survive what befalls files."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from waitinfo.errors import WaitinfoError
from waitinfo.training.checkpoint import load_newest, save_checkpoint

TENSORS = {"weights": {"a": torch.arange(6.0).view(2, 3)}, "average": {}}


def save(folder: Path, update: int, **options) -> None:
    save_checkpoint(folder, update, {"best": None}, TENSORS, **options)


def test_round_trip_keeps_the_newest(tmp_path: Path) -> None:
    for update in (5, 10, 15):
        save(tmp_path, update, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000010", "00000015"]
    checkpoint, complaints = load_newest(tmp_path)
    assert checkpoint.update == 15 and complaints == []
    assert torch.equal(checkpoint.tensors["weights"]["a"], TENSORS["weights"]["a"])


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "state"])
def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, damage: str) -> None:
    save(tmp_path, 5)
    save(tmp_path, 10)
    file = tmp_path / "00000010" / ("state.json" if damage == "state" else "weights.safetensors")
    content = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    elif damage == "flip":
        content[-1] ^= 1
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2])
    checkpoint, complaints = load_newest(tmp_path)
    assert checkpoint.update == 5
    assert len(complaints) == 1 and "00000010" in complaints[0] and "damaged" in complaints[0]


def test_nothing_intact_is_an_error_and_nothing_at_all_is_none(tmp_path: Path) -> None:
    assert load_newest(tmp_path / "none") == (None, [])
    save(tmp_path, 5)
    (tmp_path / "00000005" / "state.json").write_text("{")
    with pytest.raises(WaitinfoError, match="no intact checkpoint is left"):
        load_newest(tmp_path)


def test_a_swap_cut_off_between_its_renames_is_recovered(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / "00000005").rename(tmp_path / ".00000005.old")
    assert load_newest(tmp_path)[0].update == 5
    save(tmp_path, 5, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["00000005"]


def test_unfinished_checkpoints_are_not_looked_at(tmp_path: Path) -> None:
    save(tmp_path, 5)
    (tmp_path / ".00000010.partial").mkdir()
    assert load_newest(tmp_path)[0].update == 5


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    """A process that may write no file over 64 KiB stands for a disk that fills up."""
    save(tmp_path, 5)
    script = f"""
        import resource, signal
        from pathlib import Path
        import torch
        from waitinfo.errors import WaitinfoError
        from waitinfo.training.checkpoint import save_checkpoint
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            tensors = {{"weights": {{"a": torch.zeros(1 << 20)}}}}
            save_checkpoint(Path({str(tmp_path)!r}), 10, {{}}, tensors)
        except WaitinfoError as error:
            print(error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert "checkpoint cannot be written" in run.stdout
    assert "checkpoint 00000005 is kept" in run.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["00000005"]
    assert load_newest(tmp_path)[0].update == 5
