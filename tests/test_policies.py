"""Policies for any model: each rule in plain numbers, every prefix decoded again from scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import tiny_config
from tests.engines import Judge, random_head, restless, sentences
from tests.oracle import Unfinished, batch_of, literal_weights, uncached_decodes
from tests.streams import toy_model
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.recorded import recordable
from waitinfo.systems import PolicyState, System, build_system
from waitinfo.systems.gma import GMA
from waitinfo.systems.policy import is_mark
from waitinfo.systems.veto import Head
from waitinfo.text.special import BOS, EOS, PAD

pytestmark = pytest.mark.usefixtures("loops_are_not_cut")

Path = Sequence[int]
Rule = Callable[["Begun"], bool]


class Begun:
    """A translation that has begun; what it asks the model is computed from nothing."""

    def __init__(self, model: Transformer, source: list[int]) -> None:
        self.model, self.tokens = model, [*source, EOS]
        self.read, self.written, self.path = 1, [], []
        self.least = 0  # tokens to read before the next attempt
        self.rereads = model.config.encoder == "bidirectional"

    @torch.no_grad()
    def _decode(self, read: int) -> torch.Tensor:
        """The state of the next token, if its position sees so much of what was read.

        If the encoder sees both directions: of a sentence that consists of it.
        """
        seen, path = self.tokens[: self.read], [*self.path, read]
        if self.rereads:
            seen = self.sentence(read)
            path = [len(seen)] * len(path)
        source = self.model.embed_source(torch.tensor([seen]))
        encoded = self.model.encode(source, torch.tensor([len(seen)]))
        target = self.model.embed_target(torch.tensor([[BOS, *self.written]]))
        return self.model.decode(target, encoded, torch.tensor([path])).states[0, -1]

    def state(self, read: int) -> list[float]:
        return self._decode(read).tolist()

    @torch.no_grad()
    def probabilities(self, read: int) -> dict[int, float]:
        """Of the next token."""
        scores = self.model.logits(self._decode(read)).tolist()
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
        total = [sum(column) for column in zip(*heads, strict=True)][: now.read]
        return now.read > f and total.index(max(total)) < now.read - f

    return rule


def sure(least: float) -> Rule:
    return lambda now: max(now.probabilities(now.read).values()) >= least


Sees = Callable[["Begun", list[float]], bool]


def agrees(now: Begun, _: list[float]) -> bool:
    return now.read > 1 and now.best(now.read) == now.best(now.read - 1)


def judged(head: Head, risk: float) -> Sees:
    """The head's arithmetic, number by number. After a risk above 0.5, one attempt is left out."""
    weights = {name: value.tolist() for name, value in vars(head).items()}

    def sees(now: Begun, numbers: list[float]) -> bool:
        assert now.read >= now.least
        shares = sorted(now.probabilities(now.read).values())
        inputs = [*now.state(now.read), shares[-1], shares[-2], *numbers]
        rows = [*weights["from_states"], *weights["from_numbers"]]
        total = weights["out_bias"][0]
        for unit, bias in enumerate(weights["bias"]):
            hidden = bias + sum(x * row[unit] for x, row in zip(inputs, rows, strict=True))
            total += max(0.0, hidden) * weights["out"][unit]
        found = 1 / (1 + math.exp(-total))
        now.least = now.read + 1 + (found > 0.5)
        return found <= risk

    return sees


def vetoed(
    k: float, rate: float, keep: float, most: float, info: bool, certain: Sees = agrees
) -> Rule:
    """Attempts from k on. Its memory is worked out again from the path that it has written."""

    def amounts(now: Begun, written: int, read: int) -> tuple[float, float]:
        source = now.model.embed_source(torch.tensor([now.tokens[:read]])).info
        target = now.model.embed_target(torch.tensor([[BOS, *now.written[:written]]])).info
        return source.sum().item(), target.sum().item() - 1

    def margin(now: Begun, written: int, read: int) -> float:
        received, used = float(read), float(written)
        if info:
            received, used = amounts(now, written, read)
        return received - rate * used - k

    def rule(now: Begun) -> bool:
        written = len(now.written)
        spare = margin(now, written, now.read)
        kept = margin(now, written - 1, now.path[-1]) if written else 0
        if spare < 0 or spare < keep * kept or now.read < max(now.least, written + 2):
            return False
        received, used = amounts(now, written, now.read) if info else (0.0, 0.0)
        begin = 1 / (1 + now.read), 1 / (1 + written)
        lag = now.read - written
        numbers = [spare, kept, received - used, lag, now.read, written, *begin]
        return certain(now, numbers) or spare >= most

    return rule


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
        now.least = 0
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
    ("confidence", {}, 0.2, sure(0.2)),
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
    check_rule(model, with_words(build_system(name, options)), k, rule, guard, name != "wait-k")


def check_rule(
    model: Transformer, system: System, k: float, rule: Rule, guard: bool, waits: bool = True
) -> None:
    sources = sentences(6, seed=8)
    found = Decoder(model, system, "guard" if guard else "allow").decode(sources, k)
    lags = set()
    for source, hypothesis in zip(sources, found, strict=True):
        tokens, path = by_brute_force(model, source, rule, guard)
        assert (hypothesis.tokens, hypothesis.path) == ([t for t in tokens if t != EOS], path)
        lags |= {g - i for i, g in enumerate(path) if g <= len(source)}
    if waits:
        assert len(lags) > 1, "the test needs a model with which the policy waits and writes"


class Whole(System):
    """Writes as many words as were read whole."""

    name = "whole-words"
    asks = ("source_words", "target_words")

    def ready(self, state: PolicyState) -> torch.Tensor:
        sides = zip(state.source_words, state.target_words, strict=True)
        return torch.tensor([len(target) < len(source) for source, target in sides])


def test_words_are_those_of_the_vocabulary() -> None:
    loaded = replace(toy_model(), system=Whole())
    model, system, tokenizer = loaded.model, loaded.system, loaded.vocabulary.source
    sources = [tokenizer.encode(text) for text in ("ba be bi bododu", "dadedi do.", "du")]
    found = Decoder(model, system).decode(sources, 1)
    expected = uncached_decodes(model, system, sources, [1] * len(sources))
    assert [(h.tokens, h.path) for h in found] == [
        ([token for token in tokens if token != EOS], path) for tokens, path in expected
    ]
    assert not recordable(model, system), "words are made on the host"
    with pytest.raises(WaitinfoError, match="whole-words asks for words; call its prepare"):
        Decoder(model, Whole()).decode(sources, 1)


def test_punctuation_is_found_in_the_vocabulary() -> None:
    tokenizer = toy_model().vocabulary.source
    full_stop = tokenizer.encode("ba.")[-1]
    assert is_mark(tokenizer, full_stop) and not is_mark(tokenizer, tokenizer.encode("ba")[0])
    assert not is_mark(tokenizer, EOS) and not is_mark(tokenizer, tokenizer.token("▁"))


class AskingGMA(GMA):
    name = "asking-gma"
    asks = ("attention",)


@pytest.mark.parametrize(
    ("make", "config", "message"),
    [
        (lambda: build_system("alignatt", {"layer": 3}), {}, "layer 3: the decoder has 2 layers"),
        (lambda: build_system("alignatt", {"layer": -1}), {}, "system.layer -1: must be 0 or more"),
        (lambda: build_system("alignatt"), {"cross_attention": "gma"}, "alignatt requires plain"),
        (lambda: build_system("wait-info"), {"encoder": "bidirectional"}, "requires a causal enc"),
        (AskingGMA, {"cross_attention": "gma"}, "gma: asking-gma asks for attention or the step"),
    ],
)
def test_wrong_combinations_are_refused(make: Callable, config: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        make().check_model(tiny_config(**config))


@pytest.mark.parametrize(
    "kind", [{"info": "attention"}, {"info": "none"}, {"encoder": "bidirectional"}]
)
@pytest.mark.parametrize(
    ("rate", "keep", "sooner", "later"), [(1.0, 0.5, 4, 1), (1.2, 0.85, 1.5, 0.5), (1.0, 0, 0, 1)]
)
def test_veto_equals_brute_force(
    tiny_model, kind: dict, rate: float, keep: float, sooner: float, later: float
) -> None:
    """Over wait-info, and over wait-k for a model without info."""
    model = restless(tiny_model(seed=5, **kind))
    options = {"rate": rate, "keep": keep, "sooner": sooner, "later": later}
    rule = vetoed(1.0, rate, keep, sooner + later, model.source_info is not None)
    system = build_system("veto", options)
    check_rule(model, system, 1.0 + sooner, rule, guard=True, waits=sooner + later > 1)


@pytest.mark.parametrize("kind", [{"info": "attention"}, {"encoder": "bidirectional"}])
def test_a_head_equals_brute_force(tiny_model, kind: dict) -> None:
    model = restless(tiny_model(seed=5, **kind))
    system, rule = (
        Judge(),
        vetoed(1.0, 1.0, 0.5, 5.0, model.source_info is not None, judged(random_head(), 0.4)),
    )
    check_rule(model, system, 3.0, rule, guard=True)


@pytest.mark.parametrize("means", [{}, {"source_mean": 1.0, "target_mean": 1.0}])
def test_veto_in_a_window_that_has_moved_on(means: dict) -> None:
    """Nothing is kept, what stayed counts once, whatever the rate is, and there is no floor."""
    system = build_system("veto", {"rate": 1.5, "keep": 1.0, "sooner": 0.0, **means})
    cases = [  # written, remembered, what must be received beyond K, and whether more is kept
        (6, (2.0, 5.0, 0.0), 9.0, 2.0),
        (4, (2.0, 9.0, 0.0), 4.0, 0.0),
        (6, (2.0, 5.0, 4.0), 7.0, 0.0),
        (6, (2.0, 9.0, 4.0), 6.0, 0.0),
        (0, (2.0, 9.0, 4.0), 0.0, 2.0),
    ]
    for written, memory, needed, kept in cases:
        for more in (-0.5, 0.0, kept - 0.5, kept):
            received = 3 + needed + more
            read = received if means else written + 2 * (kept > 0)
            given = (3.0, read, written, False, received, float(written))
            state = PolicyState(*(np.array([value]) for value in given))
            state.asked = {"memory": np.array([memory])}
            assert system.ready(state).item() == (more >= kept), (written, memory, more)


def test_veto_trains_without_info_along_wait_k() -> None:
    """A rate of 1.25 reads one token more after every four, and the floor reads two at first."""
    batch = batch_of([([5] * 9, [6] * 9), ([5, 6], [7] * 5)])
    system = build_system("veto", {"rate": 1.25})
    system.check_model(tiny_config(info="none"))
    path = system.path(batch, None, None, 1.0)
    assert path[0].tolist() == [2, 3, 4, 5, 6, 8, 9, 10, 10, 10]
    assert path[1].tolist() == [2] + [3] * 9
