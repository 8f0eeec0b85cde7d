"""`prepare`: what is kept, what is dropped and counted, and no partial output."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.errors import WaitinfoError
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.text.special import BOS, EOS, PAD, UNK
from waitinfo.training.batches import make_batch


def texts(corpus: Corpus) -> list[tuple[str, str]]:
    """All training pairs, read back through the shards."""
    pairs = []
    for i in range(len(corpus.train)):
        index = np.array([i])
        source, _ = corpus.train.gather(index, 0)
        target, _ = corpus.train.gather(index, 1)
        vocabulary = corpus.vocabulary
        pairs.append((vocabulary.source.decode(source.tolist()),
                      vocabulary.target.decode(target.tolist())))  # fmt: skip
    return pairs


def test_filters_are_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    good = sorted(set(toy_pairs(80)))
    dev, test = good[0], good[1]
    long = ("ba " * 300, "abs " * 300)
    uneven = ("ba", "abs " * 12)
    rows = [*good, good[5], good[5], ("", "abs"), ("ba", " "), long, uneven]
    tsv = write_pairs(tmp_path / "all.tsv", rows)
    for name, pair in (("dev", dev), ("test", test)):
        (tmp_path / f"{name}.a").write_text(pair[0] + "\n")
        (tmp_path / f"{name}.b").write_text(pair[1] + "\n")
    manifest = prepare(
        ParallelText(tsv=[tsv]),
        tmp_path / "corpus",
        PrepareOptions(vocab="words:1", shard_mib=0.0002),
        dev=ParallelText([tmp_path / "dev.a"], [tmp_path / "dev.b"]),
        exclude=ParallelText([tmp_path / "test.a"], [tmp_path / "test.b"]),
    )
    assert manifest["dropped"] == {
        "also in a dev or test file": 2,
        "duplicate": 2,
        "empty side": 2,
        "longer than 250 tokens": 1,
        "length ratio over 4": 1,
    }
    assert manifest["read"] == len(rows)
    digest = hashlib.sha256(tsv.read_bytes()).hexdigest()
    assert manifest["inputs"]["train"] == [{"file": "all.tsv", "sha256": digest}]
    corpus = Corpus(tmp_path / "corpus")
    assert len(corpus.train.tokens) > 1, "meant to be several shards"
    assert texts(corpus) == [pair for pair in good if pair not in (dev, test)]
    assert corpus.dev_text() == [dev]
    assert corpus.manifest == json.loads(json.dumps(manifest))


def test_pairs_are_read_from_any_shard_in_any_order(tmp_path: Path) -> None:
    pairs = list(dict.fromkeys(toy_pairs(300)))
    tsv = write_pairs(tmp_path / "t.tsv", pairs)
    options = PrepareOptions(vocab="words:1", shard_mib=0.0005)
    dev = write_pairs(tmp_path / "dev.tsv", [("ba", "something else")])
    prepare(ParallelText(tsv=[tsv]), tmp_path / "c", options, dev=ParallelText(tsv=[dev]))
    corpus = Corpus(tmp_path / "c")
    order = np.random.default_rng(0).permutation(len(pairs))[:50]
    batch = make_batch(corpus.train, order)
    for row, index in enumerate(order):
        source, target = pairs[index]
        n, m = len(source.split()), len(target.split())
        tokens = batch.source[row].tolist()
        assert tokens[n] == EOS and set(tokens[n + 1 :]) <= {PAD}
        assert corpus.vocabulary.source.decode(tokens[:n]) == source
        assert batch.target_in[row, 0] == BOS
        assert corpus.vocabulary.target.decode(batch.target_out[row, :m].tolist()) == target
        assert batch.target_in[row, 1 : m + 1].tolist() == batch.target_out[row, :m].tolist()
        assert batch.source_lengths[row] == n + 1 and batch.target_lengths[row] == m + 1
    assert batch.tokens == int((batch.target_out != PAD).sum())


def test_pipes_can_be_read(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.tsv"
    os.mkfifo(fifo)
    text = "".join(f"{a}\t{b}\n" for a, b in toy_pairs(50))
    writer = threading.Thread(target=lambda: fifo.write_text(text))
    writer.start()
    manifest = prepare(ParallelText(tsv=[fifo]), tmp_path / "c", PrepareOptions(vocab="words:1"))
    writer.join()
    assert manifest["read"] == 50
    assert manifest["inputs"]["train"] == [{"file": "pipe.tsv", "sha256": None}]


def test_separate_and_joint_vocabularies(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(200))
    text = ParallelText(tsv=[tsv])
    for separate in (False, True):
        options = PrepareOptions(vocab="bpe:320", separate=separate)
        manifest = prepare(text, tmp_path / f"c{separate}", options)
        assert manifest["vocabulary"]["joint"] is not separate
        assert Corpus(tmp_path / f"c{separate}").vocabulary.joint is not separate


def test_token_counts_equal_those_of_the_text(toy_corpus: Path) -> None:
    corpus = Corpus(toy_corpus)
    for side, name in enumerate(("source", "target")):
        tokens, _ = corpus.train.gather(np.arange(len(corpus.train)), side)
        counts = np.bincount(tokens, minlength=len(corpus.vocabulary.source))
        assert corpus.token_counts(name).tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"holdout": 0}, "--holdout 0: must be above 0"),
        ({"shard_mib": 0}, "--shard-mib 0: must be above 0"),
        ({"keep_duplicates": True}, "--keep-duplicates: requires dev files"),
        ({"vocab": "words:99"}, "no word occurs 99 times"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict, message: str) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(20))
    with pytest.raises(WaitinfoError, match=message):
        prepare(ParallelText(tsv=[tsv]), tmp_path / "out", PrepareOptions(**options))
    assert not (tmp_path / "out").exists()


def test_one_pair_is_not_enough(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", [("ba", "abs")])
    with pytest.raises(WaitinfoError, match="only one sentence pair"):
        prepare(ParallelText(tsv=[tsv]), tmp_path / "out", PrepareOptions(vocab="words:1"))


@pytest.mark.parametrize("vocab", ["words:1", "bpe:300"])
def test_reserved_names_of_sentencepiece(tmp_path: Path, vocab: str) -> None:
    """In text they are ordinary words, never end-of-sentence or padding."""
    pairs = [("<unk> ba <s>", "</s> abs"), ("be <pad>", "ebs")]
    dev = write_pairs(tmp_path / "dev.tsv", [("bi", "ibs")])
    tsv = write_pairs(tmp_path / "t.tsv", pairs)
    text, options = ParallelText(tsv=[tsv]), PrepareOptions(vocab=vocab)
    prepare(text, tmp_path / "out", options, dev=ParallelText(tsv=[dev]))
    corpus = Corpus(tmp_path / "out")
    tokens = np.concatenate(corpus.train.tokens)
    assert not set(tokens.tolist()) & {PAD, BOS, EOS}
    if vocab == "words:1":  # words outside the vocabulary are unknown
        pairs = [("<unk> ba <unk>", "<unk> abs"), ("be <unk>", "ebs")]
        assert (tokens == UNK).sum() == 4
    assert texts(corpus) == pairs


@pytest.mark.parametrize("content", ["", "\t\n \t \n"])
def test_empty_corpus_leaves_nothing_behind(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.tsv"
    path.write_text(content)
    with pytest.raises(WaitinfoError, match="no sentence pairs are left"):
        prepare(ParallelText(tsv=[path]), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["empty.tsv"]


def test_bad_line_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_bytes(b"a\tb\n" * 50 + b"\xff\tb\n")
    with pytest.raises(WaitinfoError, match="line 51"):
        prepare(ParallelText(tsv=[path]), tmp_path / "deep" / "out")
    assert not (tmp_path / "deep" / "out").exists()
    assert list((tmp_path / "deep").iterdir()) == []


def test_an_existing_folder_is_not_changed(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(20))
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.doc").write_text("precious")
    with pytest.raises(WaitinfoError, match="already in use"):
        prepare(ParallelText(tsv=[tsv]), out, PrepareOptions(vocab="words:1"))
    assert [p.name for p in out.iterdir()] == ["thesis.doc"]
