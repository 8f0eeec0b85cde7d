"""The command line as typed: what it prints, where, and how it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.cli.app import expand_lists, main
from waitinfo.cli.translate import LiveText


class Done(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def called(*arguments: object) -> Done:
    """The command in this process: starting another takes seconds."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with pytest.raises(SystemExit) as stop, redirect_stdout(stdout), redirect_stderr(stderr):
        main([str(argument) for argument in arguments])
    return Done(stop.value.code or 0, stdout.getvalue(), stderr.getvalue())


def typed(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "waitinfo", *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run made by commands alone: prepare, then train."""
    folder = tmp_path_factory.mktemp("cli")
    pairs = toy_pairs(300)
    (folder / "a.x").write_text("".join(f"{s}\n" for s, _ in pairs[:150]))
    (folder / "a.y").write_text("".join(f"{t}\n" for _, t in pairs[:150]))
    (folder / "b.x").write_text("".join(f"{s}\n" for s, _ in pairs[150:]))
    (folder / "b.y").write_text("".join(f"{t}\n" for _, t in pairs[150:]))
    done = called(
        "prepare", "--source", folder / "a.x", folder / "b.x", "--target", folder / "a.y",
        folder / "b.y", "--vocab", "bpe:16000", "--holdout", 20, "--out", folder / "corpus",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "reduced from 16,000" in done.stderr
    (folder / "recipe.toml").write_text('size = "tiny"\n[training]\nupdates = 150\nlr = 3e-3\n')
    done = typed(
        "train", "--system", "wait-info", "--data", folder / "corpus", "--out", folder / "run",
        "--config", folder / "recipe.toml", "--set", "training.warmup=20",
        "training.batch_tokens=400", "system.whole_source_updates=20", "training.log_every=50",
        "model.width=64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "update     150" in done.stderr and "tokens/s" in done.stderr
    assert (folder / "run" / "recipe.toml").exists()
    return folder / "run"


def test_lists_after_one_option() -> None:
    assert expand_lists(["prepare", "--source", "a", "b", "--out", "c", "--target", "d"]) == [
        "prepare", "--source", "a", "--source", "b", "--out", "c", "--target", "d",
    ]  # fmt: skip
    assert expand_lists(["translate", "--source", "a", "b"]) == ["translate", "--source", "a", "b"]
    assert expand_lists([]) == []


def test_help_shows_examples() -> None:
    for verb in ("prepare", "train", "translate", "evaluate"):
        done = called(verb, "--help")
        assert done.returncode == 0 and "Example" in done.stdout


def test_translation_alone_goes_to_standard_output(run: Path) -> None:
    by_argument = called("translate", "--model", run, "--k", 3, "ba be bi", "du")
    assert by_argument.returncode == 0
    lines = by_argument.stdout.splitlines()
    assert len(lines) == 2 and lines[0].endswith("s")
    by_pipe = typed("translate", "--model", run, stdin="ba be bi\n\ndu\n")
    assert by_pipe.stdout.splitlines() == [lines[0], "", lines[1]]


def test_input_file(run: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("ba be\n" * 3)
    done = called("translate", "--model", run / "best", "--input", tmp_path / "in.txt")
    assert len(done.stdout.splitlines()) == 3


def test_path_shows_reads_and_writes(run: Path) -> None:
    done = called("translate", "--model", run, "--k", 1, "--show", "path", "ba be bi bo")
    assert done.stdout.count("READ") >= 3 and done.stdout.count("WRITE") >= 3


def test_evaluate_writes_points(run: Path, tmp_path: Path) -> None:
    pairs = toy_pairs(30, seed=9)
    (tmp_path / "x").write_text("".join(f"{s}\n" for s, _ in pairs))
    (tmp_path / "y").write_text("".join(f"{t}\n" for _, t in pairs))
    done = called(
        "evaluate", "--model", run, "--source", tmp_path / "x", "--reference", tmp_path / "y",
        "--k", "1,3", "--out", tmp_path / "points",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    low, high = (
        json.loads((tmp_path / "points" / f"wait-info-{k}.json").read_text()) for k in "13"
    )
    assert low["paper"]["AL"] < high["paper"]["AL"] and low["test"]["sentences"] == 30
    assert "BLEU_signature" in low["quality"] and len(low["test"]["source"]["sha256"]) == 64
    texts = tmp_path / "points" / "wait-info-1" / "hypotheses.txt"
    assert len(texts.read_text().splitlines()) == 30
    assert "profile paper" in done.stdout and "profile word" in done.stdout

    again = called(
        "evaluate", "--model", run, "--source", tmp_path / "x", "--reference", tmp_path / "y",
        "--k", "1", "--ending", "allow", "--out", tmp_path / "points",
    )  # fmt: skip
    assert again.returncode == 2 and "with another ending" in again.stderr

    drawn = called("compare", tmp_path / "points", "--out", tmp_path / "c.svg", "--at", "2,3")
    assert drawn.returncode == 0, drawn.stderr
    assert "interpolated" in drawn.stdout and "<svg" in (tmp_path / "c.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--model", "nowhere", "x"], "nowhere: no such model"),
        (["translate", "--model", "RUN", "--k", "-2", "x"], "K must be a number of at least 0"),
        (["translate", "--model", "RUN", "--show", "tree", "x"], "unknown --show 'tree'"),
        (["translate", "--model", "RUN", "--beam", "4", "x"], "only full-sentence models"),
        (["translate", "--model", "RUN", "--threads", "-1", "x"], "must be 0 or more"),
        (["translate", "--model", "RUN", "--ending", "soon", "x"], "unknown ending 'soon'"),
        (["translate", "--model", "RUN", "--input", "no.txt"], "no.txt: no such file"),
        (["translate", "--model", "RUN", "--device", "cuda:9", "x"], "--device cuda:9"),
        (["prepare", "--source", "a", "--out", "o"], "1 source and 0 target files"),
        (["prepare", "--tsv", "no.tsv", "--out", "o"], "no.tsv: no such file"),
        (["prepare", "--out", "o"], "no training text was given"),
        (
            ["train", "--out", "o", "--system", "wait-info", "--data", "none"],
            "not a prepared corpus",
        ),
        (["train", "--out", "o", "--system", "waitk", "--data", "none"], "unknown system 'waitk'"),
        (["train", "--out", "o", "--config", "no.toml"], "no.toml: cannot be read"),
        (["train", "--out", "RUN"], "already in use"),
    ],
)
def test_bad_input_is_one_line(run: Path, capsys, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main([str(run) if a == "RUN" else a for a in arguments])
    assert exit_code.value.code == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1, printed.err
    assert printed.out == ""


def test_closed_pipe_is_no_traceback(run: Path) -> None:
    text = "ba be bi bo bu\n" * 6000
    done = subprocess.run(
        f"{sys.executable} -m waitinfo translate --model {run} | head -n 1",
        shell=True, input=text, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_standard_input_is_followed_live(run: Path) -> None:
    """Words come out while the line is still being written."""
    # Whoever runs the tests in the background has SIGINT ignored, and children inherit that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "waitinfo", "translate", "--model", str(run), "--k", "1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stdin and process.stdout and process.stderr
    process.stdin.write(b"ba be bi bo bu da ")
    process.stdin.flush()
    os.read(process.stdout.fileno(), 1000)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert b"Traceback" not in process.stderr.read()


def test_every_view(run: Path) -> None:
    for show in ("words", "path", "info", "json"):
        done = called("translate", "--model", run, "--show", show, "ba be. bi")
        assert done.returncode == 0, done.stderr
        out = done.stdout
        assert "abs" in out or "\u2581" in out or "READ" in out
        assert "\x1b[" not in out, "no colours where there is no terminal"
        if show == "json":
            events = [json.loads(line) for line in out.splitlines()]
            assert {event["kind"] for event in events} == {"READ", "WRITE"}
            assert events[-1]["sentence"] == 1


def test_words_at_a_pace(run: Path) -> None:
    paced = called("translate", "--model", run, "--k", 2, "--pace", 50, "ba be bi")
    at_once = called("translate", "--model", run, "--k", 2, "ba be bi")
    assert paced.returncode == at_once.returncode == 0
    source, translation, *_ = paced.stdout.splitlines()
    assert source == "ba be bi" and translation == at_once.stdout.strip()


def test_words_prepare_from_tsv(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(100))
    done = called("prepare", "--tsv", tsv, "--vocab", "words:5", "--out", tmp_path / "c")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "c" / "corpus.json").read_text())
    assert manifest["vocabulary"] == {"kind": "words", "joint": False, "source": 19, "target": 19}


def test_live_text_survives_what_is_not_utf8(capsys) -> None:
    text = LiveText()
    split = "schön".encode()
    assert text.decode(split[:4]) + text.decode(split[4:]) == "schön"  # within a letter
    assert not capsys.readouterr().err
    assert text.decode(b"gr\xfcn ") == text.decode(b"gr\xfcn ") == "gr\ufffdn "
    assert len(capsys.readouterr().err.splitlines()) == 1
