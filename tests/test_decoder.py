"""The batched decoder against decoding without caches, sentence by sentence."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.engines import RejectOddTokens, restless, sentences
from tests.oracle import brute_force_candidates, dial_near, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import SYSTEMS, build_system
from waitinfo.text.special import BOS, EOS
from waitinfo.translation.decoding import BeamDecoder


@pytest.mark.parametrize("ending", ["guard", "allow"])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("name", SYSTEMS)
def test_equals_uncached_decoding(tiny_model, name: str, k: float, ending: str) -> None:
    system = build_system(name)
    model = restless(tiny_model(seed=3, **system.model_defaults))
    k = dial_near(system, k)
    sources = sentences(12)
    found = Decoder(model, system, ending, slots=5).decode(sources, k)
    expected = uncached_decodes(model, system, sources, [k] * len(sources), ending == "guard")
    for source, (tokens, path), hypothesis in zip(sources, expected, found, strict=True):
        assert hypothesis.tokens == [t for t in tokens if t != EOS]
        assert hypothesis.path == path
        assert hypothesis.ended == (tokens[-1] == EOS)
        assert hypothesis.source_length == len(source) + 1


def test_systems_that_decide_after_the_step(tiny_model) -> None:
    model, system = restless(tiny_model(seed=5)), RejectOddTokens()
    sources = sentences(10, seed=2)
    found = Decoder(model, system).decode(sources, 1)
    expected = uncached_decodes(model, system, sources, [1] * len(sources))
    for source, (tokens, path), hypothesis in zip(sources, expected, found, strict=True):
        assert (hypothesis.tokens, hypothesis.path) == ([t for t in tokens if t != EOS], path)
        incomplete = [t for t, g in zip(tokens, path, strict=True) if g <= len(source)]
        assert all(token % 2 == 0 for token in incomplete)


def test_guard_never_ends_before_the_source(tiny_model) -> None:
    model = restless(tiny_model(seed=3))
    system = build_system("wait-k")
    sources = sentences(40)
    guarded = Decoder(model, system, "guard").decode(sources, 1)
    allowed = Decoder(model, system, "allow").decode(sources, 1)
    assert not any(h.stopped_early for h in guarded if h.ended)
    assert any(h.stopped_early for h in allowed), "the test needs a model that ends early"


def test_wait_info_with_infos_one_is_wait_k(tiny_model) -> None:
    model = restless(tiny_model(seed=3, info="attention", source_info="one", target_info="one"))
    sources = sentences(20)
    for k in (1, 2, 4):
        by_info = Decoder(model, build_system("wait-info", {"floor": False})).decode(sources, k)
        by_lag = Decoder(model, build_system("wait-k")).decode(sources, k)
        assert [(h.tokens, h.path) for h in by_info] == [(h.tokens, h.path) for h in by_lag]


def test_a_higher_dial_never_reads_less(tiny_model) -> None:
    """For the same tokens, lag grows with K; for other tokens, that of the first WRITE does."""
    model = tiny_model(seed=1, info="attention")
    system = build_system("wait-info")
    sources = sentences(20)
    first = [[h.path[0] for h in Decoder(model, system).decode(sources, k)] for k in (0, 1, 3, 6)]
    for lower, higher in itertools.pairwise(first):
        assert all(a <= b for a, b in zip(lower, higher, strict=True))
    assert sum(first[0]) < sum(first[-1])


def test_infos_equal_those_of_the_model(tiny_model) -> None:
    model = restless(tiny_model(seed=3, info="attention"))
    source = [5, 6, 7, 8]
    hypothesis = Decoder(model, build_system("wait-info")).decode([source], 2)[0]
    expected = model.embed_source(torch.tensor([source])).info[0]
    assert hypothesis.source_info == pytest.approx(expected.tolist(), abs=1e-6)
    written = model.embed_target(torch.tensor([[BOS, *hypothesis.tokens]])).info[0, 1:]
    assert hypothesis.target_info == pytest.approx(written.tolist(), abs=1e-6)


def test_unknown_ending(tiny_model) -> None:
    with pytest.raises(WaitinfoError, match="unknown ending 'never'"):
        Decoder(tiny_model(), build_system("full"), "never")


def brute_force_beam(model, source: list[int], width: int, penalty: float) -> list[int]:
    ended, beams = brute_force_candidates(model, source, width, penalty)
    return max(ended, key=lambda c: c[0])[1] if ended else beams[0][1]


@torch.no_grad()
@pytest.mark.parametrize("width", [2, 4])
def test_beam_search_equals_brute_force(tiny_model, width: int) -> None:
    model = restless(tiny_model(seed=3, encoder="bidirectional"))
    sources = sentences(6, seed=4)
    found = BeamDecoder(model, width).decode(sources)
    for source, hypothesis in zip(sources, found, strict=True):
        assert hypothesis.tokens == brute_force_beam(model, source, width, 1.0)


@torch.no_grad()
@pytest.mark.usefixtures("loops_are_not_cut")
def test_beam_of_one_is_greedy(tiny_model) -> None:
    model = restless(tiny_model(seed=3, encoder="bidirectional"))
    sources = sentences(10, seed=4)
    greedy = Decoder(model, build_system("full")).decode(sources, 1)
    beam = BeamDecoder(model, 1).decode(sources)
    assert [h.tokens for h in greedy] == [h.tokens for h in beam]
