"""Compiled kernels for ARM in an emulator, against those of this CPU: the same bits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from waitinfo.model import native

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
OPTIONS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
SOURCE = Path(__file__).with_name("checksums.c")
CPUS = {"max": ["plain", "sdot", "i8mm"], "neoverse-n1": ["plain", "sdot"], "cortex-a72": ["plain"]}


def build(compiler: str, to: Path, *options: str) -> Path:
    kernels = Path(native.__file__).parent
    command = [compiler, *OPTIONS, *options, f"-I{kernels}", str(SOURCE), "-o", str(to)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return to


def checksums(*command: str | Path) -> dict[str, list[str]]:
    """Of every step, by kind of code."""
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [line.split() for line in printed.splitlines()]
    return {native.KINDS[int(kind)]: sums for kind, *sums in lines}


def test_code_for_arm_computes_the_same_bits(tmp_path: Path) -> None:
    """On CPUs with and without the instructions of each kind of code."""
    missing = [tool for tool in (COMPILER, EMULATOR, "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    expected = checksums(build("cc", tmp_path / "host", "-O1"))
    arm = build(COMPILER, tmp_path / "arm", "-O3", "-static")
    found = {cpu: checksums(EMULATOR, "-cpu", cpu, arm) for cpu in CPUS}
    assert {cpu: list(kinds) for cpu, kinds in found.items()} == CPUS
    assert len(set(expected["plain"])) > 50, "steps compute different numbers"
    for kinds in (expected, *found.values()):
        assert all(sums == expected["plain"] for sums in kinds.values())
