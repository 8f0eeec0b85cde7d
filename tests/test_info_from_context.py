"""Source info from the encoder's state: prefixes, the loss, integers, and a trained model."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from tests.conftest import tiny_config
from tests.oracle import batch_of, literal_path, uncached_decodes
from tests.test_decoder import sentences
from tests.test_engine import CONTEXT, build, trickle
from tests.test_integer import integers
from waitinfo.config import from_mapping
from waitinfo.errors import WaitinfoError
from waitinfo.model import conversion, integer
from waitinfo.model.config import ModelConfig
from waitinfo.model.native import find_kernels
from waitinfo.model.rows import fusible
from waitinfo.model.saving import load_model
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.translator import Translator
from waitinfo.systems import LossContext, build_system
from waitinfo.text.corpus import Corpus
from waitinfo.text.special import EOS
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

PAIRS = [([5, 6, 7, 8, 9, 10, 11], [10, 11, 12, 13]), ([5, 6, 20], [12, 13, 14, 15])]


@pytest.mark.parametrize("kind", ["float64", "int8"])
@torch.inference_mode()
def test_more_source_changes_no_info(kind: str) -> None:
    """Of a prefix, info is that of the whole; it depends on the tokens before, not after."""
    model = build(CONTEXT)[0]
    model = integers(model) if kind == "int8" else model
    tokens = torch.tensor([[5, 6, 7, 8, 9, 10]])
    whole = model.token_infos(tokens)
    assert whole is not None and float(whole.std()) > 0.01
    for length in range(1, 6):
        part = model.token_infos(tokens[:, :length])
        if kind == "int8":
            assert torch.equal(part, whole[:, :length])
        else:
            torch.testing.assert_close(part, whole[:, :length])
    other = tokens.clone()
    other[0, 2] = 30
    changed = (model.token_infos(other) - whole).abs() > 1e-6
    assert changed[0].tolist() == [False, False, True, True, True, True]
    padded = torch.tensor([[5, 6, 7, 8, 9, 10], [5, 6, 0, 0, 0, 0]])
    torch.testing.assert_close(model.token_infos(padded)[1, :2], whole[0, :2])


def test_the_info_of_embeddings_is_as_before() -> None:
    model = build("wait-info")[0]
    tokens = torch.tensor([[5, 6, 7]])
    assert torch.equal(model.token_infos(tokens), model.embed_source(tokens).info)
    assert build("multipath")[0].token_infos(tokens) is None


def test_the_loss_follows_the_path_of_these_infos() -> None:
    """Against decoding each pair alone along the path of Algorithm 1."""
    model, system = build(CONTEXT)
    batch, k = batch_of(PAIRS), 2.0
    found = system.loss(model, batch, LossContext(update=10**6, draw=random.Random(0), k=k))
    nll = 0.0
    for source, target in PAIRS:
        single = batch_of([(source, target)])
        with torch.no_grad():
            encoded = model.encode(model.embed_source(single.source), single.source_lengths)
            embedded = model.embed_target(single.target_in)
            infos = encoded.info[0].tolist(), embedded.info[0, 1:].tolist()
            path = literal_path(*infos, k, len(source) + 1, floor=True)
            decoded = model.decode(embedded, encoded, torch.tensor([path]), streaming=True)
            scores = model.logits(decoded.states).log_softmax(-1)[0]
        nll -= sum(row[token].item() for row, token in zip(scores, [*target, EOS], strict=True))
    assert float(found.parts["nll"]) == pytest.approx(nll)
    found.total.backward()
    assert model.source_info.quantizer.hidden.weight.grad.abs().sum() > 0
    assert "info_sum" in found.parts


def test_compiled_code_gives_the_infos_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    if find_kernels() is None:
        pytest.skip("the kernels were not built, or not for this CPU")
    made, system = build(CONTEXT, 200)
    sources = [[4 + 7 * token % 196 for token in s[:8]] for s in sentences(6, seed=4)]
    records = []
    for kernels in (find_kernels(), None):
        for module in (integer, conversion):
            monkeypatch.setattr(module, "find_kernels", lambda kernels=kernels: kernels)
        model = integers(made, prepared=True)
        assert (model.native is None) is (kernels is None)
        records.append(trickle("", sources, [2.0] * 6, 3, 1, made=(model, system)))
    for ours, theirs in zip(*records, strict=True):
        assert [(e.token, e.info) for e in ours.reads] == [(e.token, e.info) for e in theirs.reads]
        assert [(e.token, e.read) for e in ours.writes] == [
            (e.token, e.read) for e in theirs.writes
        ]


def test_a_trained_model_streams_as_it_decodes(toy_corpus: Path, tmp_path: Path) -> None:
    values = {
        "data": str(toy_corpus), "system": {"name": "wait-info", "whole_source_updates": 2},
        "model": {"width": 16, "ffn": 16, "encoder_layers": 1, "decoder_layers": 2, "heads": 2,
                  "info_from": "context"},
        "training": {"updates": 6, "validate_sentences": 4, "batch_tokens": 256},
    }  # fmt: skip
    train(values, tmp_path / "run", display=SilentDisplay())
    loaded = load_model(tmp_path / "run", "cpu")
    assert loaded.model.config.info_from == "context" and not fusible(loaded.model)
    pairs = Corpus(toy_corpus).dev_text()[:8]
    sources = [loaded.vocabulary.source.encode(pair.source) for pair in pairs]
    found = Decoder(loaded.model, loaded.system).decode(sources, 2)
    expected = uncached_decodes(loaded.model, loaded.system, sources, [2] * len(sources))
    assert [h.tokens for h in found] == [[t for t in e if t != EOS] for e, _ in expected]
    texts = [loaded.vocabulary.target.decode(h.tokens) for h in found]
    assert [Translator(loaded).translate(pair.source, k=2) for pair in pairs] == texts


def test_old_models_and_bad_settings() -> None:
    old = from_mapping(ModelConfig, {"source_vocabulary": 9, "target_vocabulary": 9}, "model")
    assert old.info_from == "embedding"
    with pytest.raises(WaitinfoError, match="unknown model.info_from 'decoder'"):
        tiny_config(info="attention", info_from="decoder")
    for change in ({"info": "norm"}, {"source_info": "one"}, {"encoder": "bidirectional"}):
        (name,) = change
        with pytest.raises(WaitinfoError, match=f"info_from context: requires model.{name} "):
            tiny_config(**({"info": "attention", "info_from": "context"} | change))
    build_system("wait-info").check_model(tiny_config(info="attention", info_from="context"))
