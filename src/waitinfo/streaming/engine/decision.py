"""READ, WRITE, refuse or end: what all backends decide, in one place.

A row is a stream that has read `read` source tokens and written `written` target tokens. All
values here have one element for each row and may be NumPy arrays, torch tensors or single numbers,
which are the fastest for one row. So the functions use operators alone, and `x == 0` for "not":
that works on all of these. The kernels of `recorded.kernels` are compiled from these functions,
which is why their annotations are quoted.

A round, for every row:

1. READ while there is input and not `may_write`.
2. Compute the next token, from a model that has seen what was read.
3. WRITE it if `verdict` accepts it. Otherwise READ one more token before the next attempt.
"""

from typing import Any


def length_limit(read: "Any") -> "Any":
    """The largest number of tokens that may be written once `read` source tokens were read."""
    return 2 * read + 10


def may_write(
    read: "Any", written: "Any", complete: "Any", least: "Any", wanted: "Any", limit: "Any"
) -> "Any":
    """Whether a row computes its next token now; else it READs.

    complete: the whole source was read, after which every system writes. least: source tokens to
    read before the next attempt. wanted: what the system says. limit: `length_limit(read)`. For
    a token that was written before and is written again, `wanted` holds, and `least` is what had
    been read then.
    """
    return complete | (wanted & (read > 0) & (read >= least) & (written < limit))


def verdict(
    written: "Any",
    complete: "Any",
    is_end: "Any",
    accepted: "Any",
    looping: "Any",
    forced: "Any",
    refused: "Any",
    patience: "Any",
    guard: "Any",
    limit: "Any",
) -> "tuple[Any, Any, Any, Any]":
    """What becomes of a computed token: whether it is written; else it is refused.

    is_end: it is end-of-sentence. accepted: by the system, which is not asked once the source is
    complete. looping: it goes on with a loop, and end-of-sentence takes its place. forced: it was
    written before. refused: ends refused since the last token. patience: refusals after which an
    end counts, 0 for never. guard: no end counts before the source is complete.

    Returns whether it is written; whether the translation ends with it; whether that is by
    end-of-sentence, not by the length limit; and whether it is an end that comes too early.
    """
    looping = looping & (forced == 0)
    ends = is_end | looping
    patient = patience > 0
    waited = patient & (refused >= patience) & (written > 0)
    early = ends & (complete == 0) & (waited == 0) & (looping | patient | guard)
    wrote = forced | ((complete | accepted) & (early == 0))
    last = wrote & (ends | (complete & (written + 1 >= limit)))
    return wrote, last, ends, early
