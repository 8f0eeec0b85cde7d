"""Whole texts in batches, against streams, sentence-wise formulas and brute force."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import tiny_config
from tests.engines import restless, sentences
from tests.integers import integers
from tests.oracle import brute_force_candidates
from tests.streams import lines_of_text, toy_model, toy_tokenizer
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.streaming.engine import NOT_FINITE, TokenEvent
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.session import Session
from waitinfo.streaming.translator import Translator
from waitinfo.streaming.words import WordBuilder
from waitinfo.systems import SYSTEMS, System
from waitinfo.text.special import BOS, EOS, SPECIALS, UNK
from waitinfo.text.tokenizer import Vocabulary
from waitinfo.trained.saving import LoadedModel
from waitinfo.translation import decoding
from waitinfo.translation.beam import BeamSearch
from waitinfo.translation.decoding import Budget, SentenceDecoder, TranslationOptions
from waitinfo.translation.lines import SentenceCutter, translations
from waitinfo.translation.search import GreedySearch, Sampler, combine, mix, sentence_keys, uniform

PIECES = ["ba", "be.", "bi!", "dr.", "3.", "du?)", "…", "\t", " ", "x" * 9, "ü", "\u2581", "…”"]
UNSPACED = ["日本。", "「見。」と", "行！？今", "か\u3099", "z.B日。a.", "東京"]


def joined(loaded: LoadedModel, lines: list[str], options: TranslationOptions, **more) -> list[str]:
    found = [""] * len(lines)
    seen = []
    for line, text, _ in translations(loaded, lines, options, **more):
        found[line] = text
        seen.append(line)
    assert sorted(seen) == list(range(len(lines)))
    return found


def small_dial(system: System) -> float | None:
    """A dial value at which translations begin early."""
    if system.dial is None:
        return None
    return 2.0 if system.dial.maximum > 1 else 0.4


# Lines and sentences


def session_sentences(line: str, limit: int, segment: str) -> list[list[int]] | None:
    """What a stream feeds to the engine; None if a window has to move on."""
    tokenizer = toy_tokenizer()
    segmentation = Segmentation.parse(segment)
    session = Session(Vocabulary(tokenizer, tokenizer), limit, segmentation=segmentation)
    session.add(line)
    session.end()
    found = []
    while (given := session.next_input()) is not None:
        if session.full or session.patience:
            return None
        assert given.complete
        found.append(given.tokens)
        read = len(given.tokens) + 1
        session.record(TokenEvent(0, "WRITE", EOS, 0.0, read, 1, 0.0, 0.0, last=True), 0.0)
    return found


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([*PIECES, *UNSPACED]), max_size=25),
    st.sampled_from([" ", ""]),
    st.integers(1, 12),
    st.sampled_from(["auto", "auto:8", "punctuation", "whole", "none", "pause"]),
)
def test_lines_are_cut_as_in_a_stream(
    pieces: list[str], space: str, limit: int, segment: str
) -> None:
    line = space.join(pieces)
    assert toy_tokenizer().has_bytes
    text = SentenceCutter(toy_tokenizer(), limit, Segmentation.parse(segment), slides=True)
    found = text.encode(["ba.", line, ""])
    assert found[1] == session_sentences(line, limit, segment)
    assert found[2] == []


@settings(max_examples=50)
@given(st.lists(st.integers(SPECIALS, 299) | st.just(UNK), max_size=20))
def test_words_are_joined_as_in_a_stream(tokens: list[int]) -> None:
    tokenizer = toy_tokenizer()
    tokens = [token % len(tokenizer) for token in tokens]
    builder = WordBuilder(tokenizer)
    text = "".join(builder.add(token, token == EOS) for token in [*tokens, EOS])
    assert tokenizer.decode_many([[], tokens]) == ["", text]


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_lines_become_what_a_stream_writes(name: str, precision: str) -> None:
    loaded = toy_model(name)
    model = integers(loaded.model) if precision == "int8" else _single(loaded.model)
    loaded = replace(loaded, model=model)
    k = small_dial(loaded.system)
    lines = lines_of_text()
    expected = Translator(loaded, 10, capacity=16, segment="punctuation").translate(lines, k)
    assert any(expected) and expected[4:6] == ["", ""]
    options = TranslationOptions(k=k, capacity=16, segment="punctuation")
    assert joined(loaded, lines, options, rows=3, window=5) == expected


@pytest.mark.parametrize("segment", ["auto:8", "none:8", "pause"])
@pytest.mark.parametrize("name", ["wait-info", "wait-k", "full"])
def test_text_without_sentence_ends_becomes_what_a_stream_writes(name: str, segment: str) -> None:
    loaded = toy_model(name)
    k = small_dial(loaded.system)
    lines = [*lines_of_text(), "ba be bi bo du " * 6, "ba. " + "be bi bo " * 9]
    expected = Translator(loaded, 12, capacity=16, segment=segment).translate(lines, k)
    options = TranslationOptions(k=k, capacity=16, segment=segment)
    assert joined(loaded, lines, options, rows=3, window=5) == expected
    if loaded.system.simultaneous:
        assert joined(loaded, lines, replace(options, segment="punctuation")) != expected


def _single(model: Transformer) -> Transformer:
    copy = Transformer(model.config).eval()
    copy.load_weights({name: tensor.float() for name, tensor in model.weights().items()})
    return copy


@pytest.mark.parametrize("ending", ["guard", "allow"])
def test_endings(ending: str) -> None:
    loaded = toy_model("wait-k")
    lines = lines_of_text()
    expected = Translator(loaded, 10, ending=ending).translate(lines, 1)
    assert joined(loaded, lines, TranslationOptions(k=1, ending=ending)) == expected


def test_a_line_can_be_one_sentence() -> None:
    loaded = toy_model("full")
    lines = ["ba be. bi bo.", "du"]
    whole = joined(loaded, lines, TranslationOptions(segment="whole"))
    for line, found in zip(lines, whole, strict=True):
        translator = Translator(loaded, 1)
        with translator.stream(segment="whole") as stream:
            stream.push(line)
            stream.finish()
        assert stream.text == found
    assert whole[0] != joined(loaded, lines, TranslationOptions())[0]


# Search


def full_model(seed: int = 3, **changes) -> Transformer:
    torch.manual_seed(seed)
    return restless(Transformer(tiny_config(encoder="bidirectional", **changes)).double().eval())


@torch.no_grad()
def log_probability(model: Transformer, source: list[int], target: list[int]) -> float:
    """log p of target tokens, by one whole pass."""
    encoded = model.encode(
        model.embed_source(torch.tensor([[*source, EOS]])), torch.tensor([len(source) + 1])
    )
    visible = torch.full((1, len(target)), len(source) + 1)
    states = model.decode(
        model.embed_target(torch.tensor([[BOS, *target[:-1]]])), encoded, visible
    ).states
    logp = model.logits(states).log_softmax(-1)[0]
    return float(logp[range(len(target)), target].sum())


@pytest.mark.parametrize("info", ["none", "attention"])
def test_scores_are_log_probabilities(info: str) -> None:
    model, sources = full_model(info=info), sentences(5, seed=4)
    greedy = GreedySearch(model, sources, scores=True).run()
    beam = BeamSearch(model, sources, 3, best=3).run()
    for source, found in zip(sources * 2, [*greedy, *beam], strict=True):
        for candidate in found:
            target = [*candidate.tokens, EOS] if candidate.ended else candidate.tokens
            assert candidate.logp == pytest.approx(log_probability(model, source, target))
            assert candidate.length == len(target)


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_finished_rows_change_nothing(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows leave at different times, and caches grow; alone, each sentence gives the same."""
    monkeypatch.setattr("waitinfo.translation.search.STRIDE", {"cpu": stride})
    monkeypatch.setattr("waitinfo.translation.search.GROWTH", stride + 1)
    model, sources = full_model(), sentences(8, seed=4)
    for search in (GreedySearch, lambda m, s: BeamSearch(m, s, 3)):
        together = search(model, sources).run()
        lengths = {len(found[0].tokens) for found in together}
        assert len(lengths) > 2, "the test needs translations of many lengths"
        for source, found in zip(sources, together, strict=True):
            assert [c.tokens for c in search(model, [source]).run()[0]] == [c.tokens for c in found]


@torch.no_grad()
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_the_best_translations_equal_brute_force(penalty: float) -> None:
    model, sources = full_model(), sentences(3, seed=4)
    found = BeamSearch(model, sources, 3, penalty, best=3).run()
    for source, candidates in zip(sources, found, strict=True):
        ended, alive = brute_force_candidates(model, source, 3, penalty)
        ranked = sorted(ended, key=lambda c: -c[0])
        right = [tokens for _, tokens in ranked + alive][:3]
        assert [c.tokens for c in candidates] == right


def test_a_damaged_model_is_an_error() -> None:
    model = full_model()
    with torch.no_grad():
        model.target_embedding.weight[7] = torch.nan
    for search in (GreedySearch(model, [[5, 6]]), BeamSearch(model, [[5, 6]], 2)):
        with pytest.raises(WaitinfoError, match="not finite"):
            search.run()
    assert "not finite" in NOT_FINITE


# Batches


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.integers(1, 12),
    st.integers(1, 200),
    st.integers(1, 4),
)
def test_batches_fit_the_budget(lengths: list[int], rows: int, tokens: int, copies: int) -> None:
    batches = list(Budget(rows, tokens).batches(lengths, copies))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    ordered = [lengths[i] for batch in batches for i in batch]
    assert ordered == sorted(lengths, reverse=True)
    for batch in batches:
        size, longest = copies * len(batch), lengths[batch[0]] + 1
        assert len(batch) == 1 or (size <= rows and size * longest <= tokens)


def test_batches_shrink_when_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, lines = toy_model("full"), lines_of_text()
    right = joined(loaded, lines, TranslationOptions())
    search = SentenceDecoder._search

    def narrow(self, some, places):
        if len(some) > 2:
            raise torch.OutOfMemoryError("no memory")
        return search(self, some, places)

    monkeypatch.setattr(SentenceDecoder, "_search", narrow)
    assert joined(loaded, lines, TranslationOptions()) == right

    def never(self, some, places):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(decoding.SentenceDecoder, "_search", never)
    with pytest.raises(WaitinfoError, match="even for a single sentence"):
        joined(loaded, lines, TranslationOptions())


# Sampling


def split_mix(state: int) -> int:
    """SplitMix64's output function, in Python's integers."""
    z = state & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1))
def test_hashes_are_those_of_split_mix(number: int) -> None:
    found = int(mix(torch.tensor([number]))[0]) & (2**64 - 1)
    assert found == split_mix(number)
    assert float(uniform(mix(torch.tensor([number])))[0]) == (split_mix(number) >> 11) / 2**53


def test_the_first_number_of_split_mix() -> None:
    """The published first output for the state 0."""
    assert int(combine(torch.tensor([0]), 0)[0]) & (2**64 - 1) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.5, 0), (2.0, 3)])
def test_samples_follow_the_distribution(temperature: float, top_k: int) -> None:
    """Frequencies of 20,000 draws are within five standard deviations."""
    count = 20_000
    logits = torch.tensor([0.5, 2.0, -torch.inf, 1.0, -1.0, 1.9]).double()
    right = logits.clone()
    if top_k:
        right[logits < logits.topk(top_k).values[-1]] = -torch.inf
    right = (right / temperature).softmax(-1)
    sampler = Sampler(sentence_keys(1, [(i, 0) for i in range(count)], 1), temperature, top_k)
    drawn = sampler(logits.expand(count, -1), torch.arange(count), 4)
    found = torch.bincount(drawn, minlength=6) / count
    assert ((found - right).abs() <= 5 * (right * (1 - right) / count).sqrt()).all()
    other = sampler(logits.expand(count, -1), torch.arange(count), 5)
    agree = float((drawn == other).double().mean())
    assert agree == pytest.approx(float((right**2).sum()), abs=5 / math.sqrt(count))


def test_samples_do_not_depend_on_the_batch() -> None:
    loaded, lines = toy_model("full"), lines_of_text()
    options = TranslationOptions(temperature=1.0, best=3, scores=True, seed=7)

    def sampled(rows: int, window: int, which: TranslationOptions = options) -> dict:
        found: dict[int, list] = {}
        for translation in translations(loaded, lines, which, rows, window):
            found.setdefault(translation.line, []).append((translation.text, translation.score))
        return found

    many, few = sampled(64, 100), sampled(1, 2)
    assert many.keys() == few.keys()
    for line in many:
        assert [text for text, _ in many[line]] == [text for text, _ in few[line]]
        assert [s for _, s in many[line]] == pytest.approx([s for _, s in few[line]])
    assert len({text for text, _ in many[0]}) > 1
    assert many[0] != many[6], "equal lines are sampled by themselves"
    assert sampled(64, 100, replace(options, seed=8)) != many


# Options


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"beam": 0}, "beam 0: must be at least 1"),
        ({"best": 2}, "more translations than beams"),
        ({"best": 2, "temperature": -1}, "temperature -1: must be 0 or more"),
        ({"top_k": 3}, "top_k 3: needs a temperature"),
        ({"beam": 2, "temperature": 1.0}, "exclude each other"),
        ({"ending": "soon"}, "unknown ending 'soon'"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"penalty": math.inf}, "penalty inf"),
        ({"seed": 2**64}, "must fit into 64 bits"),
    ],
)
def test_options_that_make_no_sense(given: dict, message: str) -> None:
    with pytest.raises(WaitinfoError, match=message):
        TranslationOptions(**given)


@pytest.mark.parametrize("given", [{"beam": 2}, {"temperature": 1.0}, {"scores": True}])
def test_simultaneous_systems_search_greedily(given: dict) -> None:
    with pytest.raises(WaitinfoError, match="only full-sentence models offer it; this is wait-k"):
        next(translations(toy_model("wait-k"), ["ba"], TranslationOptions(**given)))


def test_no_lines() -> None:
    assert list(translations(toy_model("full"), [])) == []
    assert [t.text for t in translations(toy_model("full"), ["", " "])] == ["", ""]


@pytest.mark.parametrize(("window", "take"), [(1, 1), (3, 5)])
def test_lines_are_read_as_needed(window: int, take: int) -> None:
    """A generator without end is read two windows ahead at most."""
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield "ba be"

    found = translations(toy_model("full"), endless(), window=window)
    for _ in range(take):
        next(found)
    found.close()
    assert read <= take + 2 * window
