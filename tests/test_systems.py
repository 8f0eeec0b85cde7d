"""What all systems share: the registry, adding a system, and the loss from a path."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines import TRAINED
from tests.oracle import batch_of, uncached_decodes
from waitinfo.errors import WaitinfoError
from waitinfo.model import info
from waitinfo.model.attention import CROSS_ATTENTIONS, CrossAttention, cross_attention
from waitinfo.model.config import ModelConfig
from waitinfo.model.views import AttentionReport
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.translator import Translator
from waitinfo.systems import (
    SYSTEMS,
    LossContext,
    PolicyState,
    Step,
    System,
    build_system,
    largest,
    lookup,
)
from waitinfo.systems.wait_k import WaitK
from waitinfo.text.corpus import Corpus
from waitinfo.text.special import EOS
from waitinfo.trained.saving import load_model
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay
from waitinfo.training.updates import recordable, stage

ROOT = Path(__file__).resolve().parents[1]

PAIRS = [([5, 6, 7, 8, 9], [10, 11, 12]), ([5, 6], [12, 13, 14, 15])]


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "gsimt"])
def test_a_whole_source_update_builds_one_bias(
    tiny_model, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Only one bias is computed if every head sees everything read."""
    calls: list[object] = []
    real = info.cross_bias

    def counting(*given: object) -> object:
        calls.append(given)
        return real(*given)

    monkeypatch.setattr(info, "cross_bias", counting)
    system = build_system(name, {"whole_source_updates": 10})
    model = tiny_model(**system.model_defaults)
    system.loss(model, batch_of(PAIRS), LossContext(update=0, draw=random.Random(0)))
    assert len(calls) == 1


@pytest.fixture
def documented(own_registry: None) -> type[System]:
    """The system in docs/systems.md, from the code on that page."""
    page = (ROOT / "docs" / "systems.md").read_text("utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", page, re.S) if "WindowWaitK" in c]
    names: dict = {"__name__": "__main__"}
    exec(compile(code, "docs/systems.md", "exec"), names)
    return names["WindowWaitK"]


def test_the_documented_system_trains_and_streams(
    documented: type[System], toy_corpus: Path, tmp_path: Path
) -> None:
    """Only the system is registered explicitly; its attention registers itself."""
    with pytest.raises(WaitinfoError, match="unknown system 'window-wait-k'"):
        build_system("window-wait-k")
    SYSTEMS.add(documented)
    assert "window-wait-k" in SYSTEMS and build_system("window-wait-k").options.k == 3
    values = {
        "data": str(toy_corpus), "system": {"name": "window-wait-k", "k": 2},
        "model": {"width": 16, "ffn": 16, "encoder_layers": 1, "decoder_layers": 2, "heads": 2},
        "training": {"updates": 6, "validate_sentences": 4, "batch_tokens": 256},
    }  # fmt: skip
    train(values, tmp_path / "run", display=SilentDisplay())
    loaded = load_model(tmp_path / "run", "cpu")
    assert type(loaded.system) is documented
    assert {type(layer.cross).__name__ for layer in loaded.model.decoder_layers} == {
        "WindowAttention"
    }
    pairs = Corpus(toy_corpus).dev_text()[:8]
    sources = [loaded.vocabulary.source.encode(pair.source) for pair in pairs]
    found = Decoder(loaded.model, loaded.system).decode(sources, 2)
    expected = uncached_decodes(loaded.model, loaded.system, sources, [2] * len(sources))
    assert [h.tokens for h in found] == [[t for t in e if t != EOS] for e, _ in expected]
    translator = Translator(loaded)
    texts = [loaded.vocabulary.target.decode(h.tokens) for h in found]
    assert [translator.translate(pair.source) for pair in pairs] == texts


def test_the_documented_attention_sees_its_window(documented: type[System], tiny_model) -> None:
    model = tiny_model(seed=1, **documented.model_defaults)
    assert documented.model_defaults == {"cross_attention": "window"}

    # Seven tokens are read, so a window of four starts at position 3.
    batch = batch_of([([5, 6, 7, 8, 9, 10, 11, 12], [10, 11])])
    with torch.no_grad():
        encoded = model.encode(model.embed_source(batch.source), batch.source_lengths)
        target = model.embed_target(batch.target_in)
        visible = torch.full(batch.target_in.shape, 7)
        before = model.decode(target, encoded, visible).states
        for position, matters in ((2, False), (3, True), (6, True), (7, False)):
            changed = model.encode(model.embed_source(batch.source), batch.source_lengths)
            for memory in changed.memories:
                memory.values[:, :, position] += 1
            after = model.decode(target, changed, visible).states
            assert bool((after != before).any()) is matters, position


def test_names_are_unique(documented: type[System]) -> None:
    class Duplicate(System):
        name = "wait-k"

    with pytest.raises(WaitinfoError, match="already exists; choose another name"):
        SYSTEMS.add(Duplicate)
    with pytest.raises(TypeError, match="two cross-attentions are named 'window'"):

        class Other(CrossAttention):
            name = "window"

    class Unnamed(CrossAttention):  # an intermediate class, which is not registered
        pass

    assert Unnamed not in CROSS_ATTENTIONS.values()


def test_a_model_checks_its_cross_attention(tiny_model) -> None:
    SYSTEMS.load()
    with pytest.raises(WaitinfoError, match="unknown model.cross_attention 'nearest'.*plain.*gma"):
        tiny_model(cross_attention="nearest")
    with pytest.raises(WaitinfoError, match="model.cross_attention nearest: wait-k requires plain"):
        build_system("wait-k").check_model(ModelConfig(9, 9, cross_attention="nearest"))


@pytest.mark.parametrize("name", SYSTEMS)
def test_registered_names_match_the_classes(name: str) -> None:
    system = SYSTEMS[name]
    assert system.name == name and system.summary
    names = system.attention_names()
    assert system.model_defaults["cross_attention"] == names[0]
    assert [cross_attention(name).name for name in names] == names
    assert set(system.milestones) <= vars(system.Options()).keys()


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_policy_for_arrays_decides_like_one_for_tensors(name: str) -> None:
    system, draw, rows = build_system(name), np.random.default_rng(0), 200
    read, written, k = (draw.integers(1, 9, rows) for _ in range(3))
    infos = (draw.integers(0, 20, rows) / 2 for _ in range(2))
    source = np.where(np.arange(9) < read[:, None], draw.integers(4, 40, (rows, 9)), 0)
    counts: Any = (k.astype(float), read, written, draw.random(rows) < 0.2, *infos)
    memory = draw.integers(0, 9, (rows, max(1, len(system.memory)))).astype(float)
    state = PolicyState(*counts, {"source": source, "memory": memory})
    weights = draw.random((rows, 2, 3, 9)) * (np.arange(9) < read[:, None, None, None])
    predicted: Any = draw.integers(4, 7, (2, rows))
    logits = draw.normal(size=(rows, 8), scale=4)
    stopped: Any = draw.random((2, rows, 3, 1)) < 0.8
    step = Step(
        predicted[0],
        [AttentionReport(stopped=some) for some in stopped],
        draw.normal(size=rows),  # type: ignore[arg-type]
        {"logits": logits, "attention": weights, "before": predicted[1]},
    )
    for method in ("ready", "accept", "wait", "earlier", "remember"):
        ask: Any = getattr(system, method)
        assert ask.for_arrays
        after = method in ("accept", "wait", "remember")
        decided = ask(state.tensors(), step.tensors()) if after else ask(state.tensors())
        found = ask(state, step) if after else ask(state)
        assert found.tolist() == decided.tolist(), method
        if not after and not system.asks:
            alone = [PolicyState(*(column[i] for column in counts)) for i in range(rows)]
            assert [ask(one) for one in alone] == decided.tolist()
    seen: Any = (read[:, None], written[:, None] + np.arange(3), k[:, None])
    for heads in (1, 3, 8):
        found = system.visible(*seen, heads)
        assert found.tolist() == system.visible(*map(torch.from_numpy, seen), heads).tolist()


def test_what_was_not_asked_for_is_an_error() -> None:
    state, step = PolicyState(*[torch.zeros(1)] * 6), Step(torch.zeros(1), asked={"states": None})
    with pytest.raises(WaitinfoError, match="state.memory: the policy does not ask for it; add"):
        _ = state.memory
    with pytest.raises(WaitinfoError, match="step.logits: the policy does not ask .*'logits'"):
        _ = step.probability


def test_properties_of_tokens_are_looked_up_on_their_device() -> None:
    table, tokens = np.array([3, 1, 4, 1]), torch.tensor([[2, 0], [3, 3]])
    for _ in range(2):
        assert lookup(table, tokens).tolist() == lookup(table, tokens.numpy()).tolist()
    assert largest(tokens).tolist() == largest(tokens.numpy()).tolist() == [2, 3]


def test_an_own_policy_is_not_taken_for_one_for_arrays() -> None:
    class Careful(WaitK):
        name = "careful"

        def ready(self, state: PolicyState) -> torch.Tensor:
            return torch.zeros_like(state.complete)

    assert hasattr(WaitK.ready, "for_arrays") and not hasattr(Careful.ready, "for_arrays")


def test_milestones_separate_recorded_updates() -> None:
    system = build_system("mma", {"whole_source_updates": 2, "latency_after": 5})
    stages = [stage(system, update) for update in range(7)]
    assert [stages[0]] * 2 + [stages[2]] * 3 + [stages[5]] * 2 == stages
    assert len(set(stages)) == 3
    assert [name for name in SYSTEMS if not recordable(build_system(name))] == ["gsimt"]
