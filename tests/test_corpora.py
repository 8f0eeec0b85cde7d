"""Tools for text and corpora, on cases worked by hand and on toy corpora."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from experiments.corpora.__main__ import main as corpora
from experiments.corpora.text import tokenised
from tests.conftest import toy_pairs, write_pairs
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText, read_lines
from waitinfo.text.languages import Languages
from waitinfo.text.prepare import PrepareOptions, prepare


def run(*arguments: object) -> None:
    corpora([str(each) for each in arguments])


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(lzma.compress(text) if path.suffix == ".xz" else text)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('He said, "Nothing To Envy."', 'He said , " Nothing To Envy . "'),
        ("They don't know the child's name", "They do n't know the child 's name"),
        ("They do n't know the child 's name", "They do n't know the child 's name"),  # as it was
        ("It’s 1,000.50 dollars – or 3.5%...", "It 's 1,000.50 dollars -- or 3.5 % ..."),
        ("Dr. Lee of the U.S. left (well-known).", "Dr. Lee of the U.S. left ( well-known ) ."),
        ("Tôi đã rất tự hào.", "Tôi đã rất tự hào ."),
        ("tie\u0302\u0301ng", "tiếng"),  # composed
        ("", ""),
    ],
)
def test_lines(line: str, expected: str) -> None:
    assert tokenised(line) == expected
    assert tokenised(expected) == expected


def test_training_pairs_of_a_held_out_sentence_are_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Case and punctuation do not matter; lines of fewer than four words are kept."""
    pairs = [("This is the test.", "a b"), ("Thank you.", "c"), ("Other words.", "Một hai ba bốn!")]
    for side, name in enumerate(("train.en", "train.vi")):
        text = "".join(f"{pair[side]}\n" for pair in [*pairs, ("Kept, too.", "d")])
        with lzma.open(tmp_path / f"{name}.xz", "wt", encoding="utf-8") as file:
            file.write(text)
    (tmp_path / "test.en").write_text("this is the test\nthank you\n", "utf-8")
    (tmp_path / "test.vi").write_text("một hai, ba bốn\nc\n", "utf-8")
    names = ("train.en.xz", "train.vi.xz", "out.en", "out.vi", "test.en", "test.vi")
    files = [str(tmp_path / name) for name in names]
    run("tokenise", *files[:4], "--without", *files[4:])
    assert (tmp_path / "out.en").read_text("utf-8") == "Thank you .\nKept , too .\n"
    assert (tmp_path / "out.vi").read_text("utf-8") == "c\nd\n"
    assert capsys.readouterr().out == "2 of 4 pairs kept\n"


@pytest.mark.parametrize("vocab", [{"vocab": "bpe:300"}, {"vocab": "words:1", "separate": True}])
def test_corpora_survive_the_journey_and_the_swap(vocab: dict, tmp_path: Path) -> None:
    pairs = [(source, f"{target} {n % 7}") for n, (source, target) in enumerate(toy_pairs(60, 1))]
    tsv = write_pairs(tmp_path / "toy.tsv", pairs)
    options = PrepareOptions(**vocab, languages=Languages("aa", "bb"))
    prepare(ParallelText(tsv=[tsv]), tmp_path / "corpus", options)
    run("pack", tmp_path / "corpus", tmp_path / "parts")
    run("unpack", tmp_path / "parts", tmp_path / "same")
    run("swap", tmp_path / "corpus", tmp_path / "swapped")
    run("swap", tsv, tsv, tmp_path / "swapped.tsv.xz")
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
    run("join", tmp_path / "both", tmp_path / "one", tmp_path / "two")
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
    with pytest.raises(SystemExit, match="its vocabulary is not that of"):
        run("join", tmp_path / "none", tmp_path / "one", tmp_path / "foreign")
    assert not (tmp_path / "none").exists()


def test_pairs_that_are_no_translations_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    run("pair", chunks, out, tmp_path / "plain.txt.xz", *options)
    kept = [(german[0], english[0])]
    kept += [(g, e) for g, e in zip(german[6:], english[6:], strict=True) if " 70 " not in e]
    lines = out.read_text("utf-8").splitlines()
    assert [tuple(line.split("\t")) for line in lines] == kept
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts == {
        "kept": 59, "copy": 1, "lengths": 1, "empty": 1, "not translated": 1, "other numbers": 1,
        "known": 1,
    }  # fmt: skip
    # Shifted by a line, nothing fits.
    write(chunks / "plain.0000.xz", german[5:55])
    write(tmp_path / "plain.txt.xz", english[4:54])
    (chunks / "plain.0001.xz").unlink()
    with pytest.raises(SystemExit, match="not aligned"):
        run("pair", chunks, tmp_path / "b.tsv", tmp_path / "plain.txt.xz", *options)
    assert not (tmp_path / "b.tsv").exists()


def test_pairs_in_the_other_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """English for German sentences: German words are what must not be there."""
    german = ["Ich bin da.", "Das ist nicht der Hund."]
    write(tmp_path / "text.txt.xz", german)
    english = ["The cat of the house is here.", "Das ist nicht the dog."]
    write(tmp_path / "chunks" / "text.0000.xz", english)
    out = tmp_path / "out.tsv"
    run("pair", tmp_path / "chunks", out, tmp_path / "text.txt.xz", "--language", "en")
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"kept": 1, "not translated": 1}
    assert out.read_text("utf-8") == f"{english[0]}\t{german[0]}\n"
