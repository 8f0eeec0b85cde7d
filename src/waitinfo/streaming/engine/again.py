"""Slots that begin with tokens that were read before report those reads again."""

from __future__ import annotations

from collections.abc import Iterable

from waitinfo.streaming.engine.base import Places
from waitinfo.streaming.engine.slots import READ, TokenEvent


def reads_again(state: Places, slots: Iterable[int]) -> list[TokenEvent]:
    """What some slots had read, token by token, before they do anything else."""
    events: list[TokenEvent] = []
    for slot in sorted(slots):
        source, target, _ = state.history(slot)
        totals, used = state.received[slot].tolist(), float(state.target_info[slot])
        for read, token in enumerate(source, 1):
            info = totals[read] - totals[read - 1]
            after = (read, len(target), totals[read], used)
            events.append(TokenEvent(slot, READ, token, info, *after))
    return events
