"""SimulEval itself, installed for the test, against our metrics in the `word` profile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.commands import done_quietly
from tests.tools import METRICS, simuleval, simuleval_python, trained_briefly

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def tool() -> Path:
    return simuleval_python()


@pytest.fixture(scope="module", params=["bpe:800", "words:3"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_briefly(tmp_path_factory.mktemp("simuleval"), request.param)


@pytest.mark.parametrize("ending", ["guard", "allow"])
def test_figures_equal_the_reference_tool(run: Path, tool: Path, ending: str) -> None:
    out = run / ending
    done_quietly("evaluate", "--model", run / "run", "--source", run / "test.de", "--reference",
                 run / "test.en", "--k", "2", "--ending", ending, "--out", out)  # fmt: skip
    ours = json.loads((out / "wait-info-2.json").read_text())
    live = ["--agent-class", "waitinfo.simuleval.Agent", "--model", run / "run", "--k", 2,
            "--ending", ending, "--source", run / "test.de", "--target", run / "test.en",
            "--no-progress-bar", "--no-scoring", "--latency-metrics", *METRICS]  # fmt: skip
    from_log = ["--score-only", "--output", out / "wait-info-2", "--latency-metrics", *METRICS]
    (found, texts, delays), (scored, _, _) = simuleval(tool, live, from_log)
    logged = [json.loads(line) for line in (out / "wait-info-2" / "instances.log").open()]
    assert texts == [line["prediction"] for line in logged]
    assert delays == [line["delays"] for line in logged]
    for metric in METRICS:
        assert ours["word"][metric] == pytest.approx(found[metric], abs=1e-6), metric
    assert ours["quality"]["BLEU"] == pytest.approx(found["BLEU"], abs=1e-6)

    for metric in set(METRICS) - {"ATD"}:
        assert ours["word"][metric] == pytest.approx(scored[metric], abs=1e-6), metric
    assert ours["quality"]["BLEU"] == pytest.approx(scored["BLEU"], abs=1e-6)
    # This is a defect of SimulEval: its ATD from a log differs from that of the same live run.
    assert scored["ATD"] != pytest.approx(found["ATD"], abs=1e-3)


POLICIES = {"local-agreement": 2, "alignatt": 2, "confidence": 0.1, "punctuation": 3}


@pytest.mark.parametrize("run", ["bpe:800"], indirect=True)
def test_other_policies_write_alike(run: Path, tool: Path) -> None:
    """The agent, word by word, and the batched decoder: for a model of another system."""
    text = "--source", run / "test.de"
    calls = [
        ["--agent-class", "waitinfo.simuleval.Agent", "--model", run / "run",
         "--decoding-system", system, "--k", k, *text, "--target", run / "test.en",
         "--no-progress-bar", "--no-scoring", "--latency-metrics", *METRICS]
        for system, k in POLICIES.items()
    ]  # fmt: skip
    for (system, k), (_, texts, delays) in zip(
        POLICIES.items(), simuleval(tool, *calls), strict=True
    ):
        done_quietly("evaluate", "--model", run / "run", "--system", system, "--k", k, *text,
                     "--reference", run / "test.en", "--out", run / "others")  # fmt: skip
        logged = (run / "others" / f"{system}-{k}" / "instances.log").read_text("utf-8")
        found = [json.loads(line) for line in logged.splitlines()]
        assert texts == [line["prediction"] for line in found]
        assert delays == [line["delays"] for line in found]


@pytest.mark.parametrize("run", ["bpe:800"], indirect=True)
def test_the_command_itself(run: Path, tool: Path) -> None:
    """`simuleval --agent-class …` from the command line, with an output folder."""
    command = [tool.parent / "simuleval", "--agent-class", "waitinfo.simuleval.Agent",
               "--model", run / "run", "--k", "3", "--source", run / "test.de",
               "--target", run / "test.en", "--output", run / "by-tool",
               "--end-index", "5"]  # fmt: skip
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "BLEU" in done.stdout
    assert len((run / "by-tool" / "instances.log").read_text().splitlines()) == 5
