"""Languages without spaces: read and shown character by character, and measured so."""

from __future__ import annotations

import io
import json
import lzma
import random
import unicodedata
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands import done_quietly
from tests.streams import calibration, model_with, toy_tokenizer
from tests.tools import METRICS, simuleval, simuleval_python
from waitinfo import Translator, load
from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.trace import CHARACTERS, WORDS, Units, arrivals
from waitinfo.streaming.decoder import Decoder
from waitinfo.streaming.event import Event
from waitinfo.streaming.lag import letter_count
from waitinfo.streaming.segmenter import Segmentation
from waitinfo.streaming.words import Reader, WordBuilder
from waitinfo.text import tokenizer as tokenizers
from waitinfo.text.scripts import is_unspaced, mostly_unspaced, settled
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import SPACE, GrowingWord, Tokenizer, VocabularySpec, train_tokenizer
from waitinfo.translation.lines import join_sentences

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "en-ja"
KANA = "あいうえおかがきくこさしたてでとなにのはもらりるれろわをん"
KANJI = "私彼日本語人行見東京今天大小学校本電車"


def made_up(seed: int, count: int) -> list[str]:
    """Sentences of few words, so that a small vocabulary has long pieces."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(KANA + KANJI, k=draw.randint(1, 3))) for _ in range(25)]
    return ["".join(draw.choices(words, k=draw.randint(1, 8))) + "。" for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(made_up(1, 300), VocabularySpec("bpe", 450))[0]


# Reading


def test_marks_without_end_are_looked_at_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []
    monkeypatch.setattr(tokenizers, "settled", lambda s: looked.append(len(s)) or settled(s))
    word = GrowingWord(tokenizer)
    assert word.add("日" + "\u0301\u0316" * 2_000)[:1] == tokenizer.encode("日")[:1]
    assert sum(looked) <= 3


def test_scripts() -> None:
    assert all(map(is_unspaced, ["日", "か", "カ", "ก", "。", "ﾊ", "𠀀"]))
    assert not any(map(is_unspaced, ["a", "한국", "я", ".", "5", ""]))
    assert mostly_unspaced(["これはTokyoです。"]) and not mostly_unspaced(["he said 日本 once"])


def test_a_character_that_a_mark_can_change_waits() -> None:
    assert settled("日") == 1 and settled("あ") == 1 and settled("ก") == 1
    assert settled("か") == 0 and settled("か\u3099") == 0 and settled("か\u3099日") == 3
    assert settled("a") == 0 and settled("ab") == 1 and settled("") == 0


letters = st.text(st.sampled_from(KANA + KANJI + "abé。、ー\u3099😀"), max_size=25)


@settings(max_examples=150)
@given(letters, st.booleans())
def test_a_growing_word_has_the_tokens_of_the_whole_word(
    tokenizer: Tokenizer, text: str, real: bool
) -> None:
    if real:  # text as the vocabulary has it, after some that it has not
        text = text[:4] + made_up(len(text), 1)[0]
    word = GrowingWord(tokenizer)
    found = [token for letter in text for token in word.add(letter)]
    assert found == tokenizer.encode(text)[: len(found)]
    assert found + word.close() == tokenizer.encode(text)


@lru_cache(maxsize=1)
def published() -> Tokenizer:
    """As published vocabularies are: a score for each piece, one width of letters, no bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(made_up(1, 300)), model_writer=model, vocab_size=250, minloglevel=2,
        pad_id=0, unk_id=1, bos_id=2, eos_id=3,
    )  # fmt: skip
    return Tokenizer(model.getvalue())


@settings(max_examples=150)
@given(st.text(st.sampled_from(KANA + KANJI + "abé。、ー\u3099😀鬱鬱：：“…㎏１ｶ"), max_size=25))
def test_a_growing_word_has_the_tokens_of_the_whole_in_published_vocabularies(text: str) -> None:
    text = text[:6] + made_up(len(text), 1)[0] + text[6:]
    word, tokenizer = GrowingWord(published()), published()
    found = [token for letter in text for token in word.add(letter)]
    assert found + word.close() == tokenizer.encode(text)


def test_published_vocabularies_do_not_wait_for_the_end() -> None:
    text = "".join(made_up(2, 30)).replace("。", "")
    word = GrowingWord(published())
    assert len(word.add(text)) > len(published().encode(text)) - 2 * published().longest_piece


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4), st.data())
def test_a_word_may_be_continued_after_any_of_its_tokens(
    tokenizer: Tokenizer, seed: int, cut: int, data: st.DataObject
) -> None:
    """What follows a token of a word has the tokens that it has in the whole word."""
    text = "".join(made_up(seed, 3)).replace("。", data.draw(st.sampled_from(["", "a", "、"])))
    tokens = tokenizer.encode(text)
    place = data.draw(st.integers(1, len(tokens)))
    if any(map(tokenizer.is_byte, tokens[place - 1 : place + 1])):
        return  # within a character, where no window is cut
    rest = text[len(tokenizer.spell(tokens[:place]).removeprefix(SPACE)) :]
    word = GrowingWord(tokenizer, inside=True)
    found = [t for at in range(0, len(rest), cut) for t in word.add(rest[at : at + cut])]
    assert found + word.close() == tokens[place:]


@pytest.mark.parametrize("segment", ["none:12", "auto:12", "punctuation"])
def test_interrupted_streams_continue_inside_a_word(tokenizer: Tokenizer, segment: str) -> None:
    """A client that is cut off after some characters, again and again, keeps one window of them."""
    protocol = pytest.importorskip("waitinfo.serving.protocol", reason="needs the extra serve")
    transcript = pytest.importorskip("waitinfo.serving.transcript", reason="needs the extra serve")
    translator = Translator(model_with(tokenizer), streams=1, capacity=48)
    text = "".join(made_up(7, 9))
    text = text if segment == "punctuation" else text.replace("。", "")
    stream = translator.stream(2, raw=True, segment=segment, history=None)
    events = stream.push(text) + stream.finish()
    shown, waiting, resume, longest = "", "", None, 0
    for place in range(0, len(text), 5):
        waiting += text[place : place + 5]
        again = transcript.replay_of(resume) if resume else None
        stream = translator.stream(2, raw=True, segment=segment, history=0, replay=again)
        telling = transcript.Transcript(stream)
        telling.source.add(waiting)
        found = telling.take(stream.push(waiting), trace=False)
        last = place + 5 >= len(text)
        rest = telling.take(stream.finish(), trace=False) if last else None
        stream.close()
        for words in filter(None, (found, rest)):
            shown += words.text
            same = resume is not None and resume.sentence == words.replay.sentence
            path = [*(resume.path if same else []), *words.replay.path]
            waiting = waiting[words.replay.position - (resume.position if resume else 0) :]
            resume = protocol.Resume(**{**words.replay.model_dump(), "path": path})
            longest = max(longest, len(waiting))
    assert shown == "".join(event.text for event in events)
    assert any(e.kind == "MOVE" for e in events) == (segment != "punctuation")
    assert longest < len(text) / 2


def test_tokens_do_not_wait_for_the_end(tokenizer: Tokenizer) -> None:
    text = "".join(made_up(2, 30)).replace("。", "")
    word = GrowingWord(tokenizer)
    waiting = []
    for place in range(len(text)):
        word.add(text[place])
        waiting.append(len(word._text) - len(tokenizer.spell(word._context)))
    assert max(waiting) <= 2 * tokenizer.longest_piece, "whatever the length of the text"


def read(tokenizer: Tokenizer, pieces: list[str], raw: bool, segment: str = "auto") -> list:
    reader = Reader(tokenizer, raw, Segmentation.parse(segment))
    for piece in pieces:
        reader.add(piece)
    reader.end()
    return list(reader.queue)


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["auto", "none", "punctuation", "whole"]))
def test_any_chunks_are_read_alike(tokenizer: Tokenizer, data: st.DataObject, segment: str) -> None:
    parts = data.draw(
        st.lists(st.sampled_from([*made_up(3, 6), "abc", "か\u3099", " ", "！", "」", "é", "…"]))
    )
    text = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(tokenizer, [text], True, segment)
    assert read(tokenizer, pieces, True, segment) == whole
    assert read(tokenizer, list(text), True, segment) == whole
    assert read(tokenizer, text.split(" "), False, segment) == whole
    spelled = "".join(piece.text for piece in whole if piece is not None)
    assert spelled == "".join(unicodedata.normalize("NFC", text).split())


def test_sentences_end_inside_a_word(tokenizer: Tokenizer) -> None:
    def sentences(text: str, segment: str = "auto") -> list[str]:
        found = [""]
        for piece in read(tokenizer, [text], False, segment):
            found = [*found, ""] if piece is None else [*found[:-1], found[-1] + piece.text]
        return [sentence for sentence in found if sentence]

    assert sentences("私は見。彼は行！？今日。") == ["私は見。", "彼は行！？", "今日。"]
    assert sentences("「見。」と彼。日本") == ["「見。」と彼。", "日本"]
    assert sentences("私は見。彼は行。", "none") == ["私は見。彼は行。"]


# Showing


def test_characters_are_shown_at_once(tokenizer: Tokenizer) -> None:
    builder = WordBuilder(tokenizer)
    text = "私はabcを見。"
    shown = [builder.add(token) for token in tokenizer.encode(text)]
    assert "".join(shown) == text
    assert sum(map(bool, shown)) > 2, "letters of other scripts wait for the end of their word"
    assert builder.add(3, last=True) == "" and not builder.open
    again = [builder.add(token) for token in tokenizer.encode("日本")]
    assert "".join(again) == "日本", "no space between sentences"
    assert (
        builder.add(3, last=True) + "".join(builder.add(token) for token in tokenizer.encode("a b"))
        == "a"
    ), "nor before another script"
    assert builder.add(3, last=True) == " b"


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["私は見。", "日本", "abc", "a b.", "日本 a", ""]), max_size=6))
def test_sentences_are_joined_as_in_a_stream(tokenizer: Tokenizer, texts: list[str]) -> None:
    builder = WordBuilder(tokenizer)
    shown = ""
    for text in texts:
        shown += "".join(builder.add(token) for token in tokenizer.encode(text))
        shown += builder.add(EOS, last=True)
    assert join_sentences(texts) == shown


# Latency in characters


def test_units_by_hand(tokenizer: Tokenizer) -> None:
    assert Units.of(["彼は行"], ["He goes"]) == Units(CHARACTERS, WORDS)
    assert Units.of(["He goes"], ["彼は行"]) == Units(WORDS, CHARACTERS)
    assert Units(WORDS, CHARACTERS).reference_length(" 彼は 行 ") == 4, "as SimulEval counts"
    arrived, count = arrivals(tokenizer, "ab cd", WORDS)
    assert count == 2 and set(arrived) == {1, 2} and arrived[-1] == 2
    text = made_up(5, 1)[0] + " " + made_up(6, 1)[0]
    arrived, count = arrivals(tokenizer, text, CHARACTERS)
    assert len(arrived) == len(tokenizer.encode(text)) + 1 and count == len(text) - 1
    assert arrived == sorted(arrived) and arrived[0] < count == arrived[-1]


@pytest.fixture(scope="module", params=["en-ja", "ja-en"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of English and Japanese, trained for seconds on a few real sentences."""
    if not DATA.exists():
        pytest.skip("needs ../shared/data/en-ja")
    folder = tmp_path_factory.mktemp(request.param)
    sides = []
    for language in request.param.split("-"):
        with lzma.open(DATA / f"train.{language}.xz", "rt", encoding="utf-8") as stream:
            sides.append([next(stream).strip() for _ in range(400)])
    pairs = [
        (a, b)
        for a, b in zip(*sides, strict=True)
        if 10 < len(a) < 60 and not any(is_unspaced(side) and " " in side for side in (a, b))
    ][:150]
    lines = "".join(f"{a}\t{b}\n" for a, b in pairs)
    (folder / "train.tsv").write_text(lines, "utf-8")
    for name, side in (("source", 0), ("target", 1)):
        text = "".join(pair[side] + "\n" for pair in pairs[:12])
        (folder / f"test.{name}").write_text(text, "utf-8")
    done_quietly("prepare", "--tsv", folder / "train.tsv", "--vocab", "bpe:1500", "--holdout", "5",
                 "--out", folder / "corpus")  # fmt: skip
    done_quietly("train", "--system", "wait-info", "--data", folder / "corpus", "--size", "tiny",
                 "--out", folder / "run", "--set", "training.updates=80", "training.warmup=20",
                 "training.lr=0.004", "training.batch_tokens=600", "training.validate_every=80",
                 "training.validate_sentences=0", "training.checkpoint_every=80",
                 "system.whole_source_updates=5", "model.width=64")  # fmt: skip
    return folder


def streamed(translator: Translator, pieces: list[str], raw: bool) -> tuple[list, list[Event]]:
    """Events without times, by piece, and all of them."""
    stream = translator.stream(2, raw=raw, segment="whole", history=None)
    for piece in pieces:
        stream.push(piece)
    stream.finish()
    return [(e.kind, e.token, e.text, e.read, e.written) for e in stream.trace], stream.trace


def test_streams_in_both_directions(run: Path) -> None:
    """Text is read and shown before its end, in any pieces, as the batched decoder writes it."""
    loaded = load(run / "run", streams=2).loaded
    translator = Translator(loaded, streams=2)
    sources = (run / "test.source").read_text("utf-8").splitlines()
    tokens = [loaded.vocabulary.source.encode(source) for source in sources]
    early = 0
    for source, hypothesis in zip(
        sources, Decoder(loaded.model, loaded.system).decode(tokens, 2), strict=True
    ):
        whole, events = streamed(translator, [source], raw=True)
        assert streamed(translator, list(source), raw=True)[0] == whole
        assert [e.token for e in events if e.kind == "WRITE"][: len(hypothesis.tokens)] == [
            loaded.vocabulary.target.piece(token) for token in hypothesis.tokens
        ]
        text = "".join(event.text for event in events).strip()
        assert text == loaded.vocabulary.target.decode(hypothesis.tokens)
        before = [e for e in events if e.text and e.read < hypothesis.source_length]
        early += bool(before)
        stream = translator.stream(2, raw=True, segment="whole")
        half = stream.push(source[: 2 * len(source) // 3])
        assert any(event.kind == "READ" for event in half), "pieces are read before the end"
        stream.close()
    assert early > len(sources) / 2, "and shown"


def test_latency_equals_simuleval_in_characters(run: Path) -> None:
    """Japanese is given to SimulEval with its characters apart."""
    source, target = run / "test.source", run / "test.target"
    done_quietly("evaluate", "--model", run / "run", "--source", source, "--reference", target,
                 "--k", "2", "--out", run / "out")  # fmt: skip
    point = json.loads((run / "out" / "wait-info-2.json").read_text())
    units = point["units"]
    assert sorted(units.values()) == [CHARACTERS, WORDS]
    apart = source.read_text("utf-8")
    if units["source"] == CHARACTERS:
        apart = "".join(" ".join(line.replace(" ", "")) + "\n" for line in apart.splitlines())
    (run / "apart").write_text(apart, "utf-8")
    live = ["--agent-class", "waitinfo.simuleval.Agent", "--model", run / "run", "--k", 2,
            "--source-unit", "char" if units["source"] == CHARACTERS else "word",
            "--source", run / "apart", "--target", target, "--no-progress-bar", "--no-scoring",
            "--eval-latency-unit", "char" if units["target"] == CHARACTERS else "word",
            "--latency-metrics", *METRICS]  # fmt: skip
    ((found, _, delays),) = simuleval(simuleval_python(), live)
    logged = [json.loads(line) for line in (run / "out/wait-info-2/instances.log").open()]
    assert delays == [line["delays"] for line in logged]
    for metric in METRICS:
        assert point["word"][metric] == pytest.approx(found[metric], abs=1e-6), metric


def test_letters_of_tokens_are_those_of_the_text(tokenizer: Tokenizer) -> None:
    for text in (*made_up(5, 40), "私 東京。 abc 😀行"):
        tokens = tokenizer.encode(text)
        counts = list(accumulate(letter_count(tokenizer.piece(token)) for token in tokens))
        assert counts[-1] == len("".join(text.split()))
        for read, count in enumerate(counts, 1):
            seen = "".join(tokenizer.decode(tokens[:read]).split())
            assert count == len(seen) or "\ufffd" in seen


def test_a_lag_in_letters_is_held_however_text_arrives(tokenizer: Tokenizer) -> None:
    """What a stream counts is what the calibration counts, whole or letter by letter."""
    translator = Translator(model_with(tokenizer), streams=1, capacity=48)
    words = calibration(whole=True)
    translator.dials.calibration = replace(words, source=CHARACTERS, target=CHARACTERS)
    text, turns = "".join(made_up(6, 8)), []
    for pieces in ([text], list(text)):
        stream = translator.stream(lag=4.0, history=None, raw=True)
        controller = stream._channel.controller
        for piece in pieces:
            stream.push(piece)
        stream.finish()
        assert controller is not None
        read = sum(
            letter_count(e.token) for e in stream.trace if e.kind == "READ" and e.token != "</s>"
        )
        assert controller._meter.totals[0] == 100 + read == 100 + len(text)
        turns.append(stream.turns)
    assert turns[0] == turns[1] and len(turns[0]) > 1
    with pytest.raises(WaitinfoError, match="from 1.00 to 9.00 characters"):
        translator.stream(lag=77)


def test_letters_that_the_vocabulary_does_not_have_are_looked_at_once() -> None:
    """Each is three bytes; what stays in view is as short after thousands of them as after ten."""
    tokenizer = toy_tokenizer()
    draw = random.Random(5)
    word = "".join(draw.choice("日本語漢字ba") for _ in range(2_000))
    growing, found = GrowingWord(tokenizer), []
    for letter in word:
        found += growing.add(letter)
        assert len(growing._text) < 40
    assert found + growing.close() == tokenizer.encode(word)
