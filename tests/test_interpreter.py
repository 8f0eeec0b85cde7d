"""The bundled models, as a new user meets them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle import uncached_decodes
from waitinfo.cli.app import main
from waitinfo.model.integers.in_torch import in_torch
from waitinfo.streaming.translator import Translator, load
from waitinfo.trained.folder import DEFAULT, BundledModel, bundled_models, find_model, read_config
from waitinfo.trained.saving import load_model

ROOT = Path(__file__).parent.parent
PAIRS = {
    "de-en": {
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
    },
    "en-de": {
        "Parliament adopted the report by a large majority.":
            "Das Parlament hat den Bericht mit großer Mehrheit angenommen.",
        "I do not believe that this is a good idea.":
            "Ich glaube nicht, dass das eine gute Idee ist.",
        "Can you please tell me where the next station is?":
            "Können Sie mir bitte sagen, wo der nächste Bahnhof ist?",
        "We must do something about climate change before it is too late.":
            "Wir müssen etwas gegen den Klimawandel tun, bevor es zu spät ist.",
        "If I had more time, I would go to the theatre more often.":
            "Wenn ich mehr Zeit hätte, würde ich öfter ins Theater gehen.",
    },
}  # fmt: skip
# Words with much and with little information, where they are one token.
CONTENT = {
    "de-en": ("Bericht", "Mehrheit", "Idee", "Bahnhof", "Zeit", "Theater", "spät"),
    "en-de": ("report", "majority", "idea", "station", "time", "theatre", "climate", "late"),
}
FUNCTION = {
    "de-en": ("das", "dass", "den", "der", "mit", "die", "es", "zu", "ist", "ich"),
    "en-de": ("the", "by", "a", "that", "this", "is", "it", "to", "me", "I"),
}
LEAST_BLEU = 50.0  # of these few sentences at K = 9


@pytest.fixture(scope="module", params=bundled_models())
def translator(request: pytest.FixtureRequest) -> Translator:
    return load(request.param, device="cpu")


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The model of the test's translator."""
    return request.node.callspec.params["translator"]


@pytest.mark.parametrize("model", bundled_models().values(), ids=lambda model: model.name)
def test_it_is_small_and_has_a_card(model: BundledModel) -> None:
    assert model.folder == find_model(model.name) and model.size <= 25e6
    assert model.system == "veto"
    languages = read_config(model.folder)["languages"]
    assert f"{languages['source']}-{languages['target']}" == model.name
    card = model.card.casefold()
    for part in ("europarl", "tatoeba", "cc by 2.0", "newstest", "bleu", "weakness", "licence"):
        assert part in card


def test_the_default() -> None:
    assert find_model(None) == bundled_models()[DEFAULT].folder


def test_it_translates(translator: Translator, name: str) -> None:
    bleu = pytest.importorskip("sacrebleu").corpus_bleu
    pairs = PAIRS[name]
    translations = [translator.translate(source, 9) for source in pairs]
    assert bleu(translations, [list(pairs.values())]).score > LEAST_BLEU


def test_a_small_k_writes_earlier(translator: Translator, name: str) -> None:
    """Source words read before the first word is written, in all."""
    waited = dict.fromkeys((1.0, 9.0), 0)
    for k in waited:
        for text in PAIRS[name]:
            stream = translator.stream(k)
            for word in text.split():
                if any(event.kind == "WRITE" for event in stream.push(word)):
                    break
                waited[k] += 1
            stream.finish()
    assert waited[1.0] < waited[9.0]


@pytest.mark.parametrize("k", [1.0, 5.0])
def test_streams_write_what_a_decoder_without_caches_writes(
    translator: Translator, name: str, k: float
) -> None:
    loaded = load_model(find_model(name), "cpu", "auto")
    source, target = loaded.vocabulary.source, loaded.vocabulary.target
    tokens = [source.encode(text) for text in PAIRS[name]]
    expected = uncached_decodes(in_torch(loaded.model), loaded.system, tokens, [k] * len(tokens))
    for text, (written, _) in zip(PAIRS[name], expected, strict=True):
        shown: list[str] = []
        stream = translator.stream(k)
        for word in text.split():
            shown += [e.word for e in stream.push(word) if e.kind == "WRITE" and e.word]
        shown += [e.word for e in stream.finish() if e.kind == "WRITE" and e.word]
        assert " ".join(shown) == target.decode(written[:-1])


def test_content_words_have_more_info(translator: Translator, name: str) -> None:
    """For words that are one token; the info of other words is a sum."""
    infos: dict[str, list[float]] = {"content": [], "function": []}
    for text in PAIRS[name]:
        stream = translator.stream(9)
        stream.push(text)
        stream.finish()
        for event in stream.trace:
            word = event.token.lstrip("▁")
            if event.kind != "READ" or event.info is None or not event.token.startswith("▁"):
                continue
            if word in CONTENT[name]:
                infos["content"].append(event.info)
            elif word in FUNCTION[name]:
                infos["function"].append(event.info)
    means = {kind: sum(values) / len(values) for kind, values in infos.items()}
    assert means["content"] > means["function"] + 0.1


def transcripts() -> Iterator[tuple[list[str], str]]:
    """Commands and their output in the documents about the bundled models."""
    cards = [model.folder / "README.md" for model in bundled_models().values()]
    for document in (ROOT / "README.md", *cards):
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
    assert count == 1 + 2 * len(bundled_models())
