"""An evaluation in SimulEval's log format, for `simuleval --score-only --output FOLDER`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waitinfo.evaluation.trace import WordTrace

LOG, CONFIG, TEXT = "instances.log", "config.yaml", "hypotheses.txt"
DOCUMENTS, SEGMENTS, REFERENCES = "documents.log", "segments.json", "references.txt"


def one_space(text: str) -> str:
    """Replace every run of white space by one space, because SimulEval counts words by spaces."""
    return " ".join(text.split())


def instance(index: int, source: str, reference: str, trace: WordTrace) -> dict[str, Any]:
    return {
        "index": index,
        "prediction": trace.text,
        "delays": trace.delays,
        "elapsed": [0] * len(trace.delays),
        "prediction_length": len(trace.words),
        "reference": one_space(reference),
        "source": one_space(source),
        "source_length": trace.source_words,
    }


def write_instances(
    folder: Path, sources: Sequence[str], references: Sequence[str], traces: Sequence[WordTrace]
) -> None:
    """Write the log, the translations as plain text, and the configuration for SimulEval."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (
        json.dumps(instance(index, source, reference, trace), ensure_ascii=False)
        for index, (source, reference, trace) in enumerate(
            zip(sources, references, traces, strict=True)
        )
    )
    (folder / LOG).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (folder / TEXT).write_text("".join(f"{trace.text}\n" for trace in traces), "utf-8")
    (folder / CONFIG).write_text("source_type: text\ntarget_type: text\n", "utf-8")


def write_documents(
    folder: Path,
    outputs: Sequence[WordTrace],
    documents: Sequence[range],
    sources: Sequence[str],
    references: Sequence[str],
) -> None:
    """Write whole documents for `omnisteval longform`, where a source word takes one second."""
    segments = []
    with (folder / DOCUMENTS).open("w", encoding="utf-8") as log:
        for number, (trace, members) in enumerate(zip(outputs, documents, strict=True)):
            line = {
                "source": f"document-{number}",
                "prediction": trace.text,
                "delays": [1000 * delay for delay in trace.delays],
                "source_length": 1000 * trace.source_words,
            }
            log.write(json.dumps(line, ensure_ascii=False) + "\n")
            offset = 0
            for member in members:
                words = len(sources[member].split())
                place = {"wav": line["source"], "offset": offset, "duration": words}
                segments.append(place)
                offset += words
    (folder / SEGMENTS).write_text(json.dumps(segments) + "\n", "utf-8")
    lines = "".join(f"{one_space(reference)}\n" for reference in references)
    (folder / REFERENCES).write_text(lines, "utf-8")


def read_instances(folder: Path) -> list[dict[str, Any]]:
    with (folder / LOG).open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]
