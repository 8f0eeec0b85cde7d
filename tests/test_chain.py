"""Chains of stages: order, resuming, and the German-English chain on a toy corpus."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText, read_bytes, read_lines
from waitinfo.text.languages import Languages
from waitinfo.text.prepare import PrepareOptions, prepare

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "experiments"

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
command = "echo three >> {work}/log; cat {one} {two_b} > {out}"
"""


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPTS / f"{name}.py", *arguments]
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A chain of three stages, and its data."""
    (tmp_path / "chain.toml").write_text(CHAIN, "utf-8")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mark").write_text("a\n", "utf-8")
    return tmp_path


def run(folder: Path, *options: object) -> subprocess.CompletedProcess[str]:
    return script("chain", folder / "chain.toml", folder / "data", folder / "work", *options)


def log(folder: Path) -> list[str]:
    return (folder / "work" / "log").read_text("utf-8").split()


def test_stages_run_once_and_in_order(folder: Path) -> None:
    assert "three" in run(folder, "--stages", "three").stdout
    assert log(folder) == ["one", "two", "three"]
    assert (folder / "work" / "three.txt").read_text("utf-8") == "a\na\n2\n"
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
        ('needs = ["one"]', 'needs = ["none"]', "needs 'none', which is no earlier stage"),
        ("makes = ", "made = ", "unknown key 'made'"),
        ("cp {one}", "cp {once}", "{once} is not known"),
    ],
)
def test_bad_chains(folder: Path, old: str, new: str, error: str) -> None:
    (folder / "chain.toml").write_text(CHAIN.replace(old, new), "utf-8")
    assert error in run(folder).stderr
    assert "unknown stage 'four'" in run_original(folder, "--stages", "four").stderr
    assert "unknown value 'x'" in run_original(folder, "--set", "x=1").stderr


def run_original(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "chain.toml").write_text(CHAIN, "utf-8")
    return run(folder, *options)


def test_corpora_survive_the_journey_and_the_swap(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "toy.tsv", toy_pairs(60, 1))
    options = PrepareOptions(vocab="bpe:300", languages=Languages("aa", "bb"))
    prepare(ParallelText(tsv=[tsv]), tmp_path / "corpus", options)
    assert not script("parcel", "pack", tmp_path / "corpus", tmp_path / "parts").returncode
    assert not script("parcel", "unpack", tmp_path / "parts", tmp_path / "same").returncode
    assert not script("swap", tmp_path / "corpus", tmp_path / "swapped").returncode
    assert not script("swap", tsv, tsv, tmp_path / "swapped.tsv.xz").returncode
    rows = [line.split("\t")[::-1] for line in tsv.read_text("utf-8").splitlines()]
    assert [*read_lines(tmp_path / "swapped.tsv.xz")] == ["\t".join(row) for row in rows] * 2
    corpus, same, swapped = (Corpus(tmp_path / name) for name in ("corpus", "same", "swapped"))
    for split in ("train", "dev"):
        found = [getattr(c, split) for c in (corpus, same, swapped)]
        every = np.arange(len(found[0]))
        for side in (0, 1):
            expected, *others = (
                s.gather(every, k)[0].tolist()
                for s, k in zip(found, (side, side, 1 - side), strict=True)
            )
            assert all(other == expected for other in others)
    assert [tuple(p) for p in swapped.dev_text()] == [tuple(p)[::-1] for p in corpus.dev_text()]
    assert swapped.languages == Languages("bb", "aa")
    assert swapped.token_counts("target").tolist() == corpus.token_counts("source").tolist()


def test_joined_corpora_hold_the_pairs_of_both(tmp_path: Path) -> None:
    tables = [write_pairs(tmp_path / f"{n}.tsv", toy_pairs(60, n)) for n in (1, 2)]
    options = PrepareOptions(vocab="bpe:300", shard_mib=0.0005)
    prepare(ParallelText(tsv=tables[:1]), tmp_path / "one", options)
    other = PrepareOptions(vocabulary_from=tmp_path / "one", spoken=0.5)
    prepare(ParallelText(tsv=tables[1:], tagged=tables[1:]), tmp_path / "two", other)
    prepare(ParallelText(tsv=tables[1:]), tmp_path / "foreign", PrepareOptions(vocab="bpe:290"))
    assert not script("join", tmp_path / "both", tmp_path / "one", tmp_path / "two").returncode
    one, two, both = (Corpus(tmp_path / name) for name in ("one", "two", "both"))
    assert len(one.train.tokens) > 1, "meant to be several shards"
    for side in (0, 1):
        found = both.train.gather(np.arange(len(both.train)), side)[0].tolist()
        parts = [c.train.gather(np.arange(len(c.train)), side)[0].tolist() for c in (one, two)]
        assert found == parts[0] + parts[1]
    assert both.dev_text() == one.dev_text()
    assert both.token_counts("source")[both.vocabulary.source.tag] == len(two.train)
    assert both.manifest["copies"] == two.manifest["copies"] and two.manifest["copies"]["spoken"]
    entry, *entries = (c.manifest["splits"]["train"] for c in (both, one, two))
    for key in ("pairs", "source_tokens", "target_tokens"):
        assert entry[key] == sum(e[key] for e in entries)
    failed = script("join", tmp_path / "none", tmp_path / "one", tmp_path / "foreign")
    assert "its vocabulary is not that of" in failed.stderr and not (tmp_path / "none").exists()


def test_pairs_that_are_no_translations_are_left_out(tmp_path: Path) -> None:
    chunks = tmp_path / "chunks"
    english = ["I paid 25 euros.", "Come in!", "We wait.", "Nobody knows.", "All of it is good."]
    german = ["Ich zahlte 25 Euro.", "Come in!", "Wir" + " warten und" * 9, "", "Das the of is it"]
    english += [f"Line {n} of the text." for n in range(60, 120)]
    german += [f"Zeile {n} des Textes." for n in range(60, 120)]
    german[5] = "Zeile 99 des Textes."
    write(tmp_path / "plain.txt.xz", english)
    write(chunks / "plain.0000.xz", german[:50])
    write(chunks / "plain.0001.xz", german[50:])
    write(tmp_path / "known.en", ["Line 70 of the text."])
    out = tmp_path / "out.tsv"
    options = ("--chunk", 50, "--without", tmp_path / "known.en")
    made = script("pair", chunks, out, tmp_path / "plain.txt.xz", *options)
    assert made.returncode == 0, made.stderr
    kept = [(german[0], english[0])]
    kept += [(g, e) for g, e in zip(german[6:], english[6:], strict=True) if " 70 " not in e]
    lines = out.read_text("utf-8").splitlines()
    assert [tuple(line.split("\t")) for line in lines] == kept
    counts = json.loads(made.stdout.splitlines()[-1])
    assert counts == {
        "kept": 59, "copy": 1, "lengths": 1, "empty": 1, "not translated": 1, "other numbers": 1,
        "known": 1,
    }  # fmt: skip
    # Shifted by a line, nothing fits.
    write(chunks / "plain.0000.xz", german[5:55])
    write(tmp_path / "plain.txt.xz", english[4:54])
    (chunks / "plain.0001.xz").unlink()
    shifted = script("pair", chunks, tmp_path / "b.tsv", tmp_path / "plain.txt.xz", *options)
    assert "not aligned?" in shifted.stderr and not (tmp_path / "b.tsv").exists()


def test_pairs_in_the_other_language(tmp_path: Path) -> None:
    """English for German sentences: German words are what must not be there."""
    german = ["Ich bin da.", "Das ist nicht der Hund."]
    write(tmp_path / "text.txt.xz", german)
    english = ["The cat of the house is here.", "Das ist nicht the dog."]
    write(tmp_path / "chunks" / "text.0000.xz", english)
    out = tmp_path / "out.tsv"
    made = script("pair", tmp_path / "chunks", out, tmp_path / "text.txt.xz", "--language", "en")
    assert json.loads(made.stdout.splitlines()[-1]) == {"kept": 1, "not translated": 1}
    assert out.read_text("utf-8") == f"{english[0]}\t{german[0]}\n"


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
    text = (SCRIPTS / "de-en" / "chain.toml").read_text("utf-8").replace("LANGUAGE", "de")
    german = set(re.findall(r"\{data\}/(de-en/[\w.-]+?\.de(?:\.xz)?)[\s:\"]", text))
    tables = set(re.findall(r"\{data\}/([\w/-]+\.tsv\.xz)", text))
    plain = set(re.findall(r"\{data\}/([\w/-]+\.txt\.xz)", text))
    assert len(german) == 7 and len(tables) == 5 and len(plain) == 14
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
    first = script("chain", "de-en", toy_data, work, *settings, "--stages", "en-de-teacher")
    assert first.returncode == 0, first.stderr
    (work / "stages" / "en-de-teacher.json").unlink()  # as if stopped at its very end
    second = script("chain", "de-en", toy_data, work, *settings, "--stages", STUDENTS)
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
    third = script("chain", "ingredients", toy_data, work, *settings, *stages)
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
