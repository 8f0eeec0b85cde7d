"""The share of an evaluation that is not the model: scoring, word traces, logs.

    python benchmarks/evaluation.py --sentences 1000 --dials 1,2,3,4,5,6,7,8

Translates real German sentences (examples/data) with a model of the given size. The weights are
random, which does not change the time of a step. End-of-sentence is forced, so that translations
have a realistic length. Prints a table, and writes JSON with --out.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
from pathlib import Path

import torch

from measurements import save
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet, evaluate_point
from waitinfo.evaluation.output import FolderOutput, UnfinishedPoint
from waitinfo.model import Transformer
from waitinfo.model.config import SIZES, ModelConfig
from waitinfo.progress import Lines
from waitinfo.streaming.decoder import Hypothesis
from waitinfo.systems import PolicyState, build_system
from waitinfo.systems.wait_info import WaitInfo
from waitinfo.text.special import EOS
from waitinfo.text.tokenizer import Vocabulary, VocabularySpec, train_tokenizer
from waitinfo.trained.folder import fingerprint
from waitinfo.trained.saving import LoadedModel, load_model, save_model

PAIRS = Path(__file__).resolve().parents[1] / "examples" / "data" / "tatoeba.de-en.tsv"


class SteeredWaitInfo(WaitInfo):
    """Wait-info that ends each translation at the length of its source, for untrained models."""

    def accept(self, state: PolicyState, step):  # type: ignore[no-untyped-def]
        over = state.complete & (state.written >= state.read)
        with torch.inference_mode():
            step.tokens[over.to(step.tokens.device)] = EOS
        return super().accept(state, step)


class PartialTimer:
    """Measures the time spent saving finished sentences in case of an interruption."""

    def __init__(self) -> None:
        self.seconds = 0.0
        add = UnfinishedPoint.add

        def timed(partial: UnfinishedPoint, number: int, hypothesis: Hypothesis) -> None:
            began = time.monotonic()
            add(partial, number, hypothesis)
            self.seconds += time.monotonic() - began

        UnfinishedPoint.add = timed  # type: ignore[method-assign]


def build(size: str, vocabulary: int, folder: Path) -> LoadedModel:
    lines = [part for line in PAIRS.read_text("utf-8").splitlines() for part in line.split("\t")]
    tokenizer, _ = train_tokenizer(lines, VocabularySpec("bpe", vocabulary))
    torch.manual_seed(1)
    count = len(tokenizer)
    model = Transformer(ModelConfig(count, count, info="attention", **SIZES[size])).eval()
    system = build_system("wait-info")
    save_model(folder, model, model.weights(), system, Vocabulary(tokenizer, tokenizer))
    loaded = load_model(folder)
    return LoadedModel(loaded.model, SteeredWaitInfo(), loaded.vocabulary, loaded.folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--words", type=int, default=20, help="minimum words per joined sentence")
    parser.add_argument("--dials", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments, Path(folder))
    share = result["share_not_the_model"]
    for part in ("translating", "keeping_partial_results", "scoring_and_logging", "set_up"):
        print(f"{part.replace('_', ' '):24} {result[part]:8.2f} s")
    print(f"share that is not the model: {100 * share:.2f}%")
    save(arguments.out, result)


def measure(arguments: argparse.Namespace, folder: Path) -> dict:
    loaded = build(arguments.size, arguments.vocabulary, folder / "model")
    test = joined(folder, arguments.sentences, arguments.words)
    began = time.monotonic()
    evaluation = Evaluation(loaded, test)
    fingerprint(loaded.folder)
    set_up = time.monotonic() - began
    output = FolderOutput(folder / "results")
    saving = PartialTimer()
    began = time.monotonic()
    points = [
        evaluate_point(evaluation, Decoding(float(k)), output, progress=Lines())
        for k in arguments.dials.split(",")
    ]
    whole = time.monotonic() - began + set_up
    translating = sum(point["seconds"]["translating"] for point in points) - saving.seconds
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": arguments.threads,
        "torch": torch.__version__,
        "size": arguments.size,
        "sentences": len(test.sources),
        "source_tokens": sum(map(len, evaluation.tokenized)),
        "dials": arguments.dials,
        "translating": translating,
        "keeping_partial_results": saving.seconds,
        "scoring_and_logging": sum(p["seconds"]["scoring_and_logging"] for p in points),
        "set_up": set_up,
        "seconds": whole,
        "share_not_the_model": (whole - translating) / whole,
    }


def joined(folder: Path, sentences: int, words: int) -> TestSet:
    """Build test sentences of at least `words` words by joining short ones."""
    lines: list[list[str]] = [[], []]
    parts: list[list[str]] = [[], []]
    pairs = [line.split("\t")[:2] for line in PAIRS.read_text("utf-8").splitlines()]
    while len(lines[0]) < sentences:
        for pair in pairs:
            for side, text in zip(parts, pair, strict=True):
                side.append(text)
            if len(" ".join(parts[0]).split()) >= words:
                for side, line in zip(parts, lines, strict=True):
                    line.append(" ".join(side))
                    side.clear()
            if len(lines[0]) == sentences:
                break
    for name, texts in zip(("source", "reference"), lines, strict=True):
        (folder / name).write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return TestSet.read(folder / "source", folder / "reference")


if __name__ == "__main__":
    main()
