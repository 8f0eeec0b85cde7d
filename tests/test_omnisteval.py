"""OmniSTEval itself, installed for the test, against our scores of long streams."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands import done_quietly
from tests.listening import spoken_manifest, tones
from tests.streams import toy_model
from tests.tools import ROOT, python_with, trained_briefly
from waitinfo import Translator
from waitinfo.evaluation.speech import hear, read_manifest, score, write_results

VERSION = "0.1.10"


@pytest.fixture(scope="module", params=["bpe:800", "words:3"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_briefly(tmp_path_factory.mktemp("omnisteval"), request.param)


# Scores of the tool without rounding: documents, or single sentences.
DRIVER = """
import json, sys
from omnisteval.io import load_resegmentation_inputs, load_shortform_instances
from omnisteval.resegment import resegment
from omnisteval.scoring import evaluate_instances

folder, single = sys.argv[1:]
if single == "single":
    instances = load_shortform_instances(f"{folder}/instances.log", None, "delays", "elapsed")
    scores, *_ = evaluate_instances(instances, is_longform=False)
else:
    given = load_resegmentation_inputs(
        f"{folder}/segments.json", None, f"{folder}/references.txt", f"{folder}/documents.log"
    )
    instances, _ = resegment(*given)
    scores, *_ = evaluate_instances(instances, is_longform=True)
print("SCORES" + json.dumps([scores, [i.prediction for i in instances]]))
"""


@pytest.fixture(scope="session")
def tool() -> Path:
    return python_with("omnisteval", VERSION)


def omnisteval(tool: Path, folder: Path, kind: str) -> tuple[dict[str, float], list[str]]:
    done = subprocess.run(
        [tool, "-c", DRIVER, folder, kind], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SCORES")]
    scores, texts = json.loads(line.removeprefix("SCORES"))
    return scores, texts


def documented_command(tool: Path, folder: Path) -> str:
    """What the command in docs/evaluation.md prints in the folder of a point."""
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8").replace("\\\n", " ")
    (command,) = (line.split() for line in page.splitlines() if "omnisteval longform" in line)
    done = subprocess.run(
        [tool.parent / command[0], *command[1:]], cwd=folder, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("run", ["bpe:800"], indirect=True)
def test_scores_equal_the_reference_tool(run: Path, tool: Path) -> None:
    out = run / "documents"
    done_quietly("evaluate", "--model", run / "run", "--source", run / "test.de", "--reference",
                 run / "test.en", "--k", "2", "--condition", "clean,documents", "--documents", 7,
                 "--out", out)  # fmt: skip
    folder = out / "documents" / "wait-info-2"
    ours = json.loads((out / "documents" / "wait-info-2.json").read_text())
    found, texts = omnisteval(tool, folder, "documents")
    assert texts == (folder / "hypotheses.txt").read_text("utf-8").splitlines()
    for name in ("BLEU", "chrF"):
        assert ours["quality"][name] == pytest.approx(found[name.lower()], abs=1e-6)
    # The files say that a source word takes a second; the tool counts milliseconds.
    for name in ("LongYAAL", "LongLAAL", "LongAL"):
        theirs = found[f"long_{name.removeprefix('Long').lower()}"] / 1000
        assert ours["documents"][name] == pytest.approx(theirs, abs=1e-6), name

    printed = documented_command(tool, folder)
    assert f"{1000 * ours['documents']['LongYAAL']:.4f}" in printed
    assert f"{ours['quality']['BLEU']:.4f}" in printed

    ours = json.loads((out / "wait-info-2.json").read_text())
    found, _ = omnisteval(tool, out / "wait-info-2", "single")
    for name in ("AL", "LAAL", "AP", "DAL", "YAAL"):
        assert ours["word"][name] == pytest.approx(found[name.lower()], abs=1e-6), name
    for name in ("SWF", "EFSW", "DSPTV"):
        assert ours["degeneracy"][name] == pytest.approx(found[name.lower()], abs=1e-6), name
    assert ours["degeneracy"]["degenerate"] == bool(found["degenerate_policy"])


def test_scores_of_speech_equal_the_reference_tool(tmp_path: Path, tool: Path) -> None:
    talks = hear(read_manifest(spoken_manifest(tmp_path)), tones(), Translator(toy_model(), 1), 2)
    ours = score(talks, resamples=0)
    write_results(tmp_path / "out", talks, ours)
    found, _ = omnisteval(tool, tmp_path / "out", "documents")
    for name in ("BLEU", "chrF"):
        assert ours["quality"][name] == pytest.approx(found[name.lower()], abs=1e-6), name
    for part, prefix in (("latency", ""), ("latency_with_computation", "ca_")):
        for name in ("YAAL", "LAAL"):
            wanted = found[f"{prefix}long_{name.lower()}"] / 1000
            assert ours[part][f"Long{name}"] == pytest.approx(wanted, abs=1e-6), (part, name)
