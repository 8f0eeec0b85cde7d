"""Shared fixtures: tiny models and a small corpus."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

# Some virtual machines announce matrix instructions for bfloat16 that they do not have.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import HealthCheck, settings

from waitinfo.model import ModelConfig, Transformer
from waitinfo.model.attention import CROSS_ATTENTIONS
from waitinfo.systems import SYSTEMS
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare

# Without a GPU, Triton interprets the fused kernels. It reads this when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A busy machine is no failure.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

# Tiny models gain nothing from a second thread, and suffer where the cores are shared.
THREADS = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def threads() -> None:
    """Commands that tests call set a number of their own."""
    torch.set_num_threads(THREADS)


def tiny_config(**changes: object) -> ModelConfig:
    values: dict = {
        "source_vocabulary": 40, "target_vocabulary": 40, "width": 32, "ffn": 48,
        "encoder_layers": 2, "decoder_layers": 2, "heads": 4, "dropout": 0.0,
    }  # fmt: skip
    return ModelConfig(**(values | changes))


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test registers is forgotten after it."""
    SYSTEMS.load()
    monkeypatch.setattr(SYSTEMS, "_names", list(SYSTEMS))
    monkeypatch.setattr(SYSTEMS, "_classes", dict(SYSTEMS))
    before = set(CROSS_ATTENTIONS)
    yield
    for name in set(CROSS_ATTENTIONS) - before:
        del CROSS_ATTENTIONS[name]


@pytest.fixture
def tiny_model():
    """A factory of seeded tiny models in float64 evaluation mode."""

    def build(seed: int = 0, **changes: object) -> Transformer:
        torch.manual_seed(seed)
        model = Transformer(tiny_config(**changes)).double().eval()
        with torch.no_grad():  # untrained quantizers are all near 1; spread them out
            for info in (model.source_info, model.target_info):
                if info is not None and info.kind == "attention":
                    info.quantizer.out.weight.mul_(6)
        return model

    return build


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
    return path


def toy_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Word-by-word 'translations' between two made-up languages."""
    source = [consonant + vowel for consonant in "bdg" for vowel in "aeiou"]
    target = {word: word[::-1] + "s" for word in source}
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = [draw.choice(source) for _ in range(draw.randint(2, 7))]
        pairs.append((" ".join(words), " ".join(target[w] for w in words)))
    return pairs


@pytest.fixture(scope="session")
def toy_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    tsv = write_pairs(folder / "toy.tsv", toy_pairs(600))
    options = PrepareOptions(vocab="words:1", holdout=40)
    prepare(ParallelText(tsv=[tsv]), folder / "corpus", options)
    return folder / "corpus"


@pytest.fixture
def loops_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """For random models, which loop, and tests that compare with something without the rule."""
    from tests import oracle
    from waitinfo.streaming.engine import Engine

    monkeypatch.setattr(Engine, "cuts_loops", False)
    monkeypatch.setattr(oracle, "literal_loop", lambda written, source: False)
