"""The head of a veto: its labels and its training, and how it is kept in a model folder."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engines import random_head
from tests.streams import toy_model
from tests.training_runs import values
from waitinfo.errors import WaitinfoError
from waitinfo.progress import Silent
from waitinfo.systems import build_system
from waitinfo.systems.veto import NUMBERS, Head, Veto
from waitinfo.text.special import BOS, EOS
from waitinfo.trained.saving import checksum, load_model, save_model
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay
from waitinfo.training.head import Examples, explore, fit, quality, risks


@torch.no_grad()
def test_labels_are_those_of_the_whole_source() -> None:
    """Each risk from a pass over one sentence and one prefix, without padding or cache."""
    loaded = toy_model("veto")
    model = loaded.model
    sources = [loaded.vocabulary.source.encode(text) for text in ("ba be bi bo du", "dadedi do.")]
    explorer, targets = explore(loaded, sources, 3, Silent())
    places = np.concatenate(explorer.places)
    assert set(places[:, 0]) == {0, 1} and len(set(map(tuple, places[:, :2]))) < len(places)
    found = risks(loaded, sources, targets, places, Silent())
    for (number, written, token), risk in zip(places.tolist(), found, strict=True):
        source = torch.tensor([[*sources[number], EOS]])
        length = torch.tensor([source.shape[1]])
        target = torch.tensor([[BOS, *targets[number][:written]]])
        encoded = model.encode(model.embed_source(source), length)
        visible = torch.full(target.shape, source.shape[1])
        states = model.decode(model.embed_target(target), encoded, visible).states
        shares = model.logits(states[0, -1]).softmax(-1)
        assert risk == pytest.approx(float(1 - shares[token] / shares.max()), abs=1e-5)
    for numbers, states in zip(explorer.seen, explorer.states, strict=True):
        assert numbers.shape[1] == NUMBERS and len(states) == len(numbers)


def test_the_head_learns_what_can_be_learned() -> None:
    """The risk is known from one dimension of the state and one number."""
    draw = np.random.default_rng(1)
    states = draw.normal(3, 2, (20000, 6)).astype(np.float16)
    numbers = draw.normal(-1, 5, (20000, NUMBERS)).astype(np.float32)
    risk = ((states[:, 2] > 3) & (numbers[:, 4] > -1)).astype(np.float32)
    examples = Examples(np.arange(20000) // 4, states, numbers, risk)
    head, found = fit(examples, 1, Silent())
    assert found["examples"] == 2000 and found["AUC"] > 0.8
    again, _ = fit(examples, 1, Silent())
    assert all((head.tensors[n] == again.tensors[n]).all() for n in head.tensors), (
        "the seed decides"
    )


def test_auc_is_the_share_of_pairs_in_order() -> None:
    found, risk = np.array([0.1, 0.4, 0.3, 0.8]), np.array([0.0, 1.0, 0.0, 0.9])
    assert quality(found, risk)["AUC"] == 1
    assert quality(found, np.array([0.9, 0.0, 0.0, 1.0]))["AUC"] == pytest.approx(2 / 4)


def test_arrays_and_tensors_decide_alike() -> None:
    head, draw = random_head(), np.random.default_rng(2)
    states, numbers = draw.normal(size=(5, 32)).astype(np.float32), list(draw.normal(size=(10, 5)))
    arrays = head(states, numbers)  # type: ignore[arg-type]
    tensors = head(torch.from_numpy(states), [torch.from_numpy(n) for n in numbers])
    np.testing.assert_allclose(arrays, tensors, rtol=1e-12)


def test_a_head_goes_to_another_process_although_it_was_used() -> None:
    """Its compiled code does not."""
    head, draw = random_head(), np.random.default_rng(2)
    states, numbers = draw.normal(size=(5, 32)).astype(np.float32), list(draw.normal(size=(10, 5)))
    risk = head(states, numbers)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(head))
    assert np.array_equal(again(states, numbers), risk)


def test_a_folder_keeps_the_head(tmp_path: Path) -> None:
    loaded = toy_model("veto")
    parts = loaded.model, loaded.model.weights()
    save_model(tmp_path / "plain", *parts, build_system("veto"), loaded.vocabulary)
    system = build_system("veto", {"keep": 0.5})
    assert isinstance(system, Veto)
    given = random_head()
    system.head = replace(given, from_states=np.asfortranarray(given.from_states))
    save_model(tmp_path / "headed", *parts, system, loaded.vocabulary)
    found = load_model(tmp_path / "headed").system
    assert (
        isinstance(found, Veto) and found.head is not None and found.asks == ("two_best", "states")
    )
    for name, value in random_head().tensors.items():
        assert (found.head.tensors[name] == value).all()
    plain = load_model(tmp_path / "plain").system
    agreeing = load_model(tmp_path / "headed", options={"criterion": "agreement"}).system
    assert checksum(found.tensors) != checksum(plain.tensors) == checksum(agreeing.tensors) == {}
    assert plain.asks == agreeing.asks == ("before",)
    assert load_model(tmp_path / "headed", system="wait-k").system.asks == ()
    with pytest.raises(WaitinfoError, match=r"system.criterion head: this model has none"):
        load_model(tmp_path / "plain", options={"criterion": "head"})
    with pytest.raises(WaitinfoError, match=r"system.criterion .*tails"):
        load_model(tmp_path / "plain", options={"criterion": "tails"})
    (tmp_path / "headed" / "policy.safetensors").write_bytes(b"nothing")
    with pytest.raises(WaitinfoError, match=r"policy.safetensors: cannot be read"):
        load_model(tmp_path / "headed")
    with pytest.raises(WaitinfoError, match=r"head.from_states: is \(32, 8\), not \(16, 8\)"):
        Head.of(random_head().tensors, 16, NUMBERS)


def test_a_run_trains_the_head_alone(toy_corpus: Path, tmp_path: Path) -> None:
    train(values(toy_corpus, updates=2), tmp_path / "first", display=SilentDisplay())
    first = tmp_path / "first" / "last"
    settings = {"data": str(toy_corpus), "system": {"name": "veto", "keep": 0.7}}
    given = {**settings, "training": {"start_from": str(first)}}
    summary = train(given, tmp_path / "second", display=SilentDisplay())
    assert summary["examples"] > 0
    best = tmp_path / "second" / "best"
    assert (best / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    found = load_model(tmp_path / "second").system
    assert isinstance(found, Veto) and found.head is not None and found.options.keep == 0.7
    shutil.rmtree(best)
    train({}, tmp_path / "second", resume=True, display=SilentDisplay())
    again = load_model(tmp_path / "second").system
    assert isinstance(again, Veto) and again.head is not None
    assert (again.head.out == found.head.out).all(), "a resumed run begins again"
    given["training"] = {"start_from": "nowhere"}
    with pytest.raises(WaitinfoError, match=r"training\.start_from nowhere: no such model"):
        train(given, tmp_path / "third", display=SilentDisplay())
