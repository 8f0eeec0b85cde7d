"""The decisions, against the rules written out, on every kind of array and in kernels."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from waitinfo.streaming.engine.decision import length_limit, may_write, verdict
from waitinfo.streaming.engine.loops import is_loop, run_after

BITS = (False, True)
# written, complete, is_end, accepted, looping, forced, refused, patience, guard, read
CASES = list(
    itertools.product((0, 3, 15), BITS, BITS, BITS, BITS, BITS, (0, 2), (0, 2, 3), BITS, (1, 3))
)
COLUMNS = [np.array(column) for column in zip(*CASES, strict=True)]


def literal_verdict(
    written: int, complete: bool, is_end: bool, accepted: bool, looping: bool, forced: bool,
    refused: int, patience: int, guard: bool, read: int,
) -> tuple[bool, bool, bool, bool]:  # fmt: skip
    """WRITE or not; whether it is the last; by an end; whether that is too early."""
    ends = is_end or (looping and not forced)
    protected = guard or patience > 0 or (looping and not forced)
    out_of_patience = patience > 0 and refused >= patience and written > 0
    early = ends and not complete and protected and not out_of_patience
    wrote = not early and (complete or accepted)
    if forced:
        wrote = True
    full = complete and written + 1 == 2 * read + 10
    too_full = complete and written + 1 > 2 * read + 10
    return wrote, wrote and (ends or full or too_full), ends, early


def literal_may(read: int, written: int, complete: bool, least: int, wanted: bool) -> bool:
    if complete:
        return True
    return wanted and read >= 1 and read >= least and written < 2 * read + 10


def test_verdicts_on_numbers_and_arrays() -> None:
    expected = [literal_verdict(*case) for case in CASES]
    numbers = [verdict(*case[:-1], length_limit(case[-1])) for case in CASES]
    assert [tuple(map(bool, found)) for found in numbers] == expected
    for kind in (np.asarray, torch.from_numpy):
        columns = [kind(column) for column in COLUMNS]
        found = verdict(*columns[:-1], length_limit(columns[-1]))
        assert list(zip(*(f.tolist() for f in found), strict=True)) == expected


MAY = list(itertools.product((0, 1, 4), (0, 3, 12, 18), BITS, (0, 1, 5), BITS))


def test_writing_is_allowed_on_numbers_and_arrays() -> None:
    expected = [literal_may(*case) for case in MAY]
    assert [bool(may_write(*case, length_limit(case[0]))) for case in MAY] == expected
    columns = [np.array(column) for column in zip(*MAY, strict=True)]
    for kind in (np.asarray, torch.from_numpy):
        found = may_write(*map(kind, columns), length_limit(kind(columns[0])))
        assert found.tolist() == expected


INTERPRETED = pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1",
    reason="without a GPU the kernels need TRITON_INTERPRET=1",
)


RUNS = list(itertools.product(BITS, range(0, 40, 3), (1, 2, 5, 11, 32), (1, 2, 4)))


def literal_loop(same: bool, run: int, period: int, most: int) -> tuple[int, bool]:
    """The run after one more token, and whether it is that of a loop."""
    if not same:
        return 0, False
    tokens = run + 1 + period
    whole = tokens // period
    return run + 1, tokens >= 12 and whole >= 3 and whole > most


def test_loops_on_numbers_and_arrays() -> None:
    expected = [literal_loop(*case) for case in RUNS]
    columns = [np.array(column) for column in zip(*RUNS, strict=True)]
    for kind in (np.asarray, torch.from_numpy):
        same, run, period, most = map(kind, columns)
        after = run_after(same, run)
        found = zip(after.tolist(), is_loop(after, period, most).tolist(), strict=True)
        assert list(found) == expected


@INTERPRETED
def test_kernels_decide_alike() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from tests.decision_kernels import decide_all, runs_and_loops

    def run(kernel: Any, cases: list, outputs: int) -> list:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        table = torch.tensor(cases, dtype=torch.int64, device=device).T.contiguous()
        found = torch.zeros(outputs, len(cases), dtype=torch.int64, device=device)
        kernel[(1,)](table, found, len(cases), SIZE=1 << (len(cases) - 1).bit_length())
        return [tuple(row) for row in found.T.tolist()]

    may = [literal_may(c[-1], c[0], c[1], c[6], c[3]) for c in CASES]
    expected = [
        (*literal_verdict(*case), allowed) for case, allowed in zip(CASES, may, strict=True)
    ]
    assert run(decide_all, CASES, 5) == expected
    assert run(runs_and_loops, RUNS, 2) == [literal_loop(*case) for case in RUNS]


def test_the_kernels_compile_for_a_gpu() -> None:
    """All of them, without one. Elsewhere they are interpreted, which is more lenient."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = Path(__file__).with_name("compiling.py")
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout.split() == ["arrive", "note", "begin", "choose", "finish", "report"]
