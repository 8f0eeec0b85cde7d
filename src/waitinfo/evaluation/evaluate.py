"""Score a model on a test set over its latency dial: one point, and one JSON, per dial value."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.evaluation.latency import corpus_latency
from waitinfo.evaluation.quality import bleu
from waitinfo.folder import LoadedModel
from waitinfo.progress import Progress, Silent
from waitinfo.streaming.beam import BeamDecoder
from waitinfo.streaming.decoder import Decoder, Hypothesis
from waitinfo.text.files import read_aligned, sha256


@dataclass(frozen=True)
class TestSet:
    """Sources and references, line by line."""

    source: Path
    reference: Path
    sources: list[str]
    references: list[str]

    @classmethod
    def read(cls, source: Path, reference: Path) -> TestSet:
        pairs = list(read_aligned(source, reference))
        if not pairs:
            raise WaitinfoError(f"{source}: holds no sentences")
        for number, pair in enumerate(pairs, 1):
            if not pair.target.strip():
                raise WaitinfoError(f"{reference}, line {number}: the reference is empty")
        return cls(source, reference, [p.source for p in pairs], [p.target for p in pairs])


def info_ratio(found: Sequence[Hypothesis]) -> float | None:
    """Average target info over average source info: near the length ratio source to target."""
    source = [info for h in found for info in h.source_info]
    target = [info for h in found for info in h.target_info]
    if not source or not target:
        return None
    return (sum(target) / len(target)) / (sum(source) / len(source))


def evaluate_point(
    loaded: LoadedModel,
    test: TestSet,
    k: float,
    ending: str = "guard",
    beam: int = 1,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Translate a test set at one dial value; returns the scores and the translations."""
    progress = progress or Silent()
    tokenized = [loaded.vocabulary.source.encode(text) for text in test.sources]
    dial = loaded.system.dial
    progress.stage(f"{dial.name} = {k:g}" if dial else "full sentences", len(tokenized))
    began = time.monotonic()
    if beam > 1:
        found = BeamDecoder(loaded.model, beam).decode(tokenized, progress.advance)
    else:
        decoder = Decoder(loaded.model, loaded.system, ending)
        found = decoder.decode(tokenized, k, progress.advance)
    seconds = time.monotonic() - began
    texts = [loaded.vocabulary.target.decode(hypothesis.tokens) for hypothesis in found]
    cased, lowered = bleu(texts, test.references), bleu(texts, test.references, lowercase=True)
    point = {
        "system": loaded.system.name,
        "dial": dial.name if dial else None,
        "k": k if dial else None,
        "ending": ending,
        "beam": beam,
        "BLEU": cased.score,
        "BLEU_signature": cased.signature,
        "BLEU_lowercase": lowered.score,
        **corpus_latency(found),
        "info_ratio": info_ratio(found),
        "sentences": len(texts),
        "seconds": round(seconds, 3),
        "source": {"file": test.source.name, "sha256": sha256(test.source)},
        "reference": {"file": test.reference.name, "sha256": sha256(test.reference)},
    }
    return point, texts


def write_point(out: Path, name: str, point: dict[str, Any], texts: Sequence[str] | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(point, indent=2) + "\n", "utf-8")
    if texts is not None:
        (out / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts), "utf-8")
