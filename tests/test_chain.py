"""Chains of stages: order, resuming, and the German-English chain on a toy corpus."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import re
from itertools import pairwise
from pathlib import Path

import pytest

from experiments import run as runner
from tests.commands import Done
from tests.conftest import toy_pairs
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import read_bytes
from waitinfo.text.languages import Languages

ROOT = Path(__file__).resolve().parents[1]
CHAINS = ROOT / "experiments" / "chains"

CHAIN = """
[values]
mark = "{data}/mark"
[[stage]]
name = "one"
makes = "one.txt"
command = "echo one >> {work}/log; cat {mark} > {out}"
[[stage]]
name = "two-b"
needs = ["one"]
makes = "folder/two.txt"
command = "echo two >> {work}/log; cp {one} {out}; test ! -e {data}/broken; echo 2 >> {out}"
resume = "echo more >> {work}/log; echo resumed >> {out}"
[[stage]]
name = "three"
needs = ["two-b", "one"]
makes = "three.txt"
command = "echo three >> {work}/log; cat {one} {two_b} > {out}; cp {out} {results}/points"
"""


def command(*arguments: object) -> Done:
    """What the runner prints, and how it ends."""
    stdout, reason = io.StringIO(), ""
    with contextlib.redirect_stdout(stdout):
        try:
            runner.main([str(each) for each in arguments])
        except SystemExit as stop:
            reason = str(stop.code)
    return Done(bool(reason), stdout.getvalue(), reason)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A chain of three stages, and its data."""
    (tmp_path / "chain.toml").write_text(CHAIN, "utf-8")
    for place in ("data", "results"):
        (tmp_path / place).mkdir()
    (tmp_path / "data" / "mark").write_text("a\n", "utf-8")
    return tmp_path


def run(folder: Path, *options: object) -> Done:
    places = folder / "data", folder / "work", "--results", folder / "results"
    return command(folder / "chain.toml", *places, *options)


def log(folder: Path) -> list[str]:
    return (folder / "work" / "log").read_text("utf-8").split()


def test_stages_run_once_and_in_order(folder: Path) -> None:
    assert "three" in run(folder, "--stages", "three").stdout
    assert log(folder) == ["one", "two", "three"]
    assert (folder / "work" / "three.txt").read_text("utf-8") == "a\na\n2\n"
    assert (folder / "results" / "points").exists()
    assert run(folder).stdout == "" and len(log(folder)) == 3


def test_a_failed_stage_is_continued(folder: Path) -> None:
    (folder / "data" / "broken").touch()
    failed = run(folder)
    assert failed.returncode and "stage 'two-b' failed (exit status 1)" in failed.stderr
    assert log(folder) == ["one", "two"]
    (folder / "data" / "broken").unlink()
    assert run(folder).stdout == "continuing: two-b\nstarting: three\n"
    assert (folder / "work" / "three.txt").read_text("utf-8") == "a\na\nresumed\n"


def test_what_changed_is_not_taken_for_done(folder: Path) -> None:
    run(folder)
    changed = CHAIN.replace('mark = "{data}/mark"', 'mark = "{data}/mark /dev/null"')
    (folder / "chain.toml").write_text(changed, "utf-8")
    assert "--again one" in run(folder).stderr
    assert run(folder, "--again", "one").returncode == 0
    assert log(folder) == ["one", "two", "three"] * 2


def test_dry_runs_write_nothing(folder: Path) -> None:
    shown = run(folder, "--dry-run").stdout
    assert shown.count("# ") == 3 and "one.txt" in shown
    assert not (folder / "work").exists()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('needs = ["one"]', 'needs = ["none"]', "needs 'none', which is not an earlier stage"),
        ("makes = ", "made = ", "unknown key 'made'"),
        ("cp {one}", "cp {once}", "{once} is not known"),
    ],
)
def test_bad_chains(folder: Path, old: str, new: str, error: str) -> None:
    (folder / "chain.toml").write_text(CHAIN.replace(old, new), "utf-8")
    assert error in run(folder).stderr
    assert "unknown stage 'four'" in run_original(folder, "--stages", "four").stderr
    assert "unknown value 'x'" in run_original(folder, "--set", "x=1").stderr


def run_original(folder: Path, *options: str) -> Done:
    (folder / "chain.toml").write_text(CHAIN, "utf-8")
    return run(folder, *options)


# The chain itself

RECIPE = """
size = "tiny"
[system]
name = "full"
[model]
width = 16
ffn = 16
heads = 2
[training]
updates = 4
batch_tokens = 256
lr = 1e-3
warmup = 2
validate_every = 4
validate_sentences = 0
log_every = 2
"""


COPIES = """
[corpus]
spoken = 0.3
windows = 1.0
"""
STUDENTS = "de-en-continued,en-de-continued,en-de-teacher-score,de-en-teacher-score"


@pytest.fixture
def toy_data(tmp_path: Path) -> Path:
    """Files with the names that the German-English chain reads."""
    text = (CHAINS / "students.toml").read_text("utf-8").replace("LANGUAGE", "de")
    german = set(re.findall(r"\{data\}/(de-en/[\w.-]+?\.de(?:\.xz)?)[\s:\"]", text))
    tables = set(re.findall(r"\{data\}/([\w/-]+\.tsv\.xz)", text))
    plain = set(re.findall(r"\{data\}/([\w/-]+\.txt\.xz)", text))
    assert german and tables and plain
    data = tmp_path / "data"
    for seed, name in enumerate(sorted(german | tables | plain)):
        pairs = toy_pairs(12, seed)
        write(
            data / name, [pair[0] if name in german | plain else "\t".join(pair) for pair in pairs]
        )
        if name in german:
            english = re.sub(r"\.de(\.xz)?$", r".en\1", name)
            write(data / english, [pair[1] for pair in pairs])
    return data


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)


def test_the_chain_runs_and_resumes(toy_data: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE, "utf-8")
    student = RECIPE.replace('"full"', '"wait-info"') + COPIES
    (tmp_path / "student.toml").write_text(student, "utf-8")
    work = tmp_path / "work"
    settings = [
        "--device", "cpu", "--set", f"teacher=--config {tmp_path / 'recipe.toml'}",
        "--set", "search=--temperature 0.9 --top-k 5 --threads 1",
        "--set", "distillation=--beam 2 --max-tokens 120 --threads 1 --mix original=0",
        "--set", "pairing=--every", "--set", "limits=--max-ratio 1000",
        "--set", "german_pairing=--every",
        "--set", f"student=--config {tmp_path / 'student.toml'}",
        "--set", f"continued=--config {tmp_path / 'student.toml'}",
    ]  # fmt: skip
    first = command("students", toy_data, work, *settings, "--stages", "en-de-teacher")
    assert first.returncode == 0, first.stderr
    (work / "stages" / "en-de-teacher.json").unlink()  # as if stopped at its very end
    second = command("students", toy_data, work, *settings, "--stages", STUDENTS)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[0] == "continuing: en-de-teacher"
    assert "parallel" not in second.stdout
    translated = work / "text" / "back-translated" / "english.0000.xz"
    assert len(list(read_bytes(translated))) == 13 * 12
    for name in ("de-en", "en-de"):
        distilled = list(read_bytes(work / "text" / f"distilled.{name}.tsv.xz"))
        assert all(line.rstrip(b"\n").split(b"\t")[2:] == [b"distilled"] for line in distilled)
    config = json.loads((work / "models" / "en-de-teacher" / "last" / "config.json").read_text())
    assert config["languages"] == {"source": "en", "target": "de"}
    parallel, tagged, mixed = (
        Corpus(work / "corpora" / name) for name in ("parallel", "tagged", "mixed")
    )
    assert len(mixed.train) == len(parallel.train) + len(tagged.train)
    assert mixed.manifest["tagged"] == len(tagged.train) > 0
    assert (work / "models" / "de-en-teacher" / "last" / "config.json").exists()
    check_students(work)
    check_continued(work)
    # The teacher has learned nothing, and no translation of it was kept: some others instead.
    lines = ["\t".join((*pair, "distilled")) for pair in toy_pairs(9, 5)]
    write(work / "text" / "distilled.de-en.tsv.xz", lines)
    stages = ("--stages", "europarl,all,same-original")
    third = command("ingredients-text", toy_data, work, *settings, *stages)
    assert third.returncode == 0, third.stderr
    check_ingredients(work, third.stdout)


def check_ingredients(work: Path, said: str) -> None:
    """The text of the students, part by part: each corpus has all of the one before it."""
    assert "parallel" not in said and "de-en-student" not in said  # both chains share WORK
    names = ["parallel", "mixed", "distilled", "spoken", "all"]
    pairs = [len(Corpus(work / "corpora" / name).train) for name in names]
    added = ["tagged", "distilled-alone", "spoken-alone", "windows-alone"]
    more = [len(Corpus(work / "corpora" / name).train) for name in added]
    assert [after - before for before, after in pairwise(pairs)] == more
    pairs = [line.split("\t") for line in (work / "text" / "spoken.tsv").read_text().splitlines()]
    assert [target for _, target in pairs] == [target for _, target in toy_pairs(9, 5)]
    assert all(source == source.lower() for source, _ in pairs)
    assert len(Corpus(work / "corpora" / "same-original").train) > 2 * 12


def check_students(work: Path) -> None:
    """Students know their languages, and their text has all kinds of pairs."""
    parallel = len(Corpus(work / "corpora" / "parallel").train)
    for name in ("de-en", "en-de"):
        corpus = Corpus(work / "corpora" / f"{name}-student")
        assert corpus.languages == Languages(*name.split("-"))
        assert len(corpus.train) > 1.2 * parallel and corpus.manifest["tagged"] > 0
        assert {"spoken", "windows", "spoken windows"} & set(corpus.manifest["copies"]) > {"spoken"}
        model = work / "models" / f"{name}-student" / "last"
        config = json.loads((model / "config.json").read_text("utf-8"))
        assert config["languages"] == dict(zip(("source", "target"), name.split("-"), strict=True))
        assert config["system"]["name"] == "wait-info"


def check_continued(work: Path) -> None:
    """Students go on from the weights they have, with no text that is only original."""
    for name in ("de-en", "en-de"):
        run = json.loads((work / "models" / f"{name}-continued" / "run.json").read_text("utf-8"))
        assert run["given"]["training"]["start_from"] == str(work / "models" / f"{name}-student")
        pairs = [
            len(Corpus(work / "corpora" / f"{name}-{kind}").train) for kind in ("spoken", "student")
        ]
        assert 0 < pairs[0] < pairs[1]
