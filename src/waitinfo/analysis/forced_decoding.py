"""A model that is given the translations: the info of every token, and its attention weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import SelfAttention, attend, merge_heads, split_projection
from waitinfo.model.integers.in_torch import in_torch
from waitinfo.model.transformer import Transformer
from waitinfo.progress import Progress, Silent
from waitinfo.text.special import BOS, EOS, PAD
from waitinfo.trained.saving import LoadedModel

BATCH_TOKENS = 8192  # padded
ATTENTIONS = ("encoder", "decoder", "cross")
ATTENTION_TOKENS = 2048  # padded; a layer has a matrix of weights for each head


def require_info(loaded: LoadedModel, what: str) -> None:
    if loaded.model.source_info is None:
        raise WaitinfoError(
            f"--what {what}: requires info, which this {loaded.system.name} model does not have; "
            "train with model.info=attention"
        )


def padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """[B, T], padded on the right."""
    width = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], device=device)


def groups(lengths: Sequence[int], tokens: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """Indices of sentences of similar length, with a bounded number of padded tokens in a group."""
    waiting: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if waiting and (len(waiting) + 1) * lengths[index] > tokens:
            yield waiting
            waiting = []
        waiting.append(index)
    if waiting:
        yield waiting


@dataclass(frozen=True)
class PairInfo:
    """Info of the tokens of a sentence pair, without special tokens."""

    source: list[float]
    target: list[float]
    end: float  # of the source's end-of-sentence


@torch.inference_mode()
def pair_infos(
    loaded: LoadedModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    progress: Progress | None = None,
) -> list[PairInfo]:
    """Info of every token of pairs of token lists, as the policy sees it."""
    progress = progress or Silent()
    model = in_torch(loaded.model)
    found: dict[int, PairInfo] = {}
    progress.stage("info", len(sources))
    lengths = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    for group in groups(lengths):
        source = model.embed_source(padded([[*sources[i], EOS] for i in group], model.device)).info
        target = model.embed_target(padded([[BOS, *targets[i]] for i in group], model.device)).info
        assert source is not None and target is not None
        for i, left, right in zip(group, source.tolist(), target.tolist(), strict=True):
            n, m = len(sources[i]), len(targets[i])
            found[i] = PairInfo(left[:n], right[1 : m + 1], left[n])
        progress.advance(len(found))
    return [found[i] for i in range(len(sources))]


@dataclass(frozen=True)
class Weights:
    """Attention of one layer: [B, H, T, S], the rows sum to 1."""

    kind: str  # one of ATTENTIONS
    layer: int
    biased: Tensor  # with the bias, as the model computes it
    plain: Tensor  # the same scores without info; unseen positions are masked in both


Observer = Callable[[Weights], None]


@contextmanager
def observed(model: Transformer, observer: Observer) -> Iterator[None]:
    """Report the weights of every attention to an observer while the context is open."""
    places: list[tuple[str, int, Any]] = []
    for number, layer in enumerate(model.encoder_layers):
        places.append(("encoder", number, layer.attention))
    for number, layer in enumerate(model.decoder_layers):
        if isinstance(layer.attention, SelfAttention):  # not a recurrent unit
            places.append(("decoder", number, layer.attention))
        places.append(("cross", number, layer.cross))
    before = [(module, module.attend) for _, _, module in places]
    try:
        for kind, number, module in places:
            make = _watch_cross if kind == "cross" else _watch_self
            module.attend = make(kind, number, observer)
        yield
    finally:
        for module, original in before:
            module.attend = original


def _report(
    kind: str, layer: int, observer: Observer, queries: Tensor, keys: Tensor, bias: Tensor | None
) -> None:
    scores = (queries.float() @ keys.float().transpose(-1, -2)) / math.sqrt(queries.shape[-1])
    if bias is None:  # plain causal attention
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        bias = torch.zeros_like(scores[:1, :1]).masked_fill(future, -torch.inf)
    hidden = torch.isneginf(bias)
    plain = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    observer(Weights(kind, layer, (scores + bias.float()).softmax(-1), plain))


def _watch_self(kind: str, layer: int, observer: Observer) -> Any:
    def watching(projected: Tensor, heads: int, bias: Tensor | None, dropout: float) -> Tensor:
        queries, keys, values = split_projection(projected, heads)
        _report(kind, layer, observer, queries, keys, bias)
        return merge_heads(attend(queries, keys, values, bias, bias is None, dropout))

    return watching


def _watch_cross(kind: str, layer: int, observer: Observer) -> Any:
    def watching(
        queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor, causal: bool, dropout: float
    ) -> Tensor:
        _report(kind, layer, observer, queries, keys, bias)
        return attend(queries, keys, values, bias, causal, dropout)

    return watching


@dataclass(frozen=True)
class ForcedGroup:
    """A group of sentence pairs that the model decodes as given."""

    index: list[int]  # of each row, in the order of the sentences
    source: Tensor  # [B, S] with end-of-sentence
    target: Tensor  # [B, T] begin-of-sequence first
    visible: Tensor  # [B, T] source tokens that each row sees
    source_lengths: Tensor  # [B] with end-of-sentence
    target_lengths: Tensor  # [B] with begin-of-sequence
    source_info: Tensor | None  # [B, S]
    target_info: Tensor | None  # [B, T]


@torch.inference_mode()
def decode_given(
    loaded: LoadedModel,
    sources: Sequence[list[int]],
    targets: Sequence[list[int]],
    observer: Callable[[ForcedGroup, Weights], None],
    paths: Sequence[Sequence[int]] | None = None,
) -> Iterator[ForcedGroup]:
    """Decode pairs of token lists, and yield each group of them when it is done.

    observer: gets the weights of every attention, one layer after the other; those of a long
        sentence are too large to be kept together.
    paths: source tokens read before each target token and end-of-sentence; by default all.
    """
    model = in_torch(loaded.model)
    lengths = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    for index in groups(lengths, ATTENTION_TOKENS):
        source = padded([[*sources[i], EOS] for i in index], model.device)
        target = padded([[BOS, *targets[i]] for i in index], model.device)
        n = torch.tensor([len(sources[i]) + 1 for i in index], device=model.device)
        m = torch.tensor([len(targets[i]) + 1 for i in index], device=model.device)
        visible = n[:, None].expand(target.shape).clone()
        for row, i in enumerate(index):
            if paths is not None:
                read = list(paths[i])[: int(m[row])]
                visible[row, : len(read)] = torch.tensor(read, device=model.device)
        right = model.embed_target(target)
        info = model.embed_source(source).info
        forced = ForcedGroup(index, source, target, visible, n, m, info, right.info)
        with observed(model, partial(observer, forced)):
            encoded = model.encode(model.embed_source(source), n)
            model.decode(right, encoded, visible, streaming=True)
        yield forced


def require_attention(loaded: LoadedModel, what: str) -> None:
    kind = loaded.model.config.cross_attention
    if kind != "plain":
        raise WaitinfoError(
            f"--what {what}: needs plain cross-attention; "
            f"this {loaded.system.name} model has {kind}"
        )
