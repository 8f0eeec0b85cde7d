"""The bundled model, as a new user meets it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle import uncached_decodes
from waitinfo.cli.app import main
from waitinfo.model.bundled import DEFAULT, bundled_models, find_model
from waitinfo.model.saving import load_model
from waitinfo.streaming.translator import Translator, load

ROOT = Path(__file__).parent.parent
PAIRS = {
    "Das Parlament hat den Bericht mit großer Mehrheit angenommen.":
        "Parliament adopted the report by a large majority.",
    "Ich glaube nicht, dass das eine gute Idee ist.":
        "I do not believe that this is a good idea.",
    "Können Sie mir bitte sagen, wo der nächste Bahnhof ist?":
        "Can you please tell me where the next station is?",
    "Wir müssen dringend etwas gegen den Klimawandel unternehmen, bevor es zu spät ist.":
        "We urgently need to do something about climate change before it is too late.",
    "Wenn ich mehr Zeit hätte, würde ich öfter ins Theater gehen.":
        "If I had more time, I would go to the theatre more often.",
}  # fmt: skip


@pytest.fixture(scope="module")
def translator() -> Translator:
    return load()


def test_it_is_small_and_has_a_card() -> None:
    model = bundled_models()[DEFAULT]
    assert model.folder == find_model(None) and model.size <= 25e6
    assert model.system == "wait-info"
    card = model.card.casefold()
    for part in ("europarl", "tatoeba", "cc by 2.0", "newstest", "bleu", "weakness", "licence"):
        assert part in card


def test_it_translates(translator: Translator) -> None:
    bleu = pytest.importorskip("sacrebleu").corpus_bleu
    hurried, unhurried = (
        bleu([translator.translate(source, k) for source in PAIRS], [list(PAIRS.values())]).score
        for k in (1, 9)
    )
    assert unhurried > 65
    assert hurried < unhurried


@pytest.mark.parametrize("k", [1.0, 5.0])
def test_streams_write_what_a_decoder_without_caches_writes(
    translator: Translator, k: float
) -> None:
    loaded = load_model(find_model(None), dtype="auto")
    source, target = loaded.vocabulary.source, loaded.vocabulary.target
    tokens = [source.encode(text) for text in PAIRS]
    expected = uncached_decodes(loaded.model, loaded.system, tokens, [k] * len(tokens))
    for text, (written, _) in zip(PAIRS, expected, strict=True):
        shown: list[str] = []
        stream = translator.stream(k)
        for word in text.split():
            shown += [e.word for e in stream.push(word) if e.kind == "WRITE" and e.word]
        shown += [e.word for e in stream.finish() if e.kind == "WRITE" and e.word]
        assert " ".join(shown) == target.decode(written[:-1])


def test_content_words_have_more_info(translator: Translator) -> None:
    """For words that are one token; the info of other words is a sum."""
    infos: dict[str, list[float]] = {"content": [], "function": []}
    for text in PAIRS:
        stream = translator.stream(9)
        stream.push(text)
        stream.finish()
        for event in stream.trace:
            word = event.token.lstrip("▁")
            if event.kind != "READ" or event.info is None or not event.token.startswith("▁"):
                continue
            if word in ("Bericht", "Mehrheit", "Idee", "Bahnhof", "Zeit", "Theater", "spät"):
                infos["content"].append(event.info)
            elif word in ("das", "dass", "den", "der", "mit", "die", "es", "zu", "ist", "ich"):
                infos["function"].append(event.info)
    means = {kind: sum(values) / len(values) for kind, values in infos.items()}
    assert means["content"] > means["function"] + 0.1


def transcripts() -> Iterator[tuple[list[str], str]]:
    """Commands and their output in the documents about the bundled model."""
    for document in (ROOT / "README.md", find_model(None) / "README.md"):
        for block in re.findall(r"```\n(\$ waitinfo translate .*?)```", document.read_text(), re.S):
            for shown in re.findall(r"\$ waitinfo (.*?)\n(.*?)(?=^\$|\Z)", block, re.S | re.M):
                yield shlex.split(shown[0]), shown[1]


def test_examples_in_the_documents_are_correct(capsys: pytest.CaptureFixture[str]) -> None:
    count = 0
    for arguments, expected in transcripts():
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert not stop.value.code
        assert capsys.readouterr().out.strip() == expected.strip()
        count += 1
    assert count == 3
