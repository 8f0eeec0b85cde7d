"""A kernel that decides about all rows of a table, with the functions of the recorded kernels."""

from __future__ import annotations

import triton
import triton.language as tl

from waitinfo.streaming.recorded.kernels import is_loop, length_limit, may_write, run_after, verdict


@triton.jit
def decide_all(IN, OUT, rows, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    here = row < rows
    written = tl.load(IN + row, mask=here, other=0)
    complete = tl.load(IN + rows + row, mask=here, other=0) > 0
    is_end = tl.load(IN + 2 * rows + row, mask=here, other=0) > 0
    accepted = tl.load(IN + 3 * rows + row, mask=here, other=0) > 0
    looping = tl.load(IN + 4 * rows + row, mask=here, other=0) > 0
    forced = tl.load(IN + 5 * rows + row, mask=here, other=0) > 0
    refused = tl.load(IN + 6 * rows + row, mask=here, other=0)
    patience = tl.load(IN + 7 * rows + row, mask=here, other=0)
    guard = tl.load(IN + 8 * rows + row, mask=here, other=0) > 0
    read = tl.load(IN + 9 * rows + row, mask=here, other=0)
    limit = length_limit(read)
    wrote, last, ends, early = verdict(
        written, complete, is_end, accepted, looping, forced, refused, patience, guard, limit
    )
    may = may_write(read, written, complete, refused, accepted, limit)
    tl.store(OUT + row, wrote.to(tl.int64), mask=here)
    tl.store(OUT + rows + row, last.to(tl.int64), mask=here)
    tl.store(OUT + 2 * rows + row, ends.to(tl.int64), mask=here)
    tl.store(OUT + 3 * rows + row, early.to(tl.int64), mask=here)
    tl.store(OUT + 4 * rows + row, may.to(tl.int64), mask=here)


@triton.jit
def runs_and_loops(IN, OUT, rows, SIZE: tl.constexpr):
    row = tl.arange(0, SIZE)
    here = row < rows
    same = tl.load(IN + row, mask=here, other=0) > 0
    run = tl.load(IN + rows + row, mask=here, other=0)
    period = tl.load(IN + 2 * rows + row, mask=here, other=1)
    most = tl.load(IN + 3 * rows + row, mask=here, other=0)
    after = run_after(same, run)
    tl.store(OUT + row, after, mask=here)
    tl.store(OUT + rows + row, is_loop(after, period, most).to(tl.int64), mask=here)
