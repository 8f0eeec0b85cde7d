"""Runs that start from the weights of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.conftest import toy_pairs, write_pairs
from tests.training_runs import values
from waitinfo.errors import WaitinfoError
from waitinfo.model.attention import split_heads
from waitinfo.model.config import ModelConfig
from waitinfo.model.transformer import Transformer
from waitinfo.model.views import SourceView
from waitinfo.streaming.translator import Translator
from waitinfo.systems import build_system
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.trained.saving import load_model, save_model
from waitinfo.training import train
from waitinfo.training.building import SIDES
from waitinfo.training.display import SilentDisplay


def test_a_run_starts_from_a_model(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=30)
    train(config, tmp_path / "first", display=SilentDisplay())
    first = tmp_path / "first" / "last"
    still = {"lr": 1e-12, "updates": 1, "average": "none", "start_from": str(first)}
    train(values(toy_corpus, **still), tmp_path / "second", display=SilentDisplay())
    before, after = (load_model(tmp_path / name).model for name in ("first/last", "second/last"))
    for (name, old), new in zip(before.named_parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(new, old, atol=1e-6, rtol=0, msg=name)
    wider = values(toy_corpus, **still)
    wider["model"]["ffn"] = 64
    with pytest.raises(WaitinfoError, match=r"its model.ffn is 32, not 64"):
        train(wider, tmp_path / "third", display=SilentDisplay())


def test_a_run_starts_from_a_model_without_a_part_of_it(toy_corpus: Path, tmp_path: Path) -> None:
    """Switches without weights may change, and the info of a side may be fixed to 1."""
    train(values(toy_corpus, updates=2), tmp_path / "first", display=SilentDisplay())
    first = tmp_path / "first" / "last"
    changes = {"info_self_attention": False, "info_cross_attention": False, "source_info": "one"}
    config = values(toy_corpus, updates=1, lr=1e-12, average="none", start_from=str(first))
    config["model"] |= changes
    train(config, tmp_path / "second", display=SilentDisplay())
    before, after = (load_model(tmp_path / name).model for name in ("first/last", "second/last"))
    assert {name: getattr(after.config, name) for name in changes} == changes
    old, new = before.weights(), after.weights()
    left_out = {"source_info.quantizer.hidden.weight", "source_info.quantizer.out.weight"}
    assert old.keys() - new.keys() == left_out and new.keys() <= old.keys()
    for name, weight in new.items():
        torch.testing.assert_close(weight, old[name], atol=1e-6, rtol=0, msg=name)
    back = values(toy_corpus, updates=1, start_from=str(tmp_path / "second"))
    with pytest.raises(WaitinfoError, match=r"its model.source_info is one, not learned"):
        train(back, tmp_path / "third", display=SilentDisplay())


def started(
    corpus: Path, folder: Path, name: str, system: str, **model: object
) -> tuple[Transformer, Transformer]:
    """A trained wait-info model, and another system that starts from it, before it learns."""
    if not (folder / "first").exists():
        train(values(corpus, updates=2), folder / "first", display=SilentDisplay())
    first = folder / "first" / "last"
    config = values(corpus, updates=1, lr=1e-12, average="none", start_from=str(first))
    config["system"] = {"name": system}
    config["model"] |= model
    train(config, folder / name, display=SilentDisplay())
    return load_model(first).model, load_model(folder / name / "last").model


@pytest.mark.parametrize("system", ["wait-k", "moe-wait-k", "gma", "mma", "gsimt", "full"])
def test_any_system_starts_from_a_model(system: str, toy_corpus: Path, tmp_path: Path) -> None:
    """Weights that both have are the same; only what the system alone has is new."""
    before, after = started(toy_corpus, tmp_path, system, system, encoder="causal")
    assert after.config.info == "none"
    old, new = before.weights(), after.weights()
    doubled = {name for name in new if name in old and new[name].shape != old[name].shape}
    for name in new.keys() & old.keys() - doubled:
        torch.testing.assert_close(new[name], old[name], atol=1e-6, rtol=0, msg=name)
    alone = {"gsimt": "write_head", "gma": "step", "moe-wait-k": "gate", "mma": "energy"}
    assert all(alone[system] in name for name in new.keys() - old.keys())
    assert all("info" in name for name in old.keys() - new.keys())
    assert bool(doubled) == (system == "mma")


def test_monotonic_heads_start_with_the_attention_of_the_model(
    toy_corpus: Path, tmp_path: Path
) -> None:
    """Heads that stop at the last token attend as the plain attention that they begin with."""
    before, after = started(toy_corpus, tmp_path, "mma", "mma")
    torch.manual_seed(1)
    states, x = torch.randn(2, 5, 32), torch.randn(2, 3, 32)
    plain = before.decoder_layers[0].cross.eval()
    monotonic = after.decoder_layers[0].cross.eval()
    with torch.no_grad():
        monotonic.energy_bias.fill_(-1e4)  # no head stops before the last visible token
        visible = torch.tensor([[2, 3, 5]]).expand(2, -1)
        hidden = torch.arange(5) >= visible[..., None]
        bias = torch.zeros(2, 3, 5).masked_fill(hidden, -torch.inf)[:, None]
        view = SourceView(visible, bias)
        expected, _ = plain(x, plain.memory(states), view)
        memory = monotonic.memory(states)
        found, _ = monotonic(x, memory, view)
        monotonic.energy_bias.zero_()
        energies = monotonic._energies(split_heads(monotonic.queries(x), 4), memory.keys)
        shown = SourceView(visible, torch.zeros(2, 1, 3, 5))
        weights = plain.weights(x, plain.memory(states), shown)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    # Heads stop by the scores of the same attention.
    torch.testing.assert_close(energies.softmax(-1), weights, atol=1e-4, rtol=1e-4)


def test_info_by_frequency_is_counted_when_a_run_starts(toy_corpus: Path, tmp_path: Path) -> None:
    _, after = started(toy_corpus, tmp_path, "frequency", "wait-info", info="frequency")
    fresh = values(toy_corpus, updates=1, lr=1e-12, average="none")
    fresh["model"]["info"] = "frequency"
    train(fresh, tmp_path / "fresh", display=SilentDisplay())
    new = load_model(tmp_path / "fresh" / "last").model
    for side in ("source_info", "target_info"):
        torch.testing.assert_close(getattr(after, side).table, getattr(new, side).table)


def test_learned_info_is_added_to_a_model_without_it(toy_corpus: Path, tmp_path: Path) -> None:
    started(toy_corpus, tmp_path, "second", "multipath")
    config = values(
        toy_corpus, updates=1, lr=1e-12, average="none", start_from=str(tmp_path / "second")
    )
    train(config, tmp_path / "third", display=SilentDisplay())
    old, new = (load_model(tmp_path / name).model.weights() for name in ("second", "third"))
    assert {name.partition(".")[0] for name in new.keys() - old.keys()} == {*SIDES.values()}
    for name, weight in old.items():
        torch.testing.assert_close(new[name], weight, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("system", ["wait-info", "full"])
def test_a_published_model_becomes_another_system(
    toy_corpus: Path, tmp_path: Path, system: str
) -> None:
    """Its shape is inherited, its encoder reads word by word, and its bias is trained."""
    vocabulary = Corpus(toy_corpus).vocabulary
    torch.manual_seed(5)
    shape = {"source_vocabulary": len(vocabulary.source), "joint": vocabulary.joint,
             "target_vocabulary": len(vocabulary.target), "width": 24, "ffn": 40,
             "encoder_layers": 3, "decoder_layers": 1, "heads": 3, "norm": "post",
             "decoder": "ssru", "activation": "swish", "output_bias": True, "epsilon": 1e-6,
             "encoder": "bidirectional", "positions": "open", "first_position": 2}  # fmt: skip
    published = Transformer(ModelConfig(**shape))
    torch.nn.init.normal_(published.output_bias)
    with torch.no_grad():
        published.output_bias[:2] = -1e4
    save_model(tmp_path / "published", published, published.weights(),
               build_system("local-agreement"), vocabulary)  # fmt: skip
    config = {
        "data": str(toy_corpus),
        "system": {"name": system},
        "training": {**values(toy_corpus, updates=2, warmup=1)["training"], "lr": 1e-3,
                     "average": "none", "start_from": str(tmp_path / "published")},
    }  # fmt: skip
    train(config, tmp_path / "run", display=SilentDisplay())
    loaded = load_model(tmp_path / "run" / "last")
    found = loaded.model.config
    assert found.encoder == ("bidirectional" if system == "full" else "causal")
    assert found.info == ("none" if system == "full" else "attention")
    kept = shape.keys() - {"encoder"}
    assert {name: getattr(found, name) for name in kept} == {name: shape[name] for name in kept}
    before, after = published.weights(), loaded.model.weights()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight.clamp(min=-30), atol=0.02, rtol=0, msg=name)
    assert (after["output_bias"][4:] != before["output_bias"][4:]).any()
    assert Translator(loaded, streams=1).translate("ein haus") is not None


def starts(corpus: Path, folder: Path, old: dict, new: dict) -> Transformer:
    """A model with the new system and settings that starts from one with the old ones."""
    for name, section, start in (("old", old, ""), ("new", new, str(folder / "old"))):
        config = values(corpus, updates=1, start_from=start)
        config["system"] = {"name": section["system"]}
        config["model"] |= {key: value for key, value in section.items() if key != "system"}
        train(config, folder / name, display=SilentDisplay())
    return load_model(folder / "new" / "last").model


@pytest.mark.parametrize("old", [
    {"system": "gma"},  # its queries and keys are those of plain attention
    {"system": "wait-info", "source_info": "one"},
    {"system": "gsimt"},
])  # fmt: skip
def test_what_a_system_does_not_use_is_left_out(
    old: dict, toy_corpus: Path, tmp_path: Path
) -> None:
    model = starts(toy_corpus, tmp_path, old, {"system": "multipath"})
    assert (model.config.cross_attention, model.config.info) == ("plain", "none")


def test_two_sets_of_queries_do_not_fit_plain_attention(toy_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(WaitinfoError, match=r"its model.cross_attention is mma, not plain"):
        starts(toy_corpus, tmp_path, {"system": "mma"}, {"system": "multipath"})


def test_info_by_frequency_of_a_side_that_had_none(toy_corpus: Path, tmp_path: Path) -> None:
    old = {"system": "wait-info", "info": "frequency", "source_info": "one"}
    new = {"system": "wait-info", "info": "frequency"}
    model = starts(toy_corpus, tmp_path, old, new)
    fresh = starts(toy_corpus, tmp_path / "fresh", new, new)
    assert model.source_info is not None and fresh.source_info is not None
    assert len(model.source_info.table.unique()) > 2
    torch.testing.assert_close(model.source_info.table, fresh.source_info.table)


def test_a_run_cannot_start_from_the_other_direction(toy_corpus: Path, tmp_path: Path) -> None:
    corpus, first = tmp_path / "corpus", tmp_path / "first"
    shutil.copytree(toy_corpus, corpus)
    train(values(corpus, updates=1), first, display=SilentDisplay())
    for path, source, target in ((corpus / "corpus.json", "de", "en"),
                                 (first / "last" / "config.json", "en", "de")):  # fmt: skip
        known = json.loads(path.read_text("utf-8"))
        path.write_text(json.dumps({**known, "languages": {"source": source, "target": target}}))
    config = values(corpus, updates=1, start_from=str(first / "last"))
    with pytest.raises(WaitinfoError, match="its source language is en, not de"):
        train(config, tmp_path / "second", display=SilentDisplay())


def test_a_run_cannot_start_from_nothing(toy_corpus: Path, tmp_path: Path) -> None:
    config = values(toy_corpus, updates=1, start_from="~/nowhere")
    with pytest.raises(WaitinfoError, match=r"training\.start_from \S+nowhere: no such model"):
        train(config, tmp_path / "run", display=SilentDisplay())
    assert not (tmp_path / "run").exists()  # the corrected command can begin


def test_a_run_cannot_start_from_another_vocabulary(toy_corpus: Path, tmp_path: Path) -> None:
    train(values(toy_corpus, updates=1), tmp_path / "first", display=SilentDisplay())
    tsv = write_pairs(tmp_path / "t.tsv", [(b, a) for a, b in toy_pairs(300)])
    prepare(ParallelText(tsv=[tsv]), tmp_path / "corpus", PrepareOptions(vocab="words:1"))
    config = values(tmp_path / "corpus", updates=1, start_from=str(tmp_path / "first"))
    with pytest.raises(WaitinfoError, match=r"start_from.*(vocabulary|model\.)"):
        train(config, tmp_path / "second", display=SilentDisplay())
