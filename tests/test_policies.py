"""Policies for any model: each rule in plain numbers, every prefix decoded again from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from tests.engines import restless, sentences
from tests.oracle import Unfinished, literal_weights
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import System, build_system
from waitinfo.text.special import BOS, EOS, PAD

pytestmark = pytest.mark.usefixtures("loops_are_not_cut")

Path = Sequence[int]
Rule = Callable[["Begun"], bool]


class Begun:
    """A translation that has begun; what it asks the model is computed from nothing."""

    def __init__(self, model: Transformer, source: list[int]) -> None:
        self.model, self.tokens = model, [*source, EOS]
        self.read, self.written, self.path = 1, [], []
        self.rereads = model.config.encoder == "bidirectional"

    @torch.no_grad()
    def probabilities(self, read: int) -> dict[int, float]:
        """Of the next token, if its position sees so much of what was read.

        If the encoder sees both directions: of a sentence that consists of it.
        """
        seen, path = self.tokens[: self.read], [*self.path, read]
        if self.rereads:
            seen = self.sentence(read)
            path = [len(seen)] * len(path)
        source = self.model.embed_source(torch.tensor([seen]))
        encoded = self.model.encode(source, torch.tensor([len(seen)]))
        target = self.model.embed_target(torch.tensor([[BOS, *self.written]]))
        states = self.model.decode(target, encoded, torch.tensor([path])).states
        scores = self.model.logits(states[0, -1]).tolist()
        shares = {t: math.exp(s) for t, s in enumerate(scores) if t not in (PAD, BOS)}
        return {token: share / sum(shares.values()) for token, share in shares.items()}

    def best(self, read: int) -> int:
        found = self.probabilities(read)
        return max(found, key=lambda token: found[token])

    def sentence(self, read: int) -> list[int]:
        return [token for token in self.tokens[:read] if token != EOS] + [EOS]

    def weights(self) -> torch.Tensor:
        row = Unfinished(self.tokens, 0, self.read, list(self.written), list(self.path))
        if self.rereads:
            read = self.sentence(self.read)
            row = Unfinished(read, 0, len(read), row.written, [len(read)] * len(row.written))
        return literal_weights(self.model, build_system("wait-k"), row)


def agreed(k: int) -> Rule:
    def rule(now: Begun) -> bool:
        if now.read % k or now.read == k:
            return False
        return now.best(now.read) == now.best(now.read - k)

    return rule


def aligned(f: int, layer: int) -> Rule:
    def rule(now: Begun) -> bool:
        layers = [now.weights()[layer - 1]] if layer else list(now.weights())
        heads = [head.tolist() for one in layers for head in one]
        total = [sum(column) for column in zip(*heads, strict=True)]
        return now.read > f and total.index(max(total)) < now.read - f

    return rule


def sure(least: float) -> Rule:
    return lambda now: max(now.probabilities(now.read).values()) >= least


def in_chunk(k: int, marks: set[int], starts: set[int]) -> Rule:
    def rule(now: Begun) -> bool:
        end = words = 0
        for place, token in enumerate(now.tokens[: now.read]):
            words += token in starts
            if words > k:
                end, words = place, 1
            if token in marks:
                end, words = place + 1, 0
        return len(now.written) < end

    return rule


def by_brute_force(
    model: Transformer, source: list[int], rule: Rule, guard: bool
) -> tuple[list[int], list[int]]:
    now = Begun(model, source)
    while True:
        complete = now.read == len(now.tokens)
        may = len(now.written) < 2 * now.read + 10 and rule(now)
        token = now.best(now.read)
        if not complete and (not may or (guard and token == EOS)):
            now.read += 1
            continue
        now.written.append(token)
        now.path.append(now.read)
        if token == EOS or (complete and len(now.written) == 2 * now.read + 10):
            return now.written, now.path


MARKS, STARTS = {7, 19, 30}, set(range(4, 40)) - {7, 9, 12, 19, 25, 31, 38}


def with_words(system: System) -> System:
    """Some of the tiny model's tokens are punctuation, and some go on in a word."""
    for name, tokens in (("marks", MARKS), ("starts", STARTS)):
        setattr(system, name, np.isin(np.arange(40), list(tokens)))
    return system


def behind(k: int) -> Rule:
    return lambda now: now.read >= k + len(now.written)


CASES = [
    ("wait-k", {}, 2, behind(2)),
    ("local-agreement", {}, 1, agreed(1)),
    ("local-agreement", {}, 2, agreed(2)),
    ("alignatt", {}, 1, aligned(1, 0)),
    ("alignatt", {"layer": 1}, 2, aligned(2, 1)),
    ("confidence", {}, 0.25, sure(0.25)),
    ("confidence", {}, 0.15, sure(0.15)),
    ("punctuation", {}, 2, in_chunk(2, MARKS, STARTS)),
    ("punctuation", {}, 9, in_chunk(9, MARKS, STARTS)),
]


KINDS = [
    ({"info": "attention"}, True),
    ({"info": "attention"}, False),
    ({"encoder": "bidirectional", "decoder": "ssru", "norm": "post", "output_bias": True}, True),
    ({"encoder": "bidirectional", "activation": "swish", "positions": "open"}, False),
]


@pytest.mark.parametrize(("kind", "guard"), KINDS)
@pytest.mark.parametrize(("name", "options", "k", "rule"), CASES)
def test_rule_equals_brute_force(
    tiny_model, name: str, options: dict, k: float, rule: Rule, kind: dict, guard: bool
) -> None:
    model = restless(tiny_model(seed=5, **kind))
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    sources = sentences(8, seed=8)
    system = with_words(build_system(name, options))
    found = Decoder(model, system, "guard" if guard else "allow").decode(sources, k)
    lags = set()
    for source, hypothesis in zip(sources, found, strict=True):
        tokens, path = by_brute_force(model, source, rule, guard)
        assert (hypothesis.tokens, hypothesis.path) == ([t for t in tokens if t != EOS], path)
        lags |= {g - i for i, g in enumerate(path) if g <= len(source)}
    if name != "wait-k":
        assert len(lags) > 1, "the test needs a model with which the policy waits and writes"
