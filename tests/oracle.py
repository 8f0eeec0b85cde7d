"""The paper's formulas written out literally, and a decoder without caches.

This module shares no code with what it checks, except the model's layers in the decoder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from waitinfo.model import Transformer
from waitinfo.model.batch import Batch
from waitinfo.model.views import Decoded, Memory, SourceView
from waitinfo.systems import PolicyState, Step, System
from waitinfo.systems.interface import LONGEST
from waitinfo.systems.moe_wait_k import MoEWaitK
from waitinfo.text.special import BOS, EOS, PAD


def batch_of(pairs: list[tuple[list[int], list[int]]], pad_to: int = 0) -> Batch:
    """Token lists as a batch, optionally with extra padding."""
    n = max(pad_to, *(len(s) + 1 for s, _ in pairs))
    m = max(pad_to, *(len(t) + 1 for _, t in pairs))
    source = torch.full((len(pairs), n), PAD)
    target_in = torch.full((len(pairs), m), PAD)
    target_out = torch.full((len(pairs), m), PAD)
    for row, (s, t) in enumerate(pairs):
        source[row, : len(s) + 1] = torch.tensor([*s, EOS])
        target_in[row, : len(t) + 1] = torch.tensor([BOS, *t])
        target_out[row, : len(t) + 1] = torch.tensor([*t, EOS])
    return Batch(
        source=source,
        source_lengths=torch.tensor([len(s) + 1 for s, _ in pairs]),
        target_in=target_in,
        target_out=target_out,
        target_lengths=torch.tensor([len(t) + 1 for _, t in pairs]),
        pairs=len(pairs),
        tokens=sum(len(t) + 1 for _, t in pairs),
        longest_source=max(len(s) + 1 for s, _ in pairs),
        lengths=tuple((len(s) + 1, len(t) + 1) for s, t in pairs),
    )


def literal_self_attention(q: Tensor, k: Tensor, v: Tensor, info: Tensor, causal: bool) -> Tensor:
    """Eq. 8-9 for one head of one sentence: q, k, v [T, d], info [T]."""
    length, width = q.shape
    rows = []
    for i in range(length):
        scores = []
        for j in range(i + 1 if causal else length):
            e = (q[i] * k[j]).sum() / math.sqrt(width)
            scores.append(e + (info[i] - 1) if i == j else e)
        beta = torch.softmax(torch.stack(scores), 0)
        rows.append((beta[:, None] * v[: len(scores)]).sum(0))
    return torch.stack(rows)


def literal_cross_attention(
    q: Tensor, k: Tensor, v: Tensor, target_info: Tensor, source_info: Tensor, path: list[int]
) -> Tensor:
    """Eq. 10-11 for one head: softmax, then scale by 2 - |difference|, then renormalise."""
    rows = []
    for i in range(len(q)):
        seen = path[i]
        alpha = torch.softmax(k[:seen] @ q[i] / math.sqrt(q.shape[1]), 0)
        scaled = alpha * (2 - (target_info[i] - source_info[:seen]).abs())
        gamma = scaled / scaled.sum()
        rows.append((gamma[:, None] * v[:seen]).sum(0))
    return torch.stack(rows)


def literal_path(
    source_info: list[float], target_info: list[float], k: float, n: int, floor: bool
) -> list[int]:
    """Algorithm 1: read until the info of the source exceeds that of the written tokens by K."""
    # Not `sum`: since Python 3.12 it rounds otherwise than adding one by one does.
    received, used = (list(accumulate(info, initial=0.0)) for info in (source_info, target_info))
    path = []
    read = 1
    for i in range(len(target_info) + 1):
        while read < n and received[read] < used[i] + k:
            read += 1
        while floor and read < min(n, i + 2):
            read += 1
        path.append(read)
    return path


def dial_near(system: System, k: float) -> float:
    """A dial value in the system's range that grows with k."""
    dial = system.dial
    if dial is None or dial.maximum >= LONGEST:
        return max(k, dial.minimum) if dial else k
    return dial.minimum + (dial.maximum - dial.minimum) * k / (k + 2)


@dataclass(eq=False)
class Unfinished:
    """The state of a sentence in `uncached_decodes`."""

    source: list[int]  # with end-of-sentence
    k: float
    read: int = 0
    written: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)
    seen: list[list[int] | None] = field(default_factory=list)  # per head, at each position
    least: int = 0  # source tokens before the next attempt
    memory: list[float] | None = None  # None: as the system begins

    @property
    def complete(self) -> bool:
        return self.read == len(self.source)

    @property
    def within(self) -> bool:
        return len(self.written) < 2 * self.read + 10

    @property
    def ended(self) -> bool:
        return self.written[-1:] == [EOS] or (self.complete and not self.within)


def uncached_decode(
    model: Transformer, system: System, source: list[int], k: float, guard: bool = True
) -> tuple[list[int], list[int]]:
    """Greedy decoding of one sentence; see `uncached_decodes`."""
    return uncached_decodes(model, system, [source], [k], guard)[0]


@torch.no_grad()
def uncached_decodes(
    model: Transformer,
    system: System,
    sources: list[list[int]],
    dials: list[float],
    guard: bool = True,
) -> list[tuple[list[int], list[int]]]:
    """Greedy decoding that recomputes everything at every step.

    The model sees only the tokens read so far. To save time, sentences with equal numbers of read
    and written tokens are computed together, without padding. Returns the tokens written, with
    end-of-sentence, and the path of each sentence.
    """
    rows = [Unfinished([*s, EOS], k) for s, k in zip(sources, dials, strict=True)]
    return uncached_rest(model, system, rows, guard)


@torch.no_grad()
def uncached_rest(
    model: Transformer, system: System, rows: list[Unfinished], guard: bool = True
) -> list[tuple[list[int], list[int]]]:
    """Finish translations that may have begun."""
    for row in rows:
        begun = [
            Unfinished(row.source, row.k, read, row.written[:i]) for i, read in enumerate(row.path)
        ]
        row.seen = [_seen_by_heads(model, system, start) for start in begun]
    going = rows
    while going := [row for row in going if not row.ended]:
        groups: dict[tuple[int, int, bool], list[Unfinished]] = {}
        for row in going:
            groups.setdefault((row.read, len(row.written), row.complete), []).append(row)
        for group in groups.values():
            writers = _write(model, system, group, guard)
            for row in group:
                row.read += row not in writers
    return [(row.written, row.path) for row in rows]


def _write(
    model: Transformer, system: System, group: list[Unfinished], guard: bool
) -> list[Unfinished]:
    """Write the next token of the rows that are ready; return these rows."""
    if group[0].read == 0:
        return []
    complete = group[0].complete
    if not complete:
        ready = system.ready(_policy_state(model, system, group)).tolist()
        group = [
            row
            for row, now in zip(group, ready, strict=True)
            if now and row.within and row.read >= row.least
        ]
    if not group:
        return []
    sees = [_seen_by_heads(model, system, row) for row in group]
    state = _policy_state(model, system, group)
    step = _uncached_step(model, system, group, sees, state)
    accepted = [True] * len(group)
    if not complete:
        accepted = system.accept(state, step).tolist()
    memories = system.remember(state, step).tolist() if system.memory else [None] * len(group)
    waits = system.wait(state, step).tolist()
    writers = []
    decided = zip(group, step.tokens.tolist(), accepted, sees, memories, waits, strict=True)
    for row, best, now, heads, memory, wait in decided:
        row.least = row.read + wait
        looping = literal_loop([*row.written, best], row.source[: row.read])
        token = EOS if looping else best
        if now and (complete or not (guard or looping) or token != EOS):
            row.written.append(token)
            row.path.append(row.read)
            row.seen.append(heads)
            row.memory, row.least = memory, 0
            writers.append(row)
    return writers


def literal_loop(written: list[int], source: list[int]) -> bool:
    """Whether the end of `written` is a loop: every n-gram is tried, and counted by comparing."""
    for length in range(1, 33):
        gram = written[-length:]
        times = 0
        while len(gram) == length and written[-(times + 1) * length :][:length] == gram:
            times += 1
            if (times + 1) * length > len(written):
                break
        if times < 3 or times <= literal_repeats(source):
            continue
        # A part of the n-gram before the first whole one counts as tokens, not as a time.
        stretch = times * length
        while stretch < len(written) and written[-1 - stretch] == written[-1 - stretch + length]:
            stretch += 1
        if stretch >= 12:
            return True
    return False


def literal_repeats(source: list[int]) -> int:
    """How often an n-gram stands in a row; one that is cut short counts after two whole ones."""
    most = 1
    for start in range(len(source)):
        for length in range(1, 33):
            gram = source[start : start + length]
            rest = source[start:]
            whole = 0
            while len(gram) == length and rest[:length] == gram:
                whole, rest = whole + 1, rest[length:]
            if whole >= 2:
                most = max(most, whole + (bool(rest) and rest[0] == gram[0]))
    return most


def _policy_state(model: Transformer, system: System, rows: list[Unfinished]) -> PolicyState:
    source_info = target_info = torch.zeros(len(rows), dtype=torch.float64)
    if model.source_info is not None:
        prefix = model.embed_source(torch.tensor([row.source[: row.read] for row in rows]))
        info = prefix.info
        if info is None:  # it depends on the context: the prefix is encoded again
            info = model.encode(prefix, torch.tensor([row.read for row in rows])).info
        source_info = info.double().sum(-1)
        info = model.embed_target(torch.tensor([[BOS, *row.written] for row in rows])).info
        target_info = info[:, 1:].double().sum(-1)
    return PolicyState(
        k=torch.tensor([row.k for row in rows], dtype=torch.float64),
        read=torch.tensor([row.read for row in rows]),
        written=torch.tensor([len(row.written) for row in rows]),
        complete=torch.tensor([row.complete for row in rows]),
        source_info=source_info,
        target_info=target_info,
        asked=_asked_of_state(system, rows),
    )


def _asked_of_state(system: System, rows: list[Unfinished]) -> dict[str, Any]:
    every: dict[str, Any] = {
        "source": torch.tensor([row.source[: row.read] for row in rows]),
        "target": torch.tensor([row.written for row in rows], dtype=torch.long),
    }
    if system.vocabulary is not None:
        both = system.vocabulary.source, system.vocabulary.target
        sides = [row.source[: row.read] for row in rows], [row.written for row in rows]
        for name, tokenizer, side in zip(
            ("source_words", "target_words"), both, sides, strict=True
        ):
            every[name] = [tokenizer.decode(tokens).split() for tokens in side]
    asked = {name: every[name] for name in system.asks if name in every}
    if system.memory:
        memories = [row.memory or list(system.memory) for row in rows]
        asked["memory"] = torch.tensor(memories, dtype=torch.float64)
    return asked


def _seen_by_heads(model: Transformer, system: System, row: Unfinished) -> list[int] | None:
    """Source tokens that each head sees at the next target position, if heads differ."""
    if not isinstance(system, MoEWaitK):
        return None
    # An expert lags behind wait-k by the amount that its own lag is below k.
    read, written, k = row.read, len(row.written), int(row.k)
    further = max(0, read - (k + written))
    lags = system.lags(model.config.heads)
    return [min(read, min(lag, k) + written + further) for lag in lags]


def _uncached_step(
    model: Transformer,
    system: System,
    rows: list[Unfinished],
    sees: list[list[int] | None],
    state: PolicyState,
) -> Step:
    """The next token; every earlier token is recomputed with the prefix it was written with."""
    decoded, asked = _uncached_states(model, system, rows, sees), {}
    logits = _logits(model, decoded)
    if "logits" in system.asks:
        asked["logits"] = logits
    if "two_best" in system.asks:
        asked["two_best"] = logits.double().softmax(-1).topk(2).values
    if "states" in system.asks:
        asked["states"] = decoded.states[:, -1]
    if "attention" in system.asks:
        asked["attention"] = torch.stack([literal_weights(model, system, row) for row in rows])
    if "before" in system.asks:
        shorter = [
            replace(row, read=int(earlier))
            for row, earlier in zip(rows, system.earlier(state).tolist(), strict=True)
        ]
        asked["before"] = torch.tensor(
            [
                -1 if row.read < 1
                else int(_logits(model, _uncached_states(model, system, [row], [None])).argmax())
                for row in shorter
            ]
        )  # fmt: skip
    states = decoded.states[:, -1]
    if not isinstance(model, Transformer):  # with integers: its head has the test of its own
        write = model.write_logits(states)
    elif (head := model.write_head) is not None:
        write = states.to(head.weight) @ head.weight[0] + head.bias
    else:
        write = None
    return Step(logits.argmax(-1), decoded.extras, write, asked)


def _logits(model: Transformer, decoded: Decoded) -> Tensor:
    logits = model.logits(decoded.states[:, -1])
    logits[:, [PAD, BOS]] = -torch.inf
    return logits


def _uncached_states(
    model: Transformer,
    system: System,
    rows: list[Unfinished],
    sees: list[list[int] | None],
    **options: bool,
) -> Decoded:
    everything_read = [max([row.read, *row.path]) for row in rows]
    source = model.embed_source(
        torch.tensor([row.source[:n] for row, n in zip(rows, everything_read, strict=True)])
    )
    encoded = model.encode(source, torch.tensor(everything_read))
    target = model.embed_target(torch.tensor([[BOS, *row.written] for row in rows]))
    paths = [
        [row.read] * (len(row.path) + 1) if system.fresh_past else [*row.path, row.read]
        for row in rows
    ]
    dial = torch.tensor([float(row.k) for row in rows])
    visible, everything = torch.tensor(paths), None
    if sees[0] is not None:
        by_heads = torch.tensor([[*row.seen, now] for row, now in zip(rows, sees, strict=True)])
        visible, everything = by_heads.transpose(1, 2), visible  # [B, H, T], [B, T]
    return model.decode(target, encoded, visible, dial, everything, streaming=True, **options)


def literal_weights(model: Transformer, system: System, row: Unfinished) -> Tensor:
    """What the next token weighs the source read with, by layer and head: [L, H, S]."""
    if not isinstance(model, Transformer):  # with integers, it rounds its weights
        return _uncached_states(model, system, [row], [None], weigh=True).attention()[0]
    inputs: list[tuple[Tensor, Memory, SourceView]] = []
    hooks = [
        layer.cross.register_forward_pre_hook(lambda _, given: inputs.append(given))
        for layer in model.decoder_layers
    ]
    try:
        _uncached_states(model, system, [row], [None])
    finally:
        for hook in hooks:
            hook.remove()
    source = model.embed_source(torch.tensor([row.source[: row.read]])).info
    target = model.embed_target(torch.tensor([[BOS, *row.written]])).info
    layers = []
    for layer, (x, memory, _) in zip(model.decoder_layers, inputs, strict=True):
        heads, width = memory.keys.shape[1], memory.keys.shape[3]
        queries = layer.cross.queries(x)[0, -1].view(heads, width)
        weights = []
        for head in range(heads):
            alpha = torch.softmax(
                memory.keys[0, head, : row.read] @ queries[head] / math.sqrt(width), 0
            )
            if model.config.info_cross_attention and source is not None and target is not None:
                alpha = alpha * (2 - (target[0, -1] - source[0]).abs())
            weights.append(alpha / alpha.sum())
        layers.append(torch.stack(weights))
    return torch.stack(layers)


# Beam search

Scored = list[tuple[float, list[int]]]


def brute_force_candidates(
    model, source: list[int], width: int, penalty: float
) -> tuple[Scored, Scored]:
    """Beam search with whole passes and Python lists: what ended, and what was going on."""
    beams: Scored = [(0.0, [])]
    ended: Scored = []
    limit = 2 * (len(source) + 1) + 10
    for length in range(1, limit + 1):
        candidates = []
        for total, tokens in beams:
            embedded = model.embed_source(torch.tensor([[*source, EOS]]))
            encoded = model.encode(embedded, torch.tensor([len(source) + 1]))
            target = model.embed_target(torch.tensor([[BOS, *tokens]]))
            visible = torch.full((1, len(tokens) + 1), len(source) + 1)
            states = model.decode(target, encoded, visible).states[:, -1]
            logp = model.logits(states).float().log_softmax(-1)[0]
            candidates += [
                (total + float(p), [*tokens, t]) for t, p in enumerate(logp) if t not in (PAD, BOS)
            ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * width]
        ended += [(s / length**penalty, t[:-1]) for s, t in candidates[:width] if t[-1] == EOS]
        beams = [c for c in candidates if c[1][-1] != EOS][:width]
        if len(ended) >= width:
            break
    return ended, beams


# Edits


def edits(first: list[str], second: list[str]) -> int:
    """Levenshtein distance in words."""
    row = list(range(len(second) + 1))
    for i, word in enumerate(first, 1):
        previous, row = row, [i]
        for j, other in enumerate(second, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other)))
    return row[-1]
