"""Numbers that come from elsewhere: analyses without text, the authors' code, switched models."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import collect
from experiments.pages.tables import RESULTS, points_of
from waitinfo.evaluation.curves import make_curves
from waitinfo.evaluation.points import read_points, select
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model


def run(*arguments: object) -> None:
    collect.main([str(each) for each in arguments])


def test_points_of_the_authors_code(tmp_path: Path) -> None:
    """A table becomes points that compare can read."""
    data = tmp_path / "multi30k-de-en"
    data.mkdir()
    for side in ("de", "en"):
        (data / f"test_2016_flickr.{side}").write_text("a\nb\n", "utf-8")
    row = {"data": "multi30k", "system": "wait-info", "bleu": 38.5, "bleu_lc": 38.8, "al": 1.7,
           "dal": 2.4, "ap": 0.6, "cw": 1.2, "early_stop": 0.14}  # fmt: skip
    with (tmp_path / "table.csv").open("w") as stream:
        writer = csv.DictWriter(stream, ["k", *row])
        writer.writeheader()
        writer.writerows([{**row, "k": 1}, {**row, "k": 3, "al": 3.5, "bleu": 40}])
    run("authors", tmp_path / "table.csv", tmp_path, tmp_path / "out" / "authors-code.jsonl")
    (curve,) = make_curves(read_points([tmp_path / "out"]), "paper.AL", "BLEU")
    assert (curve.name, curve.xs, curve.ys) == ("authors-wait-info", [1.7, 3.5], [38.5, 40])


def test_the_authors_points_belong_to_our_test_set() -> None:
    """Their captions are those of results/multi30k, so that both can be compared."""
    points = [*points_of(RESULTS, "multi30k"), *points_of(RESULTS, "authors-code")]
    captions = select(points, ["set=test_2016_flickr"])
    assert len({p["test"]["source"]["sha256"] for p in captions}) == 1
    assert {p["settings"]["ending"] for p in captions if p["name"].startswith("authors")} == {
        "allow"
    }


def test_numbers_of_an_analysis_are_collected_without_text(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"test": {"source": {"file": "news.de"}}}
    written = [{"token": "Hello", "info": 0.5, "read": 1}, {"token": "there", "info": 1, "read": 2}]
    subject = {"name": "x", "k": 3, "text": "Hello there", "written": written,
               "source": [{"token": "Hallo", "info": 1.5}]}  # fmt: skip
    case = {"line": 7, "latency": "paper.AL", "reference": "Hello.", "subjects": [subject]}
    for name, numbers in (("ratio", {"a": 1.23456789}), ("case", case)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"facts": facts, name: numbers}))
    for _ in range(2):
        run("analysis", tmp_path, tmp_path / "out" / "x.json")
    run("analysis", tmp_path, tmp_path / "out" / "x.json", "--name", "de-en")
    text = (tmp_path / "out" / "x.json").read_text()
    found = json.loads(text)
    assert set(found) == {"news", "de-en"} and found["news"] == found["de-en"]
    assert found["news"]["facts"] == facts and found["news"]["ratio"] == {"a": 1.23457}
    assert "ello" not in text and "Hallo" not in text
    (kept,) = found["news"]["case"]["subjects"]
    assert [(token["info"], token["read"]) for token in kept["written"]] == [(0.5, 1), (1, 2)]
    assert kept["source"] == [{"token": "1", "info": 1.5}] and "text" not in kept


def test_a_model_is_copied_with_a_switch_changed(tmp_path: Path) -> None:
    collect.switch("de-en", tmp_path / "copy", dict([collect.change("info_self_attention=false")]))
    one, other = (
        load_model(path, "cpu").model for path in (find_model("de-en"), tmp_path / "copy")
    )
    assert other.config == replace(one.config, info_self_attention=False)
    assert all(torch.equal(one.weights()[name], w) for name, w in other.weights().items())
    for wrong in ("info_dropout=false", "info_self_attention=0", "info_self_attention"):
        with pytest.raises(argparse.ArgumentTypeError, match="give one of info_self_attention"):
            collect.change(wrong)
