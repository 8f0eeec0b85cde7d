"""One stream for an hour, without any sign of where a sentence ends: memory, lag and quality.

    python benchmarks/long_stream.py --source a.de b.de --reference a.en b.en --segmented

Joins the files, takes away capitals and punctuation, and translates all of it as one stream, as a
speech recogniser would give it. Memory is measured while it runs; lag and BLEU after the output was
realigned to the reference sentences. `--segmented` also translates the sentences one by one, which
is what the stream is compared with: what such translations repeat is the model's own, what the
stream repeats beyond that comes from its windows. Prints a table, and writes JSON with --out.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from measurements import save
from waitinfo.cli.console import progress_bar
from waitinfo.cli.options import ModelOptions, use_threads
from waitinfo.evaluation.documents import LONG, Condition, DocumentEvaluation, Documents, ShownWords
from waitinfo.evaluation.evaluate import Decoding, Evaluation, TestSet
from waitinfo.evaluation.latency import length_adaptive_average_lagging
from waitinfo.evaluation.quality import bleu
from waitinfo.evaluation.trace import WordTrace
from waitinfo.progress import Progress
from waitinfo.streaming.event import Event
from waitinfo.streaming.translator import Translator
from waitinfo.text.files import read_lines
from waitinfo.trained.saving import LoadedModel

PUSHED = 20  # words at a time
ORDER, NEAR = 3, 60  # an n-gram that was written within so many words is an echo


def echoes(words: list[str]) -> float:
    """Share of the n-grams that were written shortly before, whatever their case and commas."""
    plain = [word.lower().strip(".,;:!?") for word in words]
    grams = [tuple(plain[place : place + ORDER]) for place in range(len(plain) - ORDER + 1)]
    found = sum(gram in grams[max(0, place - NEAR) : place] for place, gram in enumerate(grams))
    return round(found / max(1, len(grams)), 4)


def memory() -> float:
    """MiB of this process in use now, where the system says so, else the most it has used."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Run:
    """A stream under way: what it has written, and what was measured by then."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.shown = ShownWords()
        self.rows: list[dict[str, float]] = []
        self.kinds: Counter[str] = Counter()
        self.lag = 0  # the most source tokens that a window was ahead of its target

    def take(self, events: list[Event]) -> None:
        for event in events:
            self.kinds[event.kind if event.reason is None else event.reason] += 1
            self.lag = max(self.lag, event.lag)
            self.shown.take(event)

    def measure(self, read: int, began: float) -> None:
        self.rows.append(
            {
                "read": read,
                "written": len(self.shown.words),
                "seconds": round(time.process_time() - began, 1),
                "MiB": round(memory(), 1),
            }
        )


def stream(
    loaded: LoadedModel, words: list[str], k: float | None, segment: str, run: Run, bar: Progress
) -> WordTrace:
    """Translate all words as one stream."""
    bar.stage("stream", len(words))
    began = time.process_time()
    run.measure(0, began)
    with Translator(loaded, 1, segment=segment).stream(k, history=0) as open_stream:
        for place in range(0, len(words), PUSHED):
            run.take(open_stream.push(" ".join(words[place : place + PUSHED])))
            done = min(place + PUSHED, len(words))
            bar.advance(done)
            if done // run.every > place // run.every:
                run.measure(done, began)
        run.take(open_stream.finish())
    run.measure(len(words), began)
    shown = run.shown
    return WordTrace(shown.words, shown.delays, len(words), " ".join(shown.words))


def add_lags(
    rows: list[dict[str, Any]], evaluation: DocumentEvaluation, sentences: list[WordTrace]
) -> None:
    """The mean lag of the realigned sentences between two rows, by LAAL, in words."""
    lags, end = [], 0
    for sentence, lag in zip(evaluation.words, evaluation.lags(sentences), strict=True):
        end += sentence
        if lag.delays:
            lags.append(
                (end, length_adaptive_average_lagging(lag.delays, lag.source, lag.reference))
            )
    for before, row in pairwise(rows):
        within = [lag for place, lag in lags if before["read"] < place <= row["read"]]
        row["lag"] = round(fmean(within), 2) if within else None


def score(
    evaluation: DocumentEvaluation, decoding: Decoding, found: WordTrace
) -> tuple[dict[str, Any], list[WordTrace]]:
    """Scores, and the realigned sentences."""
    point, sentences = evaluation.score_documents(decoding, [found], resamples=0)
    scores = {
        "BLEU": round(point["quality"]["BLEU"], 2),
        "chrF": round(point["quality"]["chrF"], 2),
        **{name: round(point["documents"][name], 2) for name in LONG},
        "length": round(point["length_ratio"], 3),
        "repeated_4grams": round(point["documents"]["repeated_4grams"], 4),
        "echoes": echoes(found.words),
    }
    return scores, sentences


def over_time(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Lag and memory in the first and the second half of the stream, and the most of both.

    What grows without bound is larger in the second half.
    """
    found = {}
    for name in ("lag", "MiB"):
        values = [row[name] for row in rows[1:] if row.get(name) is not None]
        middle = -(-len(values) // 2)
        halves = [round(fmean(half), 2) for half in (values[:middle], values[middle:]) if half]
        found |= {f"{name}_halves": halves, f"most_{name}": max(values, default=None)}
    return found


def segmented(
    loaded: LoadedModel, test: TestSet, decoding: Decoding, bar: Progress
) -> dict[str, float]:
    """The same sentences, translated one by one."""
    evaluation = Evaluation(loaded, test)
    traces = evaluation.traces(evaluation.translate(decoding, progress=bar))
    words = [word for trace in traces for word in trace.words]
    return {
        "segmented_BLEU": round(bleu([trace.text for trace in traces], test.references), 2),
        "segmented_length": round(
            len(words) / sum(len(text.split()) for text in test.references), 3
        ),
        "segmented_echoes": echoes(words),
    }


def joined(sources: list[Path], references: list[Path], lines: int | None) -> TestSet:
    texts = [[line for path in paths for line in list(read_lines(path))[:lines]]
             for paths in (sources, references)]  # fmt: skip
    return TestSet(sources[0], references[0], *texts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="model or run folder; the bundled model")
    parser.add_argument("--source", type=Path, nargs="+", required=True)
    parser.add_argument("--reference", type=Path, nargs="+", required=True)
    parser.add_argument("--lines", type=int, help="only the first lines of each file")
    parser.add_argument("--k", type=float, help="the dial; the model's own")
    parser.add_argument("--segment", default="auto")
    parser.add_argument("--condition", default="documents-lower", help="also documents-errors-10")
    parser.add_argument("--every", type=int, default=5000, help="words between two rows")
    parser.add_argument("--segmented", action="store_true", help="also sentence by sentence")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="FILE.json, or FILE.json:NAME to add to it")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    use_threads(asked.threads)
    loaded = ModelOptions(device=asked.device, dtype=asked.dtype).load(asked.model)
    condition = Condition.parse(asked.condition)
    test = condition.apply(
        joined(asked.source, asked.reference, asked.lines), loaded.languages.source
    )
    evaluation = DocumentEvaluation(loaded, test, Documents.parse("all", len(test.sources)))
    decoding = Decoding(loaded.system.trained_dial() if asked.k is None else asked.k)
    run = Run(asked.every)
    with progress_bar() as bar:
        words = " ".join(evaluation.lines).split()
        found = stream(loaded, words, decoding.k, asked.segment, run, bar)
        bar.stage("realigning")
        began = time.process_time()
        scores, sentences = score(evaluation, decoding, found)
        scores["scoring_seconds"] = round(time.process_time() - began, 1)
        add_lags(run.rows, evaluation, sentences)
        scores |= over_time(run.rows)
        if asked.segmented:
            scores |= segmented(loaded, test, decoding, bar)
            scores["of_segmented"] = round(scores["BLEU"] / max(0.01, scores["segmented_BLEU"]), 3)
    for row in run.rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    print("  ".join(f"{name} {value}" for name, value in scores.items()))
    result = {
        "machine": platform.processor() or platform.machine(),
        "model": loaded.folder.name,
        "sets": [path.name for path in asked.source],
        "lines": len(test.sources),
        "words": len(words),
        "condition": asked.condition,
        "segment": asked.segment,
        "k": decoding.k,
        "events": dict(run.kinds),
        "most_tokens_ahead": run.lag,
        **scores,
        "rows": run.rows,
    }
    save(asked.out, result)


if __name__ == "__main__":
    main()
