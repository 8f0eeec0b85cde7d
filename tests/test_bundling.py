"""experiments.bundle: commands that exist, figures that stay, and a card that shows them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments import chain
from experiments.bundle import __main__ as bundle
from experiments.bundle import card as cards
from experiments.pages.tables import RESULTS
from tests.commands import parsed
from waitinfo.evaluation.points import read_file
from waitinfo.trained.folder import find_model

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "experiments"
EVERYDAY = {"chrF": 80.0, "right": 60.0, "sentences": 200, "k": 5.0, "beam": 1}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A model with the shape of the bundled one, from English to German, without weights."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = json.loads((find_model(None) / "config.json").read_text("utf-8"))
    config["languages"] = {"source": "en", "target": "de"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    *options: object,
) -> list[str]:  # fmt: skip
    """What --dry-run prints."""
    monkeypatch.setattr(sys, "argv", ["bundle", *map(str, options), "--dry-run"])
    bundle.main()
    return [line for line in capsys.readouterr().out.splitlines() if not line.startswith("# ")]


def test_the_commands_exist_and_read_the_right_side(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = commands(monkeypatch, capsys, run, "en-de", "DATA", "--device", "cuda")
    called = [line.split(" -m waitinfo ")[1] for line in shown if " -m waitinfo " in line]
    assert {line.split()[0] for line in called} == {"models", "evaluate"}
    for line in called:
        parsed(*shlex.split(line, comments=True))
    scored = [line for line in called if line.startswith("evaluate")]
    for line in scored:
        assert re.search(r"--source \S+\.en --reference \S+\.de ", line)
    conditions = {name for line in scored for name in re.findall(r"--condition (\S+)", line)}
    assert conditions == {
        "clean,lower", "documents,documents-lower", "errors-5,errors-10,errors-15",
    }  # fmt: skip
    assert not (run / "bundle").exists(), "a dry run writes nothing"


def test_other_weights_are_scored_again(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stages are replaced by ones that only count."""
    stages = [
        chain.Stage("packed", "packed", "mkdir {out}; echo p >> {data}  # {weights}"),
        chain.Stage("unpacked", "unpacked", "touch {out}; echo u >> {data}  # {weights}"),
        chain.Stage("news", "news", "touch {out}; echo n >> {data}", needs=("packed",)),
        chain.Stage("other", "other", "touch {out}; echo o >> {data}"),
    ]
    monkeypatch.setattr(
        bundle, "read_chain", lambda name: ({"run": "RUN", "weights": "WEIGHTS"}, stages)
    )
    log = run.parent / "log"
    arguments = ["bundle", run, "en-de", log, "--stages", "unpacked,news,other"]
    monkeypatch.setattr(sys, "argv", [str(each) for each in arguments])
    for _ in range(2):
        bundle.main()
    assert log.read_text("utf-8").split() == ["u", "p", "n", "o"]
    (run / "model.safetensors").write_bytes(b"others")
    bundle.main()
    assert log.read_text("utf-8").split() == ["u", "p", "n", "o", "u", "p", "n"]
    assert "has other weights now" in capsys.readouterr().out


def test_a_model_without_languages_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((run / "config.json").read_text("utf-8"))
    del config["languages"]
    (run / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(SystemExit, match="must name both languages"):
        commands(monkeypatch, capsys, run, "en-de", "DATA")


@pytest.fixture
def points() -> list[dict[str, Any]]:
    """Points as `evaluate` writes them, of all conditions, with figures that differ."""
    (pattern, *_) = read_file(RESULTS / "systems" / "de-en.jsonl")
    made = []
    for number, name in enumerate(("newstest2015", "europarl.test-german")):
        for suffix in ("", "-lower", "-documents", "-documents-lower"):
            for k in (1.0, 5.0):
                point = json.loads(json.dumps(pattern))
                point |= {"name": "en-de", "run": "en-de", "set": name + suffix, "k": k}
                bleu = 10 + 10 * number + k - len(suffix) / 10
                point["quality"] |= {"BLEU": bleu, "chrF": bleu + 20}
                point["paper"]["AL"], point["word"]["LAAL"] = k - 0.5, k + 0.25
                point["timed"] = None
                if "documents" in suffix:
                    point["documents"] = {"LongLAAL": k + 1.0}
                    point["paper"]["AL"] = point["word"]["LAAL"] = None  # of sentences only
                made.append(point)
    for k, bleu in ((1.0, 11.2), (5.0, 15.3)):  # the first set, not packed
        (point,) = (p for p in made if p["set"] == "newstest2015" and p["k"] == k)
        whole = {**point, "name": "en-de-float32", "quality": {**point["quality"], "BLEU": bleu}}
        made.append(whole)
    return made


def test_figures_of_other_models_stay(points: list[dict[str, Any]], tmp_path: Path) -> None:
    other = [{**point, "run": "de-en", "name": "de-en"} for point in points[:3]]
    results = tmp_path / "results"
    bundle.publish("de-en", other, {"everyday": 1}, results)
    for _ in range(2):
        bundle.publish("en-de", points, {"everyday": 2}, results)
    assert read_file(results / "models" / "bundled.jsonl") == [*other, *points]
    measured = json.loads((results / "models" / "bundled.json").read_text("utf-8"))
    assert measured == {"de-en": {"everyday": 1}, "en-de": {"everyday": 2}}
    page = (results / "models" / "bundled.md").read_text("utf-8")
    table = page.splitlines()
    assert any(
        row.startswith("| newstest2015 | 5 | 15.00 | 35.00 | 4.50 | 5.25 |") for row in table
    )
    assert any(
        re.match(r"\| newstest2015-documents \| 5 \|.* \|  \| 6\.00 \|", row) for row in table
    )
    assert (results / "models" / "bundled.svg").exists()


@pytest.fixture
def facts(points: list[dict[str, Any]], run: Path) -> Any:
    """What a card needs, with a model that is not there."""
    lags = [{"k": k, "lag": k + 1.5} for k in (1, 15)]
    text = json.dumps({"systems": {"veto": {"points": lags}, "wait-info": {"points": []}}})
    (run / "calibration.json").write_text(text, "utf-8")
    (run / "model.safetensors").write_bytes(b"0" * 24_200_000)
    training = {
        "last": {"update": 36_000, "epoch": 5.25, "minutes": 24.6},
        "settings": {"training": {"batch_tokens": 32_768}},
        "corpus": {"splits": {"train": {"pairs": 7_000_000}}},
        "environment": {"gpu": "NVIDIA H200"},
    }
    before = {**training, "last": {"update": 20_000, "epoch": 3.0, "minutes": 12.1}}
    measured = {
        "everyday": EVERYDAY, "everyday-spoken": EVERYDAY, "training": training, "before": [before],
    }  # fmt: skip
    languages = {"source": "en", "target": "de"}
    return cards.Facts("en-de", languages, run, points, measured)


def test_the_card(facts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "transcript", lambda facts: "$ waitinfo translate …")
    examples = tmp_path / "examples.md"
    examples.write_text("| English | German |\n", "utf-8")
    card = cards.make_card(facts, examples)
    front, _, card = card.removeprefix("---\n").partition("\n---\n\n")
    assert yaml.safe_load(front)["language"] == ["en", "de"]
    assert card.startswith("# en-de\n\nEnglish → German, word by word")
    assert not re.search(r"\{\w*\}|None|nan", card)
    rows = {row.split(" | ")[0]: row for row in card.splitlines() if row.startswith("| ")}
    # K = 5: newstest2015 and Europarl, as written and spoken; then documents, in their own table.
    written = "| 5 | 15.0 | 4.5 | 5.2 | 14.4 | 5.2 | 25.0 | 4.5 | 5.2 | 24.4 | 5.2 |"
    assert written in card.splitlines()
    assert rows["| 5"] == "| 5 | 14.0 | 6.0 | 13.4 | 6.0 | 24.0 | 6.0 | 23.4 | 6.0 |"
    assert all(len(line) <= 120 for line in card.splitlines() if not re.match(r"[|-]", line))
    card = " ".join(card.split())
    trained = "36,000 updates of 32,768 tokens in 25 minutes (5.2 epochs of 7,000,000 pairs"
    assert "on one NVIDIA H200 with 20,000 updates of 32,768 tokens in 12 minutes" in card
    assert f"then with {trained}" in card
    assert "changes BLEU from 15.30 to 15.00 (newstest2015, K = 5, full)" in card
    assert "(24 MB)" in card and "from 2.5 to 16.5" in card
    assert "40% do not become an acceptable translation" in card
    assert "BLEU is 14.4 instead of 15.0" in card and "| English | German |" in card
    sources = tomllib.loads((SCRIPTS / "bundle" / "sources.toml").read_text("utf-8"))["source"]
    assert len(sources) >= 15
    for source in sources:
        row = f"| {source['title']} | {source['amount']} | {source['licence']} |"
        assert (row in card) == ("en-de" in source.get("models", ["en-de"]))


def test_only_small_models_are_installed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "models" / "en-de"
    place.mkdir(parents=True)
    (place / "old").touch()
    bundle.install(run, place)
    assert [path.name for path in place.iterdir()] == ["config.json"]
    (run / "model.safetensors").write_bytes(b"0" * 26_000_000)
    with pytest.raises(SystemExit, match="26.0 MB; a bundled model has 25 at most"):
        bundle.install(run, place)
    assert [path.name for path in place.iterdir()] == ["config.json"]
    shutil.rmtree(place)
