"""Languages are passed from the corpus to the model, and change nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.cli import main
from waitinfo.errors import WaitinfoError
from waitinfo.text.corpus import Corpus
from waitinfo.text.languages import UNKNOWN, Languages
from waitinfo.trained.folder import bundled_models, fingerprint
from waitinfo.trained.saving import load_model, save_model
from waitinfo.training import train
from waitinfo.training.display import SilentDisplay

TINY = {"width": 16, "ffn": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2}


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    assert stopped.value.code in (0, None)


def test_from_the_command_line_to_the_model(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "pairs.tsv", toy_pairs(60))
    call("prepare", "--tsv", str(tsv), "--vocab", "words:1", "--holdout", "5",
         "--source-language", "de", "--target-language", "pt-BR", "--out", str(tmp_path / "corpus"),
         )  # fmt: skip
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.manifest["languages"] == {"source": "de", "target": "pt-BR"}
    assert corpus.languages == Languages("de", "pt-BR")
    values = {
        "data": str(tmp_path / "corpus"), "system": "wait-k", "model": TINY,
        "training": {"updates": 1, "validate_sentences": 0},
    }  # fmt: skip
    train(values, tmp_path / "run", display=SilentDisplay())
    config = json.loads((tmp_path / "run" / "last" / "config.json").read_text("utf-8"))
    assert config["languages"] == {"source": "de", "target": "pt-BR"}
    assert load_model(tmp_path / "run").languages == Languages("de", "pt-BR")
    call("models", "--pack", str(tmp_path / "run"), "--out", str(tmp_path / "packed"))
    assert load_model(tmp_path / "packed").languages == Languages("de", "pt-BR")


def test_unknown_languages_are_not_written(toy_corpus: Path, tmp_path: Path) -> None:
    corpus = Corpus(toy_corpus)
    assert "languages" not in corpus.manifest and corpus.languages == UNKNOWN
    bundled = load_model(bundled_models()["de-en"].folder)
    assert bundled.languages == Languages("de", "en")
    weights = bundled.model.weights()
    saved = (bundled.model, weights, bundled.system, bundled.vocabulary)
    save_model(tmp_path / "unknown", *saved)
    save_model(tmp_path / "known", *saved, languages=Languages("de", "en"))
    save_model(tmp_path / "half", *saved, languages=Languages(target="en"))
    assert "languages" not in json.loads((tmp_path / "unknown" / "config.json").read_text("utf-8"))
    assert load_model(tmp_path / "unknown").languages == UNKNOWN
    assert load_model(tmp_path / "half").languages == Languages(None, "en")
    assert fingerprint(tmp_path / "unknown") == fingerprint(tmp_path / "known")


@pytest.mark.parametrize("code", ["", "german", "d", "de en", "de_DE", "../x", 7])
def test_bad_codes_are_rejected(code: object) -> None:
    with pytest.raises(WaitinfoError, match="not a language code"):
        Languages(code, "en")  # type: ignore[arg-type]


def test_damaged_entries_are_rejected() -> None:
    path = Path("corpus.json")
    for entry in ("de-en", ["de", "en"]):
        with pytest.raises(WaitinfoError, match=r"corpus.json: languages .* must have a source"):
            Languages.read({"languages": entry}, path)
    with pytest.raises(WaitinfoError, match=r"corpus.json: source language 'x y': not a language"):
        Languages.read({"languages": {"source": "x y"}}, path)
