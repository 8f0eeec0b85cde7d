"""Parts of the analyses: the tagger, words and tokens, word order, models without info."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commands import called
from tests.conftest import tiny_config, toy_pairs
from waitinfo.analysis import tagger as tagging
from waitinfo.analysis.difficulty import crossing_share
from waitinfo.analysis.parts_of_speech import by_tag, token_spans, words_of
from waitinfo.analysis.summaries import bin_of, describe, quantile_bins
from waitinfo.analysis.tagger import (
    TAGS,
    Perceptron,
    TaggedText,
    features_of,
    read_tagged,
    usual_tags,
)
from waitinfo.errors import WaitinfoError
from waitinfo.model import Transformer
from waitinfo.systems import build_system
from waitinfo.text.tokenizer import Tokenizer, Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.folder import find_model
from waitinfo.trained.saving import load_model, save_model

SENTENCES = [
    [("the", "DET"), ("house", "NOUN"), ("is", "AUX"), ("old", "ADJ"), (".", "PUNCT")],
    [("they", "PRON"), ("house", "VERB"), ("the", "DET"), ("old", "NOUN"), (".", "PUNCT")],
    [("Anna", "PROPN"), ("runs", "VERB"), ("to", "ADP"), ("the", "DET"), ("runs", "NOUN")],
]


# The tagger


def test_the_tagger_is_an_averaged_perceptron(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weights are the mean of the weights after every step, written out."""
    monkeypatch.setattr(tagging, "BATCH", 1)
    monkeypatch.setattr(tagging, "EPOCHS", 3)
    monkeypatch.setattr(tagging, "BUCKETS", 1 << 18)
    found = Perceptron.train(SENTENCES, {})
    text = TaggedText.of([[word for word, _ in sentence] for sentence in SENTENCES])
    rows = features_of(text, usual_tags(SENTENCES))
    gold = [TAGS.index(tag) for sentence in SENTENCES for _, tag in sentence]
    weights = np.zeros_like(found.weights, dtype=np.float64)
    total = weights.copy()  # before the first step all weights are 0
    draw, steps = np.random.default_rng(1), 1
    for _ in range(3):
        for n in draw.permutation(len(gold)):
            guess = int(np.argmax(sum(weights[row] for row in rows[n])))
            if guess != gold[n]:
                for row in rows[n]:
                    weights[row, gold[n]] += 1
                    weights[row, guess] -= 1
            total += weights
            steps += 1
    assert np.allclose(found.weights, total / steps, atol=1e-5)
    assert found.accuracy(SENTENCES) == 1  # the same words have different tags by their neighbours
    assert found.tag([[], ["the"]]) == [[], ["DET"]] and found.tag([[]]) == [[]]


def test_tagged_words_are_read(tmp_path: Path) -> None:
    path = tmp_path / "vi.tsv"
    path.write_text("nhân_dân\tNOUN\n_\tPUNCT\n\n\ntổ\tNOUN\n", "utf-8")
    assert read_tagged(path) == [
        [("nhân", "NOUN"), ("dân", "NOUN"), ("_", "PUNCT")], [("tổ", "NOUN")],
    ]  # fmt: skip
    for text, problem in (("a\tNOUNS\n", "line 1"), ("a NOUN\n", "line 1"), ("\n", "no tagged")):
        path.write_text(text, "utf-8")
        with pytest.raises(WaitinfoError, match=problem):
            read_tagged(path)


def test_an_accuracy_is_measured_on_words_not_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "en.tsv"
    rows = [f"{word}\t{tag}\n" for word, tag in SENTENCES[0]]
    path.write_text("\n".join(["".join(rows)] * 20), "utf-8")
    about = tagging.make_tagger("--source-tags", [str(path)]).about
    assert (about["train_words"], about["test_words"]) == (90, 10) and about["accuracy"] == 1
    with pytest.raises(WaitinfoError, match="source_tags: give one file to train on"):
        tagging.make_tagger("--source-tags", [str(path)] * 3)


# Words and tokens


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Vocabulary.load(find_model(None)).source


def test_words_as_treebanks_divide_them(tokenizer: Tokenizer) -> None:
    def split(text: str) -> list[str]:
        return [word.text for word in words_of(tokenizer, text)]

    assert split("Das Haus, in dem er wohnt, ist alt.") == [
        "Das", "Haus", ",", "in", "dem", "er", "wohnt", ",", "ist", "alt", ".",
    ]  # fmt: skip
    assert split("He paid 1,500.50 in the U.K. (2012)!")[:4] == ["He", "paid", "1,500.50", "in"]
    assert split("It's Anna's.") == ["It", "'s", "Anna", "'s", "."]
    assert [word.text for word in words_of(tokenizer, "")] == []


@given(st.text(st.sampled_from("abzÄß東🙂 ,.!'’-12_nt"), max_size=40))
def test_every_token_belongs_to_one_word(text: str) -> None:
    tokenizer = Vocabulary.load(find_model(None)).source
    words = words_of(tokenizer, text)
    covered = [n for word in words for n in word.tokens]
    assert covered == sorted(set(covered))
    assert set(covered) <= set(range(len(tokenizer.encode(text))))
    for chunk in text.split():
        spans = token_spans(tokenizer, chunk)
        assert spans[0][0] == 0 and all(a[1] == b[0] for a, b in pairwise(spans))


class KnownTags:
    """A tagger that knows every word."""

    tags: ClassVar = {
        "Das": "DET", "Die": "DET", "Luftschiff": "NOUN", "Haustür": "NOUN", "quietscht": "VERB",
        "ist": "AUX", "alt": "ADJ", ".": "PUNCT", "!": "PUNCT",
    }  # fmt: skip

    def tag(self, sentences: list[list[str]]) -> list[list[str]]:
        return [[self.tags[word] for word in sentence] for sentence in sentences]


def test_info_by_part_of_speech_by_hand() -> None:
    """Das Luft|schiff ist alt . and Die Haus|t|ür quiet|scht ! with an info for every token."""
    tokenizer = load_model(find_model(None), "cpu").vocabulary.source
    texts = ["Das Luftschiff ist alt.", "Die Haustür quietscht!"]
    assert [len(tokenizer.encode(text)) for text in texts] == [6, 7]
    infos = [[0.5, 1.0, 1.5, 0.7, 1.2, 0.3], [0.9, 1.1, 0.4, 0.6, 1.3, 0.8, 0.1]]
    found = by_tag(tokenizer, texts, infos, KnownTags())  # type: ignore[arg-type]
    nouns, verbs, articles = (found["tags"][tag] for tag in ("NOUN", "VERB", "DET"))
    assert (nouns["words"], nouns["tokens_per_word"]) == (2, 2.5)
    assert nouns["info_per_word"]["mean"] == pytest.approx((2.5 + 2.1) / 2)
    assert nouns["info_per_token"] == pytest.approx((1.0 + 1.5 + 1.1 + 0.4 + 0.6) / 5)
    assert nouns["info_of_single_tokens"]["count"] == 0
    assert verbs["info_per_word"]["mean"] == pytest.approx(2.1)
    assert articles["info_of_single_tokens"]["count"] == 2
    assert articles["info_of_single_tokens"]["mean"] == pytest.approx((0.5 + 0.9) / 2)
    content, function = (found["kinds"][kind] for kind in ("content words", "function words"))
    assert content["words"] == 4  # nouns, the verb and the adjective
    assert content["info_per_word"]["mean"] == pytest.approx((2.5 + 2.1 + 2.1 + 1.2) / 4)
    assert content["info_of_single_tokens"]["mean"] == pytest.approx(1.2)
    assert function["words"] == 3  # articles and the auxiliary; punctuation is neither
    assert function["info_of_single_tokens"]["mean"] == pytest.approx((0.5 + 0.9 + 0.7) / 3)


def test_a_token_covers_the_characters_of_its_piece(tokenizer: Tokenizer) -> None:
    chunk = "Luftqualität,東"
    spans = token_spans(tokenizer, chunk)
    text = "".join(chunk[a:b] for a, b in spans)
    assert text == chunk and spans[-1][1] == len(chunk)
    words = words_of(tokenizer, f"gute {chunk}")
    (word,) = [word for word in words if word.text == "Luftqualität"]
    assert word.whole and len(word.tokens) == len(tokenizer.encode("Luftqualität"))


# Word order and bins


@given(st.lists(st.integers(0, 8), max_size=9))
def test_crossings_by_counting(alignment: list[int]) -> None:
    pairs = [(a, b) for n, a in enumerate(alignment) for b in alignment[n + 1 :] if a != b]
    share = sum(a > b for a, b in pairs) / len(pairs) if pairs else 0.0
    assert crossing_share(alignment) == pytest.approx(share)


def test_crossings_of_a_known_order() -> None:
    assert crossing_share([0, 1, 2]) == 0 and crossing_share([2, 1, 0]) == 1
    assert crossing_share([0, 2, 1]) == pytest.approx(1 / 3)


def test_bins_hold_everything() -> None:
    values = [1, 1, 1, 2, 3, 5, 8, 13]
    edges = quantile_bins(values, 4)
    bins = bin_of(values, edges)
    assert edges[0] == 1 and edges[-1] == 13 and bins.tolist() == sorted(bins.tolist())
    found = describe([-1.0, 0.5, 9.0], [0.0, 1.0, 2.0])
    assert found["histogram"] == [2, 1] and found["count"] == 3
    assert describe([], [0.0, 1.0]) == {"count": 0}


# Models without info


@pytest.fixture(scope="module")
def plain_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A multipath model and an MMA model without info, with a test set."""
    folder = tmp_path_factory.mktemp("plain")
    pairs = toy_pairs(40)
    words, _ = train_tokenizer(
        [text for pair in pairs for text in pair], VocabularySpec("words", 1)
    )
    for number, side in enumerate(("x", "y")):
        text = "".join(f"{pair[number]}\n" for pair in pairs[:5])
        (folder / f"test.{side}").write_text(text, "utf-8")
    for name in ("multipath", "mma"):
        system = build_system(name)
        size = len(words)
        config = tiny_config(
            source_vocabulary=size, target_vocabulary=size, **dict(system.model_defaults)
        )
        model = Transformer(config)
        save_model(folder / name, model, model.weights(), system, Vocabulary(words, words))
    return folder


def analyse(folder: Path, model: str, *more: object) -> tuple[int, str]:
    done = called(
        "analyse", "--model", folder / model, "--source", folder / "test.x", "--reference",
        folder / "test.y", "--out", folder / "out", *more,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("what", ["pos", "ratio", "attention"])
def test_a_model_without_info_is_an_error(plain_models: Path, what: str) -> None:
    code, said = analyse(plain_models, "multipath", "--what", what)
    assert code == 2
    assert f"--what {what}: requires info, which this multipath model does not have" in said


def test_what_cannot_be_made_is_left_out_and_named(plain_models: Path) -> None:
    code, said = analyse(plain_models, "multipath", "--k", "1,3")
    assert code == 0, said
    for name in ("pos", "ratio", "attention", "significance"):
        assert f"left out: {name}: " in said
    made = {path.stem for path in (plain_models / "out").glob("*.json")}
    assert made == {"early-stop", "case", "difficulty"}
    code, said = analyse(plain_models, "mma", "--what", "difficulty")
    assert code == 2 and "needs plain cross-attention; this mma model has" in said


def test_two_vocabularies_are_compared_by_words(plain_models: Path) -> None:
    given = ["--against", "de-en", "--k", "1,3", "--against-k", "1,3", "--what", "significance"]
    code, said = analyse(plain_models, "multipath", *given)
    assert code == 2 and "compare them with --x word.LAAL" in said
