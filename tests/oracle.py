"""The paper's formulas written out literally, and a decoder without any cache.

Nothing here shares code with what it checks, except the model's own layers in the decoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from waitinfo.model import Transformer
from waitinfo.systems import Standing, Step, System
from waitinfo.systems.moe_wait_k import MoEWaitK
from waitinfo.text.batches import Batch
from waitinfo.text.tokenizer import BOS, EOS, PAD


def batch_of(pairs: list[tuple[list[int], list[int]]], pad_to: int = 0) -> Batch:
    """Token lists as a batch, optionally padded far beyond need."""
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
    """Eq. 7-8 for one head of one sentence: q, k, v [T, d], info [T]."""
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
    """Eq. 9-10 for one head: softmax, then scale by 2 - |difference|, then renormalise."""
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
    """Algorithm 1 by hand: read until the source's info is K above that of the tokens written."""
    path = []
    read = 1
    for i in range(len(target_info) + 1):
        while read < n and sum(source_info[:read]) < sum(target_info[:i]) + k:
            read += 1
        while floor and read < min(n, i + 2):
            read += 1
        path.append(read)
    return path


def dial_near(system: System, k: float) -> float:
    """A dial value in the system's range that grows with k."""
    dial = system.dial
    if dial is None or math.isinf(dial.maximum):
        return k
    return dial.minimum + (dial.maximum - dial.minimum) * k / (k + 2)


@torch.no_grad()
def uncached_decode(
    model: Transformer, system: System, source: list[int], k: float, guard: bool = True
) -> tuple[list[int], list[int]]:
    """Greedy decoding of one sentence that encodes and decodes everything anew at every step.

    Only the tokens read so far are ever shown to the model. Returns the tokens written, with
    end-of-sentence, and the path.
    """
    tokens = [*source, EOS]
    read, written, path, seen = 0, [], [], []
    while True:
        complete = read == len(tokens)
        standing = _standing(model, tokens[:read], written, complete, k)
        within = len(written) < 2 * read + 10
        if complete and not within:
            return written, path
        if read == 0 or not (complete or (bool(system.ready(standing)[0]) and within)):
            read += 1
            continue
        sees = _seen_by_heads(model, system, standing)
        prefixes = [read] * (len(written) + 1) if system.fresh_past else [*path, read]
        step = _uncached_step(model, tokens[:read], written, prefixes, [*seen, sees], k)
        token = int(step.tokens)
        accepted = complete or bool(system.accept(standing, step)[0])
        if not accepted or (guard and token == EOS and not complete):
            read += 1
            continue
        written.append(token)
        path.append(read)
        seen.append(sees)
        if token == EOS:
            return written, path


def _standing(
    model: Transformer, read: list[int], written: list[int], complete: bool, k: float
) -> Standing:
    source_info = target_info = torch.zeros(1, dtype=torch.float64)
    if model.source_info is not None:
        if read:
            info = model.embed_source(torch.tensor([read])).info
            source_info = info.double().sum(-1)
        info = model.embed_target(torch.tensor([[BOS, *written]])).info
        target_info = info[:, 1:].double().sum(-1)
    return Standing(
        k=torch.tensor([float(k)], dtype=torch.float64),
        read=torch.tensor([len(read)]),
        written=torch.tensor([len(written)]),
        complete=torch.tensor([complete]),
        source_info=source_info,
        target_info=target_info,
    )


def _seen_by_heads(model: Transformer, system: System, standing: Standing) -> list[int] | None:
    """Source tokens each head sees at the next target position, where they are not all alike."""
    if not isinstance(system, MoEWaitK):
        return None
    # An expert is as far behind wait-k as its own lag is below k, and reads on as wait-k does.
    read, written, k = int(standing.read), int(standing.written), int(standing.k)
    further = max(0, read - (k + written))
    lags = system.lags(model.config.heads)
    return [min(read, min(lag, k) + written + further) for lag in lags]


def _uncached_step(
    model: Transformer,
    read: list[int],
    written: list[int],
    path: list[int],
    seen: list[list[int] | None],
    k: float,
) -> Step:
    """The next token, with every earlier one computed anew over the prefix that path gives it."""
    source = model.embed_source(torch.tensor([read]))
    encoded = model.encode(source, torch.tensor([len(read)]))
    target = model.embed_target(torch.tensor([[BOS, *written]]))
    dial, visible, everything = torch.tensor([float(k)]), torch.tensor([path]), None
    if seen[0] is not None:
        visible, everything = torch.tensor([seen]).transpose(1, 2), visible  # [1, H, T], [1, T]
    decoded = model.decode(target, encoded, visible, dial, everything, streaming=True)
    logits = model.logits(decoded.states[:, -1])
    logits[:, [PAD, BOS]] = -torch.inf
    head = model.write_head
    write = None if head is None else decoded.states[:, -1] @ head.weight[0] + head.bias
    return Step(logits.argmax(-1), logits, decoded.extras, write)
