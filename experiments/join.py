"""Several corpora as one: `python experiments/join.py OUT CORPUS …`.

They have the same vocabulary. Dev text, options and inputs are those of the first, and the shards
of the others follow its own. This takes seconds where preparing the text again takes minutes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from swap import SIDES

from waitinfo.text.corpus import MANIFEST, Corpus

COPIES = ("copies", "dropped_copies")
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")


def check(first: Corpus, other: Corpus) -> None:
    for name in TOKENIZERS:
        paths = [corpus.folder / name for corpus in (first, other)]
        if len({path.read_bytes() if path.exists() else b"" for path in paths}) > 1:
            sys.exit(f"{other.folder}: its vocabulary is not that of {first.folder}")
    if first.languages != other.languages:
        sys.exit(f"{other.folder}: its languages are not those of {first.folder}")


def add_shards(corpora: list[Corpus], out: Path) -> list[dict[str, Any]]:
    """Copy the training shards; their entries in the manifest."""
    shards: list[dict[str, Any]] = []
    for corpus in corpora:
        for shard in corpus.manifest["splits"]["train"]["shards"]:
            name = f"train-{len(shards):05d}"
            for kind in ("tokens", "offsets"):
                shutil.copyfile(
                    corpus.folder / f"{shard['name']}.{kind}.npy", out / f"{name}.{kind}.npy"
                )
            shards.append({"name": name, "pairs": shard["pairs"]})
    return shards


def sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def join(corpora: list[Corpus], out: Path) -> None:
    first = corpora[0]
    for other in corpora[1:]:
        check(first, other)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in first.folder.iterdir():
        if not path.name.startswith("train-"):
            shutil.copyfile(path, partial / path.name)
    for side in SIDES:
        counts = sum(corpus.token_counts(side) for corpus in corpora)
        np.save(partial / f"counts.{side}.npy", counts)
    entries = [corpus.manifest["splits"]["train"] for corpus in corpora]
    sums = {
        key: sum(entry[key] for entry in entries)
        for key in ("pairs", "source_tokens", "target_tokens")
    }
    train = {**sums, "shards": add_shards(corpora, partial)}
    others = [corpus.manifest for corpus in corpora[1:]]
    manifest = first.manifest | {
        "splits": {**first.manifest["splits"], "train": train},
        "tagged": sum(corpus.manifest.get("tagged", 0) for corpus in corpora),
        **{key: sum_counts(c.manifest.get(key, {}) for c in corpora) for key in COPIES},
        "joined": [
            {k: m[k] for k in ("dropped", "inputs", "options", *COPIES) if k in m} for m in others
        ],
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(text, "utf-8")
    partial.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    given = parser.parse_args()
    join([Corpus(folder) for folder in given.corpora], given.out)


if __name__ == "__main__":
    main()
