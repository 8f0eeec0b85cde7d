"""The policy's side of a step in a few kernels; the reference implementation is `steps.Steps`.

A program of each kernel takes one row. Between the kernels stand the model and the system, whose
`ready` and `accept` are torch functions. What is decided is compiled from `engine.decision` and
`engine.loops` themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from waitinfo.streaming.engine import decision, loops
from waitinfo.streaming.recorded import memory, steps


def _compiled(function: Callable[..., Any]) -> Any:
    """A function of the host for use in kernels. The interpreter calls it as it is."""
    found = triton.jit(function)
    return found if isinstance(found, triton.JITFunction) else function


length_limit, may_write = _compiled(decision.length_limit), _compiled(decision.may_write)
verdict = _compiled(decision.verdict)
run_after, is_loop = _compiled(loops.run_after), _compiled(loops.is_loop)

# Flags in and out.
FED, RESTARTED = tl.constexpr(steps.FED), tl.constexpr(steps.RESTARTED)
WROTE, LAST, BROKEN = map(tl.constexpr, (steps.WROTE, steps.LAST, steps.BROKEN))
MAY_WRITE, LOOPED = tl.constexpr(steps.MAY_WRITE), tl.constexpr(steps.LOOPED)
# Columns of `DeviceState.counts`, and how many there are.
LEAST, REFUSED = tl.constexpr(memory.LEAST), tl.constexpr(memory.REFUSED)
READ, WRITTEN = tl.constexpr(memory.READ_COUNT), tl.constexpr(memory.WRITTEN)
ENDED, COUNTS = tl.constexpr(memory.ENDED), tl.constexpr(memory.COUNTS)

# Integers of a row that `choose` makes: slot, tokens read, written, and read but at least 1, target
# positions with the next one, the forced token, whether to WRITE, whether the source is a new one.
INTEGERS = 8
power = triton.next_power_of_2


@triton.jit
def arrive(
    IN, TABLE, REPEATS, INTS, rows, table_row, repeats_row,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slot, position, token, count, block and place of source tokens, [R] each; SIZE rows here."""
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = row < rows
    slot = tl.load(IN + row, mask=inside, other=0.0).to(tl.int64)
    at = tl.load(IN + rows + row, mask=inside, other=0.0).to(tl.int64)
    token = tl.load(IN + 2 * rows + row, mask=inside, other=0.0).to(tl.int64)
    repeats = tl.load(IN + 3 * rows + row, mask=inside, other=0.0).to(tl.int32)
    block = tl.load(TABLE + slot * table_row + at // BLOCK, mask=inside, other=0)
    tl.store(REPEATS + slot * repeats_row + at + 1, repeats, mask=inside)
    tl.store(INTS + row, slot, mask=inside)
    tl.store(INTS + rows + row, at, mask=inside)
    tl.store(INTS + 2 * rows + row, token, mask=inside)
    tl.store(INTS + 3 * rows + row, at + 1, mask=inside)
    tl.store(INTS + 4 * rows + row, block, mask=inside)
    tl.store(INTS + 5 * rows + row, at % BLOCK, mask=inside)


@triton.jit
def note(
    INTS, INFO, VALUES, SOURCE_INFO, OUT, rows, width, value_row, info_row,
    WIDTH: tl.constexpr, HAS_INFO: tl.constexpr,
):  # fmt: skip
    """Keep and report the info of encoded tokens, and whether they are finite."""
    row = tl.program_id(0)
    slot, at = tl.load(INTS + row), tl.load(INTS + rows + row)
    info = tl.full((), 0.0, tl.float64)
    if HAS_INFO:
        found = tl.load(INFO + row)
        tl.store(SOURCE_INFO + slot * info_row + at, found.to(SOURCE_INFO.dtype.element_ty))
        info += found.to(tl.float64)
    column = tl.arange(0, WIDTH)
    values = tl.load(VALUES + row * value_row + column, mask=column < width, other=0.0)
    total = tl.sum(values.to(tl.float32), 0)
    tl.store(OUT + row, info)
    tl.store(OUT + rows + row, tl.where(tl.abs(total) < float("inf"), 1.0, 0.0).to(tl.float64))


@triton.jit
def begin(
    IN, STATE, SUMS, INFO, NUMBERS, READS, COMPLETE, FRESH_ROWS, rows, info_row, last,
    WINDOW: tl.constexpr, HAS_INFO: tl.constexpr,
):  # fmt: skip
    """What the policy is asked: its state after 0, 1, … further READs, [R, WINDOW] each."""
    row = tl.program_id(0)
    slot = tl.load(IN + row).to(tl.int64)
    flags = tl.load(IN + 3 * rows + row).to(tl.int32)
    tl.store(IN + 3 * rows + row, (flags % RESTARTED).to(tl.float64))
    fresh = flags >= RESTARTED
    length = tl.where(flags % RESTARTED == FED, tl.load(IN + rows + row).to(tl.int64), -1)
    read = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + READ))
    written = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + WRITTEN))
    source = tl.where(fresh, 0.0, tl.load(SUMS + slot * 2))
    target = tl.where(fresh, 0.0, tl.load(SUMS + slot * 2 + 1))
    offset = tl.arange(0, WINDOW)
    reads = read + offset
    totals = source + tl.zeros((WINDOW,), tl.float64)
    if HAS_INFO:
        place = tl.minimum(tl.maximum(reads - 1, 0), last)
        infos = tl.load(INFO + slot * info_row + place).to(tl.float64)
        totals += tl.cumsum(tl.where(offset > 0, infos, 0.0), 0)
    at, every = row * WINDOW + offset, rows * WINDOW
    k = tl.load(IN + 4 * rows + row)
    tl.store(NUMBERS + at, k + tl.zeros((WINDOW,), tl.float64))
    tl.store(NUMBERS + every + at, totals)
    tl.store(NUMBERS + 2 * every + at, target + tl.zeros((WINDOW,), tl.float64))
    tl.store(READS + at, reads)
    tl.store(READS + every + at, written + tl.zeros((WINDOW,), tl.int64))
    tl.store(COMPLETE + at, (reads == length).to(tl.int8))
    tl.store(FRESH_ROWS + row, fresh.to(tl.int64))


@triton.jit
def choose(
    IN, STATE, NUMBERS, READS, COMPLETE, FRESH_ROWS, ALLOWED, NEXT_X, FIRST_X, NEXT_INFO, INTS,
    FLOATS, WHOLE, X, INFO, rows, width,
    WINDOW: tl.constexpr, WIDTH: tl.constexpr, HAS_INFO: tl.constexpr,
):  # fmt: skip
    """READ as far as needed or possible; the state of every row then, and its next input."""
    row = tl.program_id(0)
    slot = tl.load(IN + row).to(tl.int64)
    fresh = tl.load(FRESH_ROWS + row) > 0
    offset = tl.arange(0, WINDOW)
    at, every = row * WINDOW + offset, rows * WINDOW
    reads = tl.load(READS + at)
    written = tl.load(READS + every + row * WINDOW)
    complete = tl.load(COMPLETE + at) > 0
    encoded = tl.load(IN + 2 * rows + row).to(tl.int64)
    forced = tl.load(IN + 6 * rows + row).to(tl.int64)
    due = tl.load(IN + 7 * rows + row).to(tl.int64)
    least = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + LEAST))
    ended = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + ENDED)) > 0
    must = forced > 0
    wanted = (tl.load(ALLOWED + at).to(tl.int32) > 0) | must
    least = tl.where(must, due, least)
    may = may_write(reads, written, complete, least, wanted, length_limit(reads))
    may = may & (reads <= encoded) & (ended == 0)
    first = tl.min(tl.where(may, offset, WINDOW), 0)
    read = tl.load(READS + row * WINDOW)
    furthest = tl.minimum(tl.maximum(encoded - read, 0), WINDOW - 1)
    furthest = tl.where(ended, 0, furthest)
    moved = tl.where(first < WINDOW, first, furthest)
    source = tl.sum(tl.where(offset == moved, tl.load(NUMBERS + every + at), 0.0), 0)
    read += moved
    whole = tl.max(tl.where((offset == moved) & complete, 1, 0), 0)
    tl.store(INTS + row, slot)
    tl.store(INTS + rows + row, read)
    tl.store(INTS + 2 * rows + row, written)
    tl.store(INTS + 3 * rows + row, tl.maximum(read, 1))
    tl.store(INTS + 4 * rows + row, written + 1)
    tl.store(INTS + 5 * rows + row, forced)
    tl.store(INTS + 6 * rows + row, (first < WINDOW).to(tl.int64))
    tl.store(INTS + 7 * rows + row, fresh.to(tl.int64))
    tl.store(FLOATS + row, tl.load(NUMBERS + row * WINDOW))
    tl.store(FLOATS + rows + row, source)
    tl.store(FLOATS + 2 * rows + row, tl.load(NUMBERS + 2 * every + row * WINDOW))
    tl.store(WHOLE + row, whole.to(tl.int8))
    column = tl.arange(0, WIDTH)
    real = column < width
    x = tl.load(NEXT_X + slot * width + column, mask=real, other=0.0)
    x = tl.where(fresh, tl.load(FIRST_X + column, mask=real, other=0.0), x)
    tl.store(X + row * width + column, x, mask=real)
    if HAS_INFO:
        info = tl.where(fresh, 1.0, tl.load(NEXT_INFO + slot))
        tl.store(INFO + row, info.to(INFO.dtype.element_ty))


@triton.jit
def _looping(
    token, written, slot, read, fresh, TARGETS, RUNS, REPEATS, targets_row, repeats_row,
    PERIODS: tl.constexpr,
):  # fmt: skip
    """Whether a token would go on with a loop, and the runs with and without it."""
    period = tl.arange(0, PERIODS) + 1
    place = written - period
    earlier = tl.load(TARGETS + slot * targets_row + tl.maximum(place, 0)).to(tl.int64)
    same = (earlier == token) & (place >= 0)
    before = tl.where(fresh, 0, tl.load(RUNS + slot * PERIODS + period - 1))
    runs = run_after(same, before)
    most = tl.load(REPEATS + slot * repeats_row + read)
    return tl.max(is_loop(runs, period, most).to(tl.int32), 0) > 0, before, runs


@triton.jit
def finish(  # noqa: PLR0915 - one kernel on purpose
    IN, INTS, FLOATS, WHOLE, STEP_TOKENS, FINITE, ACCEPTED, X, FOLLOWING, INFO, FOLLOWING_INFO,
    STATE, SUMS, NEXT_X, NEXT_INFO, SOURCE_INFO, TARGETS, RUNS, REPEATS, AFTER, TOTALS, WHOLE_AFTER,
    OUT, rows, width, info_row, last_info, targets_row, repeats_row,
    WIDTH: tl.constexpr, HAS_INFO: tl.constexpr, HAS_SOURCE_INFO: tl.constexpr,
    ASKED: tl.constexpr, GUARD: tl.constexpr, CUTS: tl.constexpr, END: tl.constexpr,
    PERIODS: tl.constexpr,
):  # fmt: skip
    """WRITE or refuse the token of every row, keep its state, and report what happened."""
    row = tl.program_id(0)
    slot, before = tl.load(INTS + row), tl.load(INTS + rows + row)
    written = tl.load(INTS + 2 * rows + row)
    must = tl.load(INTS + 5 * rows + row) > 0
    ready, fresh = tl.load(INTS + 6 * rows + row) > 0, tl.load(INTS + 7 * rows + row) > 0
    source, target = tl.load(FLOATS + rows + row), tl.load(FLOATS + 2 * rows + row)
    complete = tl.load(WHOLE + row) > 0
    token = tl.load(STEP_TOKENS + row)
    finite = tl.load(FINITE + row) > 0
    least = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + LEAST))
    refusals = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + REFUSED))
    over = tl.where(fresh, 0, tl.load(STATE + slot * COUNTS + ENDED)) > 0
    patience = tl.load(IN + 5 * rows + row).to(tl.int64)
    encoded = tl.load(IN + 2 * rows + row).to(tl.int64)
    info = tl.full((), 0.0, tl.float64)
    if HAS_INFO:
        info += tl.load(FOLLOWING_INFO + row).to(tl.float64)

    looping = token < 0
    if CUTS:
        looping, runs_before, runs = _looping(
            token, written, slot, before, fresh, TARGETS, RUNS, REPEATS, targets_row, repeats_row,
            PERIODS,
        )  # fmt: skip
        looping = looping & (must == 0)
    told = tl.where(looping, END, token)
    accepted = tl.full((), 1, tl.int1)
    if ASKED:
        accepted = tl.load(ACCEPTED + row).to(tl.int32) > 0
    accepted, last, _, early = verdict(
        written, complete, token == END, accepted, looping, must, refusals, patience, GUARD,
        length_limit(before),
    )  # fmt: skip
    usable = ready & finite
    wrote, refused, last = usable & accepted, usable & (accepted == 0), usable & last

    refusals = tl.where(wrote, 0, refusals + (early & ready).to(tl.int64))
    after = written + wrote.to(tl.int64)
    target += tl.where(wrote, info, 0.0)
    over = over | last
    least = tl.where(refused, before + 1, least)
    more = refused & (before < encoded)
    if HAS_SOURCE_INFO:
        place = tl.minimum(before, last_info)
        found = tl.load(SOURCE_INFO + slot * info_row + place).to(tl.float64)
        source += tl.where(more, found, 0.0)
    read = before + more.to(tl.int64)
    fed = tl.load(IN + 3 * rows + row).to(tl.int32) % RESTARTED == FED
    whole = fed & (read == tl.load(IN + rows + row).to(tl.int64))

    tl.store(STATE + slot * COUNTS + READ, read)
    tl.store(STATE + slot * COUNTS + WRITTEN, after)
    tl.store(STATE + slot * COUNTS + LEAST, least)
    tl.store(STATE + slot * COUNTS + REFUSED, refusals)
    tl.store(STATE + slot * COUNTS + ENDED, over.to(tl.int64))
    tl.store(SUMS + slot * 2, source)
    tl.store(SUMS + slot * 2 + 1, target)
    column = tl.arange(0, WIDTH)
    real, place = column < width, row * width + column
    x = tl.load(X + place, mask=real, other=0.0)
    x = tl.where(wrote, tl.load(FOLLOWING + place, mask=real, other=0.0), x)
    tl.store(NEXT_X + slot * width + column, x, mask=real)
    if HAS_INFO:
        mine = tl.where(wrote, tl.load(FOLLOWING_INFO + row), tl.load(INFO + row))
        tl.store(NEXT_INFO + slot, mine.to(NEXT_INFO.dtype.element_ty))
    if CUTS:
        period = tl.arange(0, PERIODS)
        tl.store(RUNS + slot * PERIODS + period, tl.where(wrote, runs, runs_before))
        tl.store(TARGETS + slot * targets_row + written, token.to(tl.int32))

    tl.store(AFTER + row, read)
    tl.store(AFTER + rows + row, after)
    tl.store(AFTER + 2 * rows + row, least)
    tl.store(AFTER + 3 * rows + row, over.to(tl.int64))
    tl.store(TOTALS + row, tl.load(FLOATS + row))
    tl.store(TOTALS + rows + row, source)
    tl.store(TOTALS + 2 * rows + row, target)
    tl.store(WHOLE_AFTER + row, whole.to(tl.int8))
    broken = ready & (finite == 0)
    flags = WROTE * wrote.to(tl.int32) + LAST * last.to(tl.int32) + BROKEN * broken.to(tl.int32)
    flags += LOOPED * looping.to(tl.int32)
    tl.store(OUT + row, before.to(tl.float64))
    tl.store(OUT + rows + row, read.to(tl.float64))
    tl.store(OUT + 2 * rows + row, flags.to(tl.float64))
    tl.store(OUT + 3 * rows + row, told.to(tl.float64))
    tl.store(OUT + 4 * rows + row, info)
    tl.store(OUT + 5 * rows + row, target)


@triton.jit
def report(AFTER, WHOLE_AFTER, ALLOWED, OUT, rows, BLOCK: tl.constexpr):
    """Add to the flags whether a row could WRITE again at once."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    read = tl.load(AFTER + row, mask=inside, other=0)
    written = tl.load(AFTER + rows + row, mask=inside, other=0)
    least = tl.load(AFTER + 2 * rows + row, mask=inside, other=0)
    over = tl.load(AFTER + 3 * rows + row, mask=inside, other=0) > 0
    whole = tl.load(WHOLE_AFTER + row, mask=inside, other=0) > 0
    wanted = tl.load(ALLOWED + row, mask=inside, other=0).to(tl.int32) > 0
    may = may_write(read, written, whole, least, wanted, length_limit(read)) & (over == 0)
    flags = tl.load(OUT + 2 * rows + row, mask=inside, other=0.0)
    tl.store(OUT + 2 * rows + row, flags + MAY_WRITE * may.to(tl.int32), mask=inside)
