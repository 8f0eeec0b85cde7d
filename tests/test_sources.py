"""Models by whatever names them: a published folder or file, or a name on the hub."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.many_languages import saved
from waitinfo import load
from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.importing.exporting import export
from waitinfo.importing.models import read_published
from waitinfo.importing.sources import find_source, is_published
from waitinfo.streaming.lag import Dials
from waitinfo.text.languages import Languages
from waitinfo.trained.folder import fingerprint
from waitinfo.trained.saving import load_model


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the files of transformers, and an empty cache."""
    monkeypatch.setenv("WAITINFO_CACHE", str(tmp_path / "cache"))
    saved(tmp_path / "many", "m2m100")
    return tmp_path / "many"


def test_a_published_model_is_imported_once(published: Path) -> None:
    found = find_source(published)
    assert found.name == "many" and "cache" in found.parts and not is_published(found)
    changed = (found / "config.json").stat().st_mtime_ns
    assert find_source(published) == found
    assert (found / "config.json").stat().st_mtime_ns == changed
    assert find_source(published, "float32") != found
    weights = published / "model.safetensors"
    assert find_source(weights) == found  # a file stands for its folder
    weights.write_bytes(weights.read_bytes())  # another time of change
    assert find_source(published) != found
    assert find_source(found) == found


def test_a_model_without_a_card_shows_its_shape(
    published: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["models", str(published)])
    config = json.loads((find_source(published) / "config.json").read_text("utf-8"))["model"]
    shown = capsys.readouterr().out
    assert not stop.value.code and f"- width: {config['width']}\n" in shown
    assert f"- encoder: {config['encoder_layers']} layers, reads whole prefixes\n" in shown


@pytest.mark.parametrize("verb", ["translate", "evaluate", "analyse", "distill"])
def test_verbs_take_published_models(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    text = tmp_path / "text.de"
    text.write_text("bab dudo geg.\nge du.\n", "utf-8")
    option = "--teacher" if verb == "distill" else "--model"
    model = [option, str(published), "--from", "de", "--to", "en", "--system", "wait-k"]
    files = {
        "translate": ["--input", str(text), "--out", str(tmp_path / "out")],
        "evaluate": ["--source", str(text), "--reference", str(text), "--out", str(tmp_path / "p")],
        "analyse": ["--source", str(text), "--reference", str(text), "--k", "2"],
        "distill": ["--text", str(text), "--out", str(tmp_path / "out.tsv")],
    }
    files["analyse"] += ["--out", str(tmp_path / "a")]
    with pytest.raises(SystemExit) as stop:
        main([verb, *model, *files[verb]])
    assert not stop.value.code, capsys.readouterr().err
    languages = Languages("de", "en")
    expected = load(published, system="wait-k", languages=languages).translate("ge du.")
    if verb == "translate":
        assert (tmp_path / "out").read_text("utf-8").splitlines()[1] == expected
    elif verb == "distill":
        assert (tmp_path / "out.tsv").exists()  # random weights write nothing worth keeping
    elif verb == "analyse":
        found = json.loads((tmp_path / "a" / "difficulty.json").read_text("utf-8"))
        assert found["difficulty"]["length"]
    else:
        (point,) = (tmp_path / "p").glob("*.json")
        assert json.loads(point.read_text("utf-8"))["test"]["sentences"] == 2


class Hub:
    """What huggingface_hub answers, from a folder of this machine."""

    def __init__(self, folder: Path, online: bool = True) -> None:
        self.folder, self.online = folder, online
        self.asked: list[str] = []

    def list_repo_files(self, name: str) -> list[str]:
        if not self.online:
            raise ConnectionError("no network\nat all")
        return [path.name for path in (self.folder / name).iterdir()]

    def snapshot_download(
        self, name: str, allow_patterns: list[str] = (), local_files_only: bool = False
    ) -> str:
        snapshot = self.folder / "snapshots" / name
        if local_files_only:
            if not snapshot.exists():
                raise FileNotFoundError(name)
            return str(snapshot)
        self.asked = list(allow_patterns)
        snapshot.mkdir(parents=True)
        for file in allow_patterns:
            shutil.copy(self.folder / name / file, snapshot / file)
        return str(snapshot)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hub: Any = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
        monkeypatch.setattr(hub, "HfApi", lambda: self)
        monkeypatch.setattr(hub, "snapshot_download", self.snapshot_download)


def test_names_on_the_hub(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some").mkdir()
    published.rename(tmp_path / "some" / "model-of-many")
    for name in ("code.py", "rust_model.ot", "pytorch_model.bin", "notes.exe"):
        (tmp_path / "some" / "model-of-many" / name).write_bytes(b"\0")
    hub = Hub(tmp_path)
    hub.install(monkeypatch)
    found = find_source("some/model-of-many")
    assert found.name == "model-of-many" and (found / "tokenizer.model").exists()
    assert set(hub.asked) == {
        "config.json", "generation_config.json", "model.safetensors", "sentencepiece.bpe.model",
        "special_tokens_map.json", "vocab.json",
    }  # fmt: skip
    hub.online = False  # what was fetched before is found again
    assert find_source("some/model-of-many") == found
    with pytest.raises(WaitinfoError, match=r"from the hub \(ConnectionError") as e:
        find_source("some/other")
    assert "\n" not in str(e.value)
    with pytest.raises(WaitinfoError, match="no such model"):
        find_source("neither")


def test_what_the_hub_has_may_be_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file, message in (
        ("pickled", "pytorch_model.bin", "save_pretrained"),
        ("empty", "README.md", "no weights that can be read"),
    ):
        (tmp_path / "some" / name).mkdir(parents=True)
        (tmp_path / "some" / name / file).write_bytes(b"x")
        Hub(tmp_path).install(monkeypatch)
        with pytest.raises(WaitinfoError, match=message):
            find_source(f"some/{name}")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("t5", "relative positions"),
        ("gpt2", "a decoder without an encoder"),
        ("mbart", "learned positions"),
        ("nllb-moe", "a mixture of experts"),
    ],
)
def test_refusals_say_why(tmp_path: Path, kind: str, reason: str) -> None:
    config = {"model_type": kind, "is_encoder_decoder": kind != "gpt2"}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(WaitinfoError, match=rf"of type {kind} \({reason}\)"):
        read_published(tmp_path)


def test_a_folder_for_the_hub_comes_back_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    (tmp_path / "some").mkdir()
    out = tmp_path / "some" / "mine"
    with pytest.raises(SystemExit) as stop:
        main(["models", "de-en", "--export", "hub", "--out", str(out)])
    assert not stop.value.code and "hf upload OWNER/mine" in capsys.readouterr().err
    for path, folder in (("de-en", out), (tmp_path / "plain", tmp_path / "some" / "plain")):
        if path != "de-en":  # a folder without a card
            shutil.copytree(find_source("de-en"), path)
            (path / "README.md").unlink()
            export("hub", path, folder)
        card = hub.ModelCard.load(folder / "README.md")
        facts = card.data.to_dict()
        assert (facts["language"], facts["library_name"]) == (["de", "en"], "waitinfo")
        assert (
            facts["pipeline_tag"] == "translation" and "simultaneous-translation" in facts["tags"]
        )
        assert card.text.strip().startswith("# ")
    Hub(tmp_path).install(monkeypatch)
    found = find_source("some/mine")
    assert fingerprint(found) == fingerprint(find_source("de-en"))
    assert Dials(found, load_model(found).system).calibration.lags
    for arguments, message in (
        (["de-en", "--export", "onnx", "--out", str(out)], "hub"),
        (["de-en", "--export", "hub"], "give a model and --out"),
        (["de-en", "--export", "hub", "--out", str(out)], "exists already"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(["models", *arguments])
        assert stop.value.code == 2 and message in capsys.readouterr().err
