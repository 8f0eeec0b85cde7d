"""A model to evaluate, a test set, and invented points."""

from __future__ import annotations

from pathlib import Path

import pytest
import sacrebleu
import torch

from tests.conftest import tiny_config
from tests.engines import restless
from waitinfo.evaluation.evaluate import TestSet
from waitinfo.model import Transformer
from waitinfo.streaming.decoder import Decoder
from waitinfo.systems import build_system
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.saving import LoadedModel, load_model, save_model

SENTENCES = [
    ("Ich gehe heute nach Hause.", "I am going home today."),
    ("Das ist gut. Sehr gut, sogar!", "That is good. Very good, even!"),
    ("Unwahrscheinlichkeit überall", "Improbability everywhere"),
    ("Ja.", "Yes."),
    ("Wir haben gestern das Haus verkauft.", "We sold the house yesterday."),
]
PAIRS = [
    ("Guten Morgen, meine Damen und Herren!", "Good morning, ladies and gentlemen!"),
    ("Ich muss heute mit meiner Mutter sprechen.", "I have to talk to my mother today."),
    ("Wir haben gestern einen neuen Vorschlag vorgelegt.", "We made a new proposal yesterday."),
    ("Das Haus, in dem er wohnt, ist alt.", "The house that he lives in is old."),
    ("Warum hast du mir das nicht gesagt?", "Why didn't you tell me?"),
    ("Der Zug fährt um acht Uhr ab, aber wir sind noch nicht fertig, weil es heute Morgen so sehr "
     "geregnet hat.",
     "The train leaves at eight, but we are not ready yet, because it rained so much today."),
    ("Es gibt keinen Grund, damit bis morgen zu warten.", "There is no reason to wait for it."),
]  # fmt: skip


def evaluated_model(folder: Path) -> LoadedModel:
    """An untrained model with varied output and real subwords, saved in a folder."""
    lines = [text for pair in SENTENCES for text in pair] * 3
    tokenizer, _ = train_tokenizer(lines, VocabularySpec("bpe", 330))
    torch.manual_seed(4)
    size = len(tokenizer)
    config = tiny_config(source_vocabulary=size, target_vocabulary=size, info="attention")
    model = restless(Transformer(config)).eval()
    system = build_system("wait-info")
    save_model(folder, model, model.weights(), system, Vocabulary(tokenizer, tokenizer))
    return load_model(folder)


def written_set(folder: Path) -> TestSet:
    source, reference = folder / "t.de", folder / "t.en"
    source.write_text("".join(f"{a}\n" for a, _ in SENTENCES), "utf-8")
    reference.write_text("".join(f"{b}\n" for _, b in SENTENCES), "utf-8")
    return TestSet.read(source, reference)


def interrupt_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupt the next decoding after two sentences; return the sentence counts of all calls."""
    real = Decoder.results
    asked: list[int] = []

    def cut_off(self: Decoder, sentences: list, k: float):
        asked.append(len(sentences))
        for number, item in enumerate(real(self, sentences, k)):
            if number == 2 and len(asked) == 1:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(Decoder, "results", cut_off)
    return asked


def point(name: str, k: float, al: float, bleu: float, **options: object) -> dict:
    """A point with invented figures."""
    return {
        "format": 2, "name": name, "system": name, "k": k, "dial": "k",
        "quality": {"BLEU": bleu, "BLEU_interval": 0.5, "BLEU_lowercase": bleu + 1},
        "paper": {"AL": al}, "word": {"AL": al / 2},
        "settings": {"system": name, "options": options, "k": k, "ending": "guard", "beam": 1},
        "test": {"source": {"sha256": "a"}, "reference": {"sha256": "b"}},
        "model": {"parameters": 10},
    }  # fmt: skip


def bleu(hypotheses: list[str], references: list[str]) -> float:
    return sacrebleu.corpus_bleu(hypotheses, [references]).score
