"""Model folders: saved and loaded, in parts, as integers, packed, and found by their names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from tests.conftest import tiny_config
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.model.integers.packing import CENTER, REPEATED, SCALE, dequantize, quantize
from waitinfo.model.stored import load_stored
from waitinfo.streaming.translator import load
from waitinfo.systems import build_system
from waitinfo.text.languages import Languages
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained import folder as folders
from waitinfo.trained.folder import bundled_models
from waitinfo.trained.saving import load_model, save_model
from waitinfo.trained.tensors import read_tensors, save_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer, _ = train_tokenizer(["ein Haus am See", "a house by the lake"] * 5,
                                   VocabularySpec("words", 1))  # fmt: skip
    size = len(tokenizer)
    torch.manual_seed(0)
    config = tiny_config(source_vocabulary=size, target_vocabulary=size, info="attention")
    model = Transformer(config)
    system = build_system("wait-info", {"floor": False})
    save_model(tmp_path / "m", model, model.weights(), system, Vocabulary(tokenizer, tokenizer))
    return tmp_path / "m"


def test_a_folder_gives_back_the_model(folder: Path) -> None:
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.model",
    ]  # fmt: skip
    loaded = load_model(folder, "cpu")
    assert loaded.system.name == "wait-info" and loaded.system.options.floor is False
    torch.manual_seed(0)
    expected = Transformer(loaded.model.config).weights()
    found = loaded.model.weights()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert loaded.model.source_embedding.weight is loaded.model.target_embedding.weight


def test_run_folders_mean_their_best_model(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(WaitinfoError, match="not a model"):
        load_model(run)
    folder.rename(run / "last")
    assert load_model(run).folder == run / "last"
    (run / "last").rename(run / ".last.old")
    assert load_model(run).folder == run / "last", "a swap that was cut off"
    with pytest.raises(WaitinfoError, match="no such model"):
        load_model(tmp_path / "nowhere")


def test_bad_folders(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model"]["ffn"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WaitinfoError, match="do not fit config.json"):
        load_model(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(WaitinfoError, match="cannot be read as safetensors"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(WaitinfoError, match=r"config.json: cannot be read"):
        load_model(folder)


def test_weights_in_parts_come_back_whole(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {"big": torch.randn(100, 7), "small": torch.randn(3), "scalar": torch.tensor(2.0)}
    save_weights(tmp_path, weights, part_bytes=500)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3 and all(path.stat().st_size < 1000 for path in files)
    loaded = load_stored(tmp_path)
    assert loaded.keys() == weights.keys()
    assert all(np.array_equal(loaded[name], weights[name].numpy()) for name in weights)
    files[1].unlink()
    with pytest.raises(WaitinfoError, match="found only . of . weight files"):
        load_stored(tmp_path)


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
def test_arrays_are_what_torch_would_read(folder: Path, tmp_path: Path, stored: str) -> None:
    """NumPy has no bfloat16."""
    loaded = load_model(folder, "cpu")
    save_model(tmp_path / "m", loaded.model, loaded.model.weights(), loaded.system,
               loaded.vocabulary, stored)  # fmt: skip
    arrays = load_stored(tmp_path / "m")
    for name, tensor in read_tensors(tmp_path / "m" / "model.safetensors").items():
        assert np.array_equal(arrays[name].astype(np.float32), tensor.float().numpy())


@pytest.mark.parametrize("part_bytes", [None, 900])
def test_int8_folders_load(folder: Path, tmp_path: Path, part_bytes: int | None) -> None:
    loaded = load_model(folder, "cpu")
    weights = loaded.model.weights()
    save_model(tmp_path / "q", loaded.model, weights, loaded.system, loaded.vocabulary, "int8",
               part_bytes)  # fmt: skip
    back = dequantize(load_stored(tmp_path / "q"))
    assert back.keys() == weights.keys()
    for name, tensor in weights.items():
        step = tensor.abs().max() / 127
        assert np.abs(back[name] - tensor.numpy()).max() <= step
    assert load_model(tmp_path / "q").model.parameter_count() == loaded.model.parameter_count()
    if part_bytes is None:
        sizes = [sum(f.stat().st_size for f in d.glob("*.safetensors"))
                 for d in (folder, tmp_path / "q")]  # fmt: skip
        assert sizes[1] < 0.6 * sizes[0]  # the tiny model is mostly headers


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    """65,504 is the largest float16; the folder that was there stays."""
    loaded = load_model(folder, "cpu")
    weights = loaded.model.weights()
    name = next(name for name, tensor in weights.items() if tensor.dim() > 1)
    to = tmp_path / "narrow"
    for value, dtype in ((65_504.0, "float16"), (1e30, "bfloat16")):
        weights[name][0, 0] = value
        save_model(to, loaded.model, weights, loaded.system, loaded.vocabulary, dtype)
    before = (to / "config.json").stat().st_mtime_ns
    with pytest.raises(WaitinfoError, match=f"{name}: weights up to 1e.30 do not fit float16"):
        save_model(to, loaded.model, weights, loaded.system, loaded.vocabulary, "float16")
    assert (to / "config.json").stat().st_mtime_ns == before


def test_pack_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["models", "--pack", str(folder), "--out", str(tmp_path / "p")])
    assert not stop.value.code and "MB of weights" in capsys.readouterr().err
    assert load_model(tmp_path / "p").system.name == "wait-info"
    for arguments, message in (
        (["--pack", str(folder)], "give --out"),
        (["--pack", str(folder), "--out", str(tmp_path / "p")], "exists already"),
        (["--pack", "nowhere", "--out", str(tmp_path / "n")], "nowhere: no such model"),
        (["--pack", str(folder), "--out", str(tmp_path / "n"), "--dtype", "int3"], "int3"),
        (["--pack", "de-en", "--out", str(tmp_path / "n"), "--dtype", "int3"], "int3"),
        (["--out", "x"], "only with --pack, --import or --export"),
        (["xx-yy"], "xx-yy: no such model; bundled models: "),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["models", *arguments])
        assert stop.value.code == 2 and message in capsys.readouterr().err


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def pack(folder: Path, to: Path) -> Path:
    with pytest.raises(SystemExit) as stop:
        main(["models", "--pack", str(folder), "--out", str(to)])
    assert not stop.value.code
    return to


def test_packed_folders(folder: Path, tmp_path: Path) -> None:
    """Floats ignore preparations; integers use them, and do without where there are none."""
    packed = pack(folder, tmp_path / "p")
    stored = load_stored(packed)
    plain = {name: array for name, array in stored.items() if not name.endswith((CENTER, REPEATED))}
    assert len(plain) < len(stored)
    weights = load_model(folder, "cpu").model.weights()
    without = quantize({name: tensor.float().numpy() for name, tensor in weights.items()})
    assert plain.keys() == without.keys()
    assert all(np.array_equal(plain[name], without[name]) for name in plain)
    assert dequantize(load_stored(packed)).keys() == weights.keys()
    save_weights(pack(folder, tmp_path / "q"), tensors(plain))
    for dtype in ("float32", "bfloat16"):
        one, other = (load_model(tmp_path / name, "cpu", dtype).model for name in "pq")
        for a, b in zip(one.weights().values(), other.weights().values(), strict=True):
            assert torch.equal(a, b)
    one, other = (load_model(tmp_path / name, "cpu", "int8").model for name in "pq")
    how = [m.parts.encoder[0].attention.project.rounding.prepared for m in (one, other)]
    assert how[0] is not None and how[1] is None
    assert one.parameter_count() == other.parameter_count()


@pytest.mark.parametrize(("suffix", "wrong"), [
    (REPEATED, torch.tensor([100_000])), (REPEATED, torch.tensor([-1])),
    (REPEATED, torch.zeros(1000, dtype=torch.int32)), (CENTER, torch.zeros(3)),
])  # fmt: skip
def test_damaged_preparations_are_refused(
    folder: Path, tmp_path: Path, suffix: str, wrong: torch.Tensor
) -> None:  # fmt: skip
    packed = pack(folder, tmp_path / "p")
    stored = load_stored(packed)
    stored = tensors(stored)
    save_weights(packed, {**stored, f"encoder_layers.0.attention.project.weight{suffix}": wrong})
    with pytest.raises(WaitinfoError, match="weights do not fit config.json"):
        load_model(packed, "cpu", "int8")


@pytest.mark.parametrize("name", [
    "source_embedding.weight", "encoder_layers.1.attention.project.bias",
    "decoder_layers.0.cross.queries.weight", "decoder_layers.0.around_cross.norm.weight",
    "source_info.quantizer.hidden.weight", "encoder_layers.0.feed_forward.out.weight",
])  # fmt: skip
def test_weights_of_other_shapes_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    """Compiled code would read beyond them."""
    packed = pack(folder, tmp_path / "p")
    stored = load_stored(packed)
    for change in (name, name + SCALE):
        if change in stored:
            wrong = {**stored, change: stored[change][:-1].copy()}
            save_weights(packed, tensors(wrong))
            with pytest.raises(WaitinfoError, match="weights do not fit config.json"):
                load_model(packed, "cpu", "int8")


def test_bundled_models_are_found_by_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(folders, "models_folder", lambda: tmp_path / "models")
    with pytest.raises(WaitinfoError, match="no model was given"):
        folders.find_model(None)
    (tmp_path / "models").mkdir()
    folder.rename(tmp_path / "models" / "de-en")
    (tmp_path / "models" / "de-en" / "README.md").write_text("# de-en\n\nGerman to English.\n")
    assert folders.find_model(None) == folders.find_model("de-en") == tmp_path / "models" / "de-en"
    assert folders.find_model(tmp_path) == tmp_path
    with pytest.raises(WaitinfoError, match="run/best: no such model; bundled models: de-en"):
        folders.find_model("run/best")
    assert load().translate("ein Haus am See", 2) == load("de-en").translate("ein Haus am See", 2)
    with pytest.raises(SystemExit):
        main(["models"])
    shown = capsys.readouterr().out
    assert "de-en (default)" in shown and "German to English." in shown
    with pytest.raises(SystemExit):
        main(["models", "de-en"])
    assert "German to English." in capsys.readouterr().out


def test_two_models_in_the_box(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Both are listed, loaded by name and served, each in its direction."""
    monkeypatch.setattr(folders, "models_folder", lambda: tmp_path / "models")
    loaded = load_model(folder, "cpu")
    saved = (loaded.model, loaded.model.weights(), loaded.system, loaded.vocabulary)
    for name in ("de-en", "en-de"):
        languages = Languages(*name.split("-"))
        save_model(tmp_path / "models" / name, *saved, languages=languages)
        (tmp_path / "models" / name / "README.md").write_text(f"# {name}\n\nThe {name} one.\n")
    for given in (["models"], ["translate", "--model", "en-de", "a house by the lake"]):
        with pytest.raises(SystemExit) as stop:
            main(given)
        assert not stop.value.code
    shown = capsys.readouterr().out
    assert "de-en (default)" in shown and "The en-de one." in shown
    assert load("en-de").loaded.languages == Languages("en", "de")
    pytest.importorskip("fastapi")
    from waitinfo.serving.metrics import Metrics
    from waitinfo.serving.models import load_models

    served = load_models([Path("de-en"), Path("en-de")], Metrics(), 1, "cpu")
    try:
        found = {code: served.between(*code.split("-")) for code in ("de-en", "en-de")}
        assert {code: each.name for code, each in found.items() if each} == {
            "de-en": "de-en", "en-de": "en-de",
        }  # fmt: skip
    finally:
        served.close()


def test_cards_have_what_a_hub_reads() -> None:
    """In YAML at the front, which people are not shown."""
    for name, model in bundled_models().items():
        text = (model.folder / "README.md").read_text("utf-8")
        front, _, card = text.removeprefix("---\n").partition("\n---\n\n")
        found = yaml.safe_load(front)
        assert found["language"] == name.split("-") and found["license"] == "apache-2.0"
        assert found["pipeline_tag"] == "translation" and found["library_name"] == "waitinfo"
        assert model.card == card and card.startswith(f"# {name}\n")
