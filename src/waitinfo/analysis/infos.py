"""The info of every token of many sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from waitinfo.errors import WaitinfoError
from waitinfo.model.saving import LoadedModel
from waitinfo.progress import Progress, Silent
from waitinfo.text.special import BOS, EOS, PAD

BATCH_TOKENS = 8192  # padded


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
    """Indices of sentences of similar length, at most so many padded tokens in a group."""
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
    model = loaded.model
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
