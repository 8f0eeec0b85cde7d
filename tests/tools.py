"""Published scorers, installed for the tests that compare with them, and a model to score."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.commands import done_quietly

ROOT = Path(__file__).resolve().parents[1]
VERSION = "1.1.4"
METRICS = ("AL", "LAAL", "AP", "DAL", "ATD")
TATOEBA = ROOT / "examples" / "data" / "tatoeba.de-en.tsv"

# Runs SimulEval like its own command, without rounding its scores. Without an output folder, its
# instances stay text; with one (and with --score-only) they are read from the log, and ATD then
# treats delays in words as milliseconds of speech.
DRIVER = """
import json, sys
from simuleval import options
from simuleval.evaluator import SentenceLevelEvaluator, build_evaluator
from simuleval.utils.agent import build_system_args

for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    if "--score-only" in arguments:
        parser = options.general_parser()
        options.add_evaluator_args(parser)
        options.add_scorer_args(parser)
        options.add_dataloader_args(parser)
        evaluator = SentenceLevelEvaluator.from_args(parser.parse_args())
    else:
        system, args = build_system_args()
        evaluator = build_evaluator(args)
        evaluator(system)
    figures = {**evaluator.quality, **evaluator.latency}
    texts = [i.prediction for i in evaluator.instances.values()]
    delays = [i.delays for i in evaluator.instances.values()]
    print("FIGURES" + json.dumps([figures, texts, delays]))
"""


def python_with(package: str, version: str) -> Path:
    """A Python with a package, which also finds the packages of this Python and our own."""
    folder = (
        ROOT / "build" / f"{package}-{version}-{sys.version_info.major}{sys.version_info.minor}"
    )
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                   "--no-input", "--no-compile", f"{package}=={version}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
            pytest.skip(f"{package} {version} cannot be installed here: {reason[0]}")
        paths = [path for path in sys.path if path.endswith("site-packages")]
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text("\n".join([str(ROOT / "src"), *paths]) + "\n")
        (folder / "ready").touch()
    return python


def simuleval_python() -> Path:
    return python_with("simuleval", VERSION)


Found = tuple[dict[str, float], list[str], list[list[int]]]


def simuleval(tool: Path, *calls: list[object]) -> list[Found]:
    """Scores, texts and delays of each call, all in one process, which takes seconds to start."""
    given = json.dumps([[str(argument) for argument in call] for call in calls])
    command = [tool, "-c", DRIVER, given]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("FIGURES")]
    return [tuple(json.loads(line.removeprefix("FIGURES"))) for line in lines]


def trained_briefly(folder: Path, vocabulary: str) -> Path:
    """A model trained briefly on real sentences, with long, varied and often wrong output."""
    pairs = TATOEBA.read_text("utf-8").splitlines()[:2000]
    (folder / "train.tsv").write_text("\n".join(pairs) + "\n", "utf-8")
    tested = [line.split("\t") for line in TATOEBA.read_text("utf-8").splitlines()[2000:2040]]
    # Several sentences per line, an apostrophe, numbers, and a reference that is too short.
    tested += [["Das ist gut. Ich gehe jetzt nach Hause, weil es regnet.", "Good. I go."]]
    (folder / "test.de").write_text("".join(f"{a}\n" for a, _ in tested), "utf-8")
    (folder / "test.en").write_text("".join(f"{b}\n" for _, b in tested), "utf-8")
    done_quietly("prepare", "--tsv", folder / "train.tsv", "--vocab", vocabulary, "--out",
                 folder / "corpus")  # fmt: skip
    done_quietly("train", "--system", "wait-info", "--data", folder / "corpus", "--size", "tiny",
                 "--out", folder / "run", "--set", "training.updates=80", "training.warmup=20",
                 "training.lr=0.004", "training.batch_tokens=1000", "training.validate_every=80",
                 "training.validate_sentences=0", "training.checkpoint_every=80",
                 "system.whole_source_updates=5", "model.width=64")  # fmt: skip
    return folder
