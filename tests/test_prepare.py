"""`prepare`: what is kept, what is dropped and counted, and no partial output."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import toy_pairs, write_pairs
from waitinfo.cli import main
from waitinfo.errors import WaitinfoError
from waitinfo.text.corpus import Corpus
from waitinfo.text.files import ParallelText
from waitinfo.text.languages import Languages
from waitinfo.text.prepare import PrepareOptions, prepare
from waitinfo.text.special import BOS, EOS, PAD, UNK
from waitinfo.trained.folder import find_model
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
        ({"holdout": 0}, "holdout 0: must be above 0"),
        ({"shard_mib": 0}, "shard_mib 0: must be above 0"),
        ({"keep_duplicates": True}, "keep_duplicates: requires dev files"),
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


# Back-translated text


def tagged_corpus(tmp_path: Path, **options: object) -> Corpus:
    """Twenty plain and thirty tagged pairs."""
    pairs = list(dict.fromkeys(toy_pairs(400)))[:50]
    plain = write_pairs(tmp_path / "plain.tsv", pairs[:20])
    tagged = write_pairs(tmp_path / "tagged.tsv", pairs[20:])
    dev = ParallelText(tsv=[write_pairs(tmp_path / "dev.tsv", [("ba", "something else")])])
    text = ParallelText(tsv=[tagged, plain], tagged=[tagged])
    prepare(text, tmp_path / "corpus", PrepareOptions(vocab="bpe:300", **options), dev=dev)
    return Corpus(tmp_path / "corpus")


def test_tagged_sources_begin_with_a_token_of_their_own(tmp_path: Path) -> None:
    corpus = tagged_corpus(tmp_path)
    tokenizer = corpus.vocabulary.source
    first = [corpus.train.gather(np.array([i]), 0)[0][0] for i in range(50)]
    assert [token == tokenizer.tag for token in first] == [True] * 30 + [False] * 20
    assert corpus.token_counts("source")[tokenizer.tag] == 30 == corpus.manifest["tagged"]
    assert corpus.token_counts("target")[tokenizer.tag] == 0
    every = "".join(map(chr, [*range(0x20, 0xD800), *range(0xE000, 0x11000, 7), 0x10FFFF]))
    assert tokenizer.tag not in tokenizer.encode(every)
    # Without its tag, a source is what it is untagged.
    source, _ = corpus.train.gather(np.array([0]), 0)
    line = (tmp_path / "tagged.tsv").read_text("utf-8").split("\t")[0]
    assert source[1:].tolist() == tokenizer.encode(line)


def test_spoken_copies_of_tagged_pairs_are_tagged(tmp_path: Path) -> None:
    corpus = tagged_corpus(tmp_path, spoken=1.0, languages=Languages("de", "en"))
    tag = corpus.vocabulary.source.tag
    first = [corpus.train.gather(np.array([i]), 0)[0][0] == tag for i in range(100)]
    assert first == [True] * 60 + [False] * 40
    assert corpus.manifest["tagged"] == 60


def test_what_cannot_be_tagged(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(20))
    with pytest.raises(WaitinfoError, match=r"tagged b.tsv: not one of"):
        ParallelText(tsv=[tsv], tagged=[Path("b.tsv")])
    with pytest.raises(WaitinfoError, match="tagged pairs make no windows"):
        ParallelText(tsv=[tsv], tagged=[tsv], in_order=[tsv])
    text = ParallelText(tsv=[tsv], tagged=[tsv])
    with pytest.raises(WaitinfoError, match="a vocabulary with bytes"):
        prepare(text, tmp_path / "out", PrepareOptions(vocab="words:1"))
    assert not (tmp_path / "out").exists()


# Copies as they are spoken, and windows


def speech_corpus(tmp_path: Path, dev: bool = True, **options: object) -> Corpus:
    """Sixty numbered sentences in order, twice a repeated one, and ten from another file."""
    lines = [(f"Das ist Satz {n}, ja.", f"This is sentence {n}, yes.") for n in range(60)]
    lines[20] = lines[40] = ("Vielen Dank!", "Thank you!")
    ordered = write_pairs(tmp_path / "ordered.tsv", lines)
    others = [(f"Ein Wort: {n}.", f"One word: {n}.") for n in range(10)]
    loose = write_pairs(tmp_path / "loose.tsv", others)
    text = ParallelText(tsv=[loose, ordered], in_order=[ordered])
    held_out = ParallelText(tsv=[write_pairs(tmp_path / "dev.tsv", [lines[30]])]) if dev else None
    out = tmp_path / f"corpus-{len(list(tmp_path.iterdir()))}"
    chosen = PrepareOptions(
        vocab="bpe:400", languages=Languages("de", "en"), max_tokens=2000, **options
    )
    prepare(text, out, chosen, dev=held_out)
    return Corpus(out)


def is_window(pair: tuple[str, str]) -> bool:
    return len(re.findall(r"sentence|Thank|One word", pair[1])) > 1


def test_spoken_copies_are_added(tmp_path: Path) -> None:
    plain = texts(speech_corpus(tmp_path))
    corpus = speech_corpus(tmp_path, spoken=0.5, word_errors=0.1)
    found = texts(corpus)
    kept = [pair for pair in found if pair in plain]
    assert kept == plain  # the plain pairs stay, in their order
    copies = [pair for pair in found if pair not in plain]
    assert len(copies) == corpus.manifest["copies"]["spoken"]
    assert 20 < len(copies) < 48  # half of 68: five standard deviations
    targets = {target for _, target in plain}
    for source, target in copies:
        assert target in targets and source == source.lower() and "," not in source
    assert any("zwei" in source or "drei" in source for source, _ in copies)


def test_windows_join_neighbours_only(tmp_path: Path) -> None:
    corpus = speech_corpus(tmp_path, windows=0.9)
    made = corpus.manifest["copies"]
    windows = [pair for pair in texts(corpus) if is_window(pair)]
    assert len(windows) == made["windows"] + made["spoken windows"] >= 8
    assert made["windows"] and made["spoken windows"]
    lines = (tmp_path / "ordered.tsv").read_text("utf-8").splitlines()
    in_order = " ".join(line.split("\t")[1] for line in lines)
    for source, target in windows:
        assert target in in_order  # of the other file there is nothing
        assert "sentence 30," not in target  # it is in the dev file, and ends a window
        spoken = source == source.lower()
        sentences = re.findall(r"sentence|Thank", target)
        assert len(re.findall(r"satz|vielen", source.lower())) == len(sentences) <= 6
        assert spoken == ("." not in source and "!" not in source)
    # The repeated pair is trained on once, and still is part of windows.
    assert sum(pair == ("Vielen Dank!", "Thank you!") for pair in texts(corpus)) == 1


def test_windows_have_the_length_that_is_kept(tmp_path: Path) -> None:
    # Sentences of 24 words, a token each: five fit into 150 tokens, six do not.
    line = " ".join(f"w{number}" for number in range(24))
    tsv = tmp_path / "long.tsv"
    tsv.write_text(f"{line}\t{line}\n" * 400, "utf-8")
    text = ParallelText(tsv=[tsv], in_order=[tsv])
    dev = ParallelText(tsv=[write_pairs(tmp_path / "dev.tsv", toy_pairs(5))])
    for limit, most in ((150, 5), (80, 2), (40, 0)):
        options = PrepareOptions(
            vocab="words:1", windows=1.0, spoken_windows=1.0, max_tokens=limit, keep_duplicates=True
        )
        manifest = prepare(text, tmp_path / str(limit), options, dev=dev)
        lengths = {len(source.split()) // 24 for source, _ in texts(Corpus(tmp_path / str(limit)))}
        assert max(lengths) == max(1, most) and not manifest["dropped_copies"]
        assert set(manifest["copies"]) <= {"spoken windows"} and bool(manifest["copies"]) == (
            most > 0
        )


def test_held_out_pairs_have_no_copies(tmp_path: Path) -> None:
    corpus = speech_corpus(tmp_path, dev=False, spoken=1.0, windows=0.9, holdout=6)
    trained = " ".join(target for _, target in texts(corpus))
    assert corpus.manifest["copies"]["spoken"] == 63  # of 69 different pairs
    for _, target in corpus.dev_text():
        assert target not in trained


def test_copies_depend_on_the_seed_alone(tmp_path: Path) -> None:
    options = {"spoken": 0.4, "windows": 0.5, "word_errors": 0.2}
    first, same, other = (
        texts(speech_corpus(tmp_path, seed=seed, **options)) for seed in (1, 1, 2)
    )
    assert first == same != other


def test_windows_need_text_in_order(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(20))
    with pytest.raises(WaitinfoError, match="windows: joins lines that follow each other"):
        prepare(ParallelText(tsv=[tsv]), tmp_path / "out", PrepareOptions(windows=0.5))
    with pytest.raises(WaitinfoError, match="in_order b.tsv: not one of"):
        ParallelText(tsv=[tsv], in_order=[Path("b.tsv")])
    with pytest.raises(WaitinfoError, match="spoken 2: must be a share"):
        prepare(ParallelText(tsv=[tsv]), tmp_path / "out", PrepareOptions(spoken=2))


def test_the_command_counts_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(60))
    command = ["prepare", "--tsv", tsv, "--vocab", "words:1"]
    for options, status, told in (
        (["--word-errors", "0.1"], 2, "--word-errors: the errors of spoken copies"),
        (["--spoken-windows", "0.1"], 2, "--spoken-windows: a share of the windows"),
        (["--in-order", str(tsv)], 2, "--in-order: for windows of lines"),
        (["--word-errors", "0.1", "--spoken", "1"], 0, "of them: spoken"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*map(str, command), *options, "--out", str(tmp_path / "corpus")])
        assert (stop.value.code or 0) == status and told in capsys.readouterr().err


def test_the_vocabulary_of_a_bundled_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(60))
    command = ["prepare", "--tsv", str(tsv), "--vocab-from"]
    with pytest.raises(SystemExit) as stop:
        main([*command, "de-en", "--out", str(tmp_path / "corpus")])
    assert not stop.value.code
    stored = (tmp_path / "corpus" / "tokenizer.model").read_bytes()
    assert stored == (find_model("de-en") / "tokenizer.model").read_bytes()
    with pytest.raises(SystemExit) as stop:
        main([*command, "de-fr", "--out", str(tmp_path / "other")])
    told = capsys.readouterr().err
    assert stop.value.code == 2 and "--vocab-from de-fr: no such model" in told


def test_a_recipe_sets_what_the_command_does_not(tmp_path: Path) -> None:
    tsv = write_pairs(tmp_path / "t.tsv", toy_pairs(60))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text("[corpus]\nspoken = 0.5\nvocab = 'words:1'\nholdout = 3\n")
    out = tmp_path / "corpus"
    command = ["prepare", "--tsv", tsv, "--config", recipe, "--holdout", "5", "--out", out]
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in command])
    assert not stop.value.code
    manifest = Corpus(out).manifest
    assert manifest["options"]["spoken"] == 0.5 and manifest["copies"]["spoken"]
    assert manifest["options"]["vocab"] == "words:1" and manifest["options"]["holdout"] == 5
    assert "no rules for the source language" in " ".join(manifest["notes"])
