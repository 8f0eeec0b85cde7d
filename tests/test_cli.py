"""The command line as typed: what it prints, where, and how it fails."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from rich.console import Console

import waitinfo
from tests.commands import HANGS, VERBS, called, parsed, typed
from tests.conftest import tiny_config, toy_pairs, write_pairs
from waitinfo.cli.app import main
from waitinfo.cli.console import Pace, progress_bar
from waitinfo.cli.options import usable_cores, use_threads
from waitinfo.cli.terminal import LiveText, TypedLine, type_lines
from waitinfo.cli.views import VIEWS, translation
from waitinfo.model import Transformer
from waitinfo.progress import Lines
from waitinfo.streaming.scheduler import HISTORY
from waitinfo.systems import build_system
from waitinfo.text.prepare import PrepareOptions
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.saving import save_model


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
    assert "leaked" not in done.stderr  # what libraries say that are not freed at the end
    assert (folder / "run" / "recipe.toml").exists()
    return folder / "run"


def test_lists_after_one_option() -> None:
    found = parsed("prepare", "--source", "a", "b", "--out", "c", "--target", "d")
    assert found["source"] == [Path("a"), Path("b")] and found["target"] == [Path("d")]
    assert found["out"] == Path("c")
    given = parsed("train", "--out", "run", "--set=a=1", "b=2", "--resume")
    assert given["settings"] == ["a=1", "b=2"] and given["resume"]


@pytest.mark.parametrize(
    ("given", "settings", "text"),
    [
        ("--set a=1 b.c=2 Haus", "a=1 b.c=2", "Haus"),
        ("--set a=1 Haus b=2", "a=1", "Haus b=2"),  # text has begun
        ("--set a=1 -- b=2", "a=1", "b=2"),
        ("--set a=1 b=2 --k 3 c=4", "a=1 b=2", "c=4"),
        ("--set a=1 2+2=4 =5", "a=1", "2+2=4 =5"),  # no names
        ("--set Haus", "Haus", ""),  # to be complained about
        ("Haus --set a=1 b=2", "a=1 b=2", "Haus"),
    ],
)
def test_settings_end_where_text_begins(given: str, settings: str, text: str) -> None:
    found = parsed("translate", *given.split())
    assert (found["settings"], found["text"]) == (settings.split(), text.split())


def test_settings_are_not_translated(run: Path) -> None:
    given = ["translate", "--model", run, "--set", "floor=false", "k_min=2"]
    done = called(*given, "ba be bi")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    done = called(*given, "floors=2", "ba be bi")
    assert done.returncode == 2 and "unknown setting 'system.floors'" in done.stderr


def test_help_shows_examples() -> None:
    for verb in ("prepare", "train", "translate", "evaluate"):
        done = called(verb, "--help")
        assert done.returncode == 0 and "Example" in done.stdout
        assert "bool" not in done.stdout and "<list[Path]>" not in done.stdout
        assert called(verb, "-h").stdout == done.stdout


@pytest.mark.parametrize(
    ("typed_so_far", "offered"),
    [
        ("waitinfo trans", {"translate"}),
        ("waitinfo serve --ke", {"--keys"}),
        ("waitinfo train --system multi", {"multipath"}),
        ("waitinfo evaluate --model ", {"de-en", "en-de"}),
    ],
)
def test_the_tab_key_completes(typed_so_far: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": typed_so_far, "COMP_CWORD": str(typed_so_far.count(" "))}
    environment = {**os.environ, **words, "_WAITINFO_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-m", "waitinfo"], capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    assert offered <= set(done.stdout.split())


def test_help_names_the_defaults_of_a_corpus() -> None:
    """Options that a recipe may set have no default of their own; their help names it."""
    for option in VERBS["prepare"].params:
        if found := re.search(r"\[default: ([\w:.]+)\]", option.help or ""):
            default = getattr(PrepareOptions(), option.name)
            assert type(default)(found[1]) == default


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
        (["translate", "--model", "RUN", "--k", "nan", "x"], "K must be a number of at least 0"),
        (["translate", "--model", "RUN", "--k", "inf", "x"], "K must be a number from 0 to 100000"),
        (["translate", "--model", "RUN", "--threads", "-1", "x"], "must be 0 or more"),
        (["translate", "--model", "RUN", "--segment", "words", "x"], "unknown segment 'words'"),
        (
            ["translate", "--model", "RUN", "--segment", "none:3", "x"],
            "segment none:3: not underst",
        ),
        (["translate", "--model", "RUN", "--pace", "-1", "x"], "--pace -1: must be 0, or"),
        (["translate", "--model", "RUN", "--pace", "nan", "x"], "--pace nan: must be 0, or"),
        (["translate", "--model", "RUN", "--pace", "inf", "x"], "--pace inf: must be 0, or"),
        (
            ["translate", "--model", "RUN", "--pace", "1e-320", "x"],
            "finite and at least 0.001",
        ),
        (["translate", "--model", "RUN", "--input", "RUN"], "is a folder, not a text file"),
        (["translate", "--model", "RUN", "--input", "no.txt", "x"], "either text or --input"),
        (["translate", "--model", "RUN", "--device", "meta", "x"], "device meta: cannot be used"),
        (
            ["translate", "--model", "RUN", "--device", "toaster", "x"],
            "device toaster: unknown; use auto, cpu",
        ),
        (["translate", "--model", "RUN", "--dtype", "int3", "x"], "unknown dtype 'int3'"),
        (["translate", "--model", "RUN", "--ending", "soon", "x"], "unknown ending 'soon'"),
        (["translate", "--model", "RUN", "--input", "no.txt"], "no.txt: no such file"),
        (["translate", "--model", "RUN", "--device", "cuda:9", "x"], "device cuda:9"),
        (["prepare", "--source", "a", "--out", "o"], "1 source and 0 target files"),
        (["prepare", "--tsv", "no.tsv", "--out", "o"], "no.tsv: no such file"),
        (["prepare", "--out", "o"], "no training text was given"),
        (
            ["train", "--out", "o", "--system", "wait-info", "--data", "none"],
            "not a prepared corpus",
        ),
        (["train", "--out", "o", "--system", "waitk", "--data", "none"], "unknown system 'waitk'"),
        (["train", "--out", "o", "--config", "no.toml"], "no.toml: cannot be read"),
        (["train", "--out", "RUN"], "already in use; add --resume"),
        (["train", "--out", "."], "already in use, and not by a run"),
        (["translate", "--k", "x", "text"], "invalid value for '--k'"),
        (["translate", "--k"], "requires an argument (see waitinfo translate --help)"),
        (["evaluate", "--bogus", "1"], "no such option: --bogus"),
        (["evaluate"], "--source and --reference: give both, or --audio MANIFEST"),
        (["speak"], "no such command 'speak' (see waitinfo --help)"),
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
        shell=True, input=text, capture_output=True, text=True, timeout=HANGS, check=False,
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
    assert process.wait(HANGS) == 130
    assert process.stderr.read().decode().endswith("waitinfo: stopped\n")
    assert b"Traceback" not in process.stderr.read()


def test_every_view(run: Path) -> None:
    done = {}
    for show in ("words", "path", "info", "json"):
        done[show] = called("translate", "--model", run, "--k", 2, "--show", show, "ba be. bi")
        assert done[show].returncode == 0, done[show].stderr
        assert "\x1b[" not in done[show].stdout, "no colours where there is no terminal"
    words = done["words"].stdout.split()
    assert words and words == [word for word in words if word.strip()]

    events = [json.loads(line) for line in done["json"].stdout.splitlines()]
    assert {event["kind"] for event in events} == {"READ", "WRITE"} and events[-1]["sentence"] == 1
    assert [e["word"] for e in events if e["kind"] == "READ" and e["word"]] == ["ba", "be.", "bi"]
    shown = [e["word"] for e in events if e["kind"] == "WRITE" and e["word"]]
    assert " ".join(shown).split() == words

    first, *steps, last, empty = done["path"].stdout.splitlines()
    assert (first, last, empty) == ("ba be. bi", done["words"].stdout.strip(), "")
    read, written = zip(*(step.split("   WRITE ") for step in steps), strict=True)
    assert all(part.startswith("  READ ") for part in read)
    assert "".join(read).count("⏎") == "".join(written).count("⏎") == 2

    source, target, empty = done["info"].stdout.splitlines()
    counts = [sum(e["kind"] == kind and e["token"] != "</s>" for e in events)
              for kind in ("READ", "WRITE")]  # fmt: skip
    assert [source.count("("), target.count("("), empty] == [*counts, ""]


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


def test_a_byte_order_mark_is_no_text() -> None:
    mark, rest = b"\xef\xbb\xbf", "schön \ufeff".encode()
    for cut in range(1, 5):
        text = LiveText()
        assert text.decode((mark + rest)[:cut]) + text.decode((mark + rest)[cut:]) == "schön \ufeff"


def test_live_text_survives_what_is_not_utf8(capsys) -> None:
    text = LiveText()
    split = "schön".encode()
    assert text.decode(split[:4]) + text.decode(split[4:]) == "schön"  # within a letter
    assert not capsys.readouterr().err
    assert text.decode(b"gr\xfcn ") == text.decode(b"gr\xfcn ") == "gr\ufffdn "
    assert len(capsys.readouterr().err.splitlines()) == 1


# Hostile input: one line of complaint, and nothing lost


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained full-sentence model."""
    folder = tmp_path_factory.mktemp("full") / "model"
    words, _ = train_tokenizer(["ba be bi bo bu"] * 3, VocabularySpec("bpe", 300))
    torch.manual_seed(1)
    sizes = {"source_vocabulary": len(words), "target_vocabulary": len(words)}
    model = Transformer(tiny_config(**sizes, encoder="bidirectional"))
    save_model(folder, model, model.weights(), build_system("full"), Vocabulary(words, words))
    return folder


@pytest.mark.parametrize(
    ("closed", "arguments", "message"),
    [
        ("<&-", "", "waitinfo: standard input is closed; give text or --input\n"),
        (">&-", "ba", "waitinfo: standard output is closed\n"),
        ("2>&-", "--k -1 ba", ""),
    ],
)
def test_closed_standard_streams(run: Path, closed: str, arguments: str, message: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m waitinfo translate --model {run} {arguments} {closed}",
        shell=True, capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


@pytest.mark.parametrize("show", ["words", "path", "info", "json"])
def test_arguments_that_are_not_utf8(run: Path, show: str) -> None:
    """The system hands such bytes over as single surrogates."""
    done = called("translate", "--model", run, "--show", show, "ba \udcfc be")
    assert done.returncode == 0
    assert done.stderr == "note: not valid UTF-8: ba \ufffd be\n"
    right = called("translate", "--model", run, "--show", show, "ba \ufffd be")
    if show == "json":
        events = [json.loads(line) for line in done.stdout.splitlines()]
        words = [e["word"] for e in events if e["kind"] == "READ" and e["word"]]
        assert words == ["ba", "\ufffd", "be"]
    else:
        assert done.stdout == right.stdout


def test_arguments_in_utf8_where_the_locale_is_not(run: Path, tmp_path: Path) -> None:
    """There all but ASCII arrives as surrogates, and names of files must stay so."""
    surrogates = "gr\udcc3\udcbcn"
    done = called("translate", "--model", run, "--show", "path", surrogates)
    assert done.stdout.splitlines()[0] == "grün" and not done.stderr
    file = tmp_path / "n\udcfc"
    file.write_text("ba\nbe\n")
    done = called("translate", "--model", run, "--input", file)
    assert len(done.stdout.splitlines()) == 2 and not done.stderr


def test_pushes_with_single_surrogates(run: Path) -> None:
    translator = waitinfo.load(run)
    assert translator.translate("ba \ud800 be") == translator.translate("ba \ufffd be")
    texts = []
    for pieces in (["ba \ud83d", "\ude00 be"], ["ba \U0001f600 be"]):  # a pair that was cut apart
        stream = translator.stream(raw=True)
        for piece in pieces:
            stream.push(piece)
        stream.finish()
        texts.append([e.word for e in stream.trace if e.kind == "READ" and e.word])
    assert texts[0] == texts[1] == ["ba", "\U0001f600", "be"]


def test_a_beam_reads_what_is_not_utf8(full: Path) -> None:
    done = called("translate", "--model", full, "--beam", 2, stdin=b"gr\xfcn\n\nba be")
    assert done.returncode == 0, done.stderr
    assert "not UTF-8" in done.stderr and len(done.stderr.splitlines()) == 1
    right = called("translate", "--model", full, "--beam", 2, "gr\ufffdn", "", "ba be")
    assert done.stdout == right.stdout and len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("more", [["--show", "json"], ["--pace", "3"], ["--k", "3"]])
def test_a_beam_does_not_pretend(full: Path, more: list[str]) -> None:
    done = called("translate", "--model", full, "--beam", 2, *more, "ba")
    assert done.returncode == 2 and not done.stdout and len(done.stderr.splitlines()) == 1


def test_files_of_any_length(full: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.txt", tmp_path / "out.txt.gz"
    source.write_bytes(b"ba be. bi\n\ngr\xfcn\nba be bi bo")
    given = ["translate", "--model", full, "--input", source, "--out", out]
    done = called(*given, "--rows", 2)
    assert done.returncode == 0, done.stderr
    assert not done.stdout and "in.txt, line 3: not valid UTF-8" in done.stderr
    assert "4 lines translated" in done.stderr
    right = called("translate", "--model", full, "ba be. bi", "", "gr\ufffdn", "ba be bi bo")
    assert gzip.decompress(out.read_bytes()).decode() == right.stdout
    assert "exists already" in called(*given).stderr
    assert "is complete" in called(*given, "--resume").stderr
    done = called(*given, "--force", "--beam", 2, "--best", 2, "--scores", "--segment", "whole")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in gzip.decompress(out.read_bytes()).decode().splitlines()]
    assert [len(row) for row in rows] == [4] * 4
    beam = called("translate", "--model", full, "--beam", 2, "--segment", "whole", "ba be. bi")
    assert beam.stdout == rows[0][1] + "\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "x", "ba"], "--out: needs --input"),
        (["--out", "x", "--input", "IN", "--show", "json"], "--out: leave out --pace, --show"),
        (["--out", "x", "--input", "IN", "--pace", "3"], "--out: leave out --pace, --show"),
        (["--out", "x", "--input", "IN", "--rows", "0"], "a batch of 0 rows: must be at least 1"),
        (["--out", "x", "--input", "IN", "--top-k", "2"], "top_k 2: needs a temperature"),
        (["--out", "IN", "--input", "IN"], "is the input"),
        (["--resume", "ba"], "--resume: needs --input and --out"),
        (["--temperature", "1", "ba"], "--temperature: needs --input and --out"),
    ],
)
def test_files_that_cannot_be(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "IN").write_text("ba\n")
    done = called("translate", "--model", full, *more)
    assert done.returncode == 2 and message in done.stderr and not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["IN"]


def test_progress_has_lines_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 lines were there at the start; 20 more took 4 seconds, and 50 are left."""
    now = iter([100.0, 104.0])
    monkeypatch.setattr("waitinfo.cli.console.time.monotonic", lambda: next(now))
    pace = Pace(100)
    assert pace.text(30) == "30 of 100 lines"
    assert pace.text(50) == "50 of 100 lines, 5 per second, 0:00:10 left"


def test_lines_before_a_bad_one_are_translated(run: Path, full: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"ba be\n" * 3 + b"gr\xfcn\nba\n")
    for given in (["--model", run], ["--model", full, "--beam", 2]):
        done = called("translate", *given, "--input", tmp_path / "in.txt")
        assert done.returncode == 2 and "in.txt, line 4: not valid UTF-8" in done.stderr
        assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("content", [b"", b"\n", b"ba"])
def test_nearly_empty_input(run: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "in.txt").write_bytes(content)
    by_file = called("translate", "--model", run, "--input", tmp_path / "in.txt")
    by_pipe = called("translate", "--model", run, stdin=content)
    assert by_file == by_pipe and by_file.returncode == 0 and not by_file.stderr
    assert len(by_file.stdout.splitlines()) == len(content.splitlines())


def test_a_cut_letter_at_the_end_is_not_lost(run: Path) -> None:
    done = called("translate", "--model", run, "--show", "path", stdin="ba grü".encode()[:-1])
    assert done.stdout.splitlines()[0] == "ba gr\ufffd"


def test_a_long_line_is_shown_whole(run: Path) -> None:
    """Longer than what a stream remembers of itself."""
    words = [f"b{vowel}" for vowel in "aeiou"] * 420
    assert len(words) > HISTORY
    done = called("translate", "--model", run, "--k", 1, "--show", "json", " ".join(words))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [e["word"] for e in events if e["kind"] == "READ" and e["word"]] == words


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    for count in (0, 1, 10**30):
        use_threads(count)
    assert chosen == [1, usable_cores()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no device that is full")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_full_disk(run: Path, stream: str) -> None:
    given = ["translate", "--model", str(run), "ba"] if stream == "stdout" else ["models", "none"]
    full, said = open("/dev/full", "w"), io.StringIO()  # noqa: PTH123, SIM115
    out, err = (full, said) if stream == "stdout" else (said, full)
    with pytest.raises(SystemExit) as stop, redirect_stdout(out), redirect_stderr(err):
        main(given)
    assert stop.value.code == 2
    assert said.getvalue() == ("waitinfo: No space left on device\n" if out is full else "")
    with contextlib.suppress(OSError):
        full.close()


def test_input_nested_too_deeply(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[" * 100_000)
    done = called("compare", tmp_path / "a.json")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_names_are_no_markup(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(40))
    out = tmp_path / "a[bold]b[/red]"
    done = called("prepare", "--tsv", tsv, "--vocab", "words:1", "--out", out)
    assert done.returncode == 0 and str(out) in done.stderr


# Lines typed in an editor


def test_words_are_read_when_they_are_complete(run: Path) -> None:
    line = TypedLine(waitinfo.load(run), 3.0)
    read = []
    for number in range(len("ba be bi") + 1):
        line.edit("ba be bi"[:number])
        read.append(line.read)
    assert read == ["", "", "", "ba ", "ba ", "ba ", "ba be ", "ba be ", "ba be "]


def test_a_line_that_is_changed_is_translated_again(run: Path) -> None:
    translator = waitinfo.load(run)
    line = TypedLine(translator, 3.0)
    for text in ("ba be bi ", "ba bo", "ba bo du da "):
        line.edit(text)
    written = translation(line.end("ba bo du da de"))
    assert written == translator.translate(["ba bo du da de"], 3.0)[0]


def test_typing_in_a_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt_toolkit = pytest.importorskip("prompt_toolkit")
    translator = waitinfo.load(run)
    with (
        prompt_toolkit.input.create_pipe_input() as keys,
        prompt_toolkit.application.create_app_session(
            input=keys, output=prompt_toolkit.output.DummyOutput()
        ),
    ):
        keys.send_text("ba be bi\rdu\r\x04")  # two lines, and Ctrl-D
        type_lines(translator, None, VIEWS["words"]())
    assert capsys.readouterr().out.splitlines() == translator.translate(["ba be bi", "du"])


def test_a_table_grows_below_the_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=60, color_system=None)
    monkeypatch.setattr("waitinfo.cli.console.console", terminal)
    with progress_bar() as progress:
        progress.stage("translating", 2)
        progress.row({"system": "wait-info", "K": "1", "BLEU": "20.00"})
        progress.row({"system": "wait-info", "K": "3", "BLEU": "21.50"})
        shown = out.getvalue().split("translating")[-1]
    assert re.search(r"system\W+K\W+BLEU", shown)
    assert re.search(r"wait-info\W+1\W+20\.00\W+wait-info\W+3\W+21\.50", shown)


def test_rows_are_lines_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().row({"system": "wait-info", "K": "1", "BLEU": "20.00"})
    assert capsys.readouterr().err == "system wait-info, K 1, BLEU 20.00\n"
