"""The other direction of a corpus: `python experiments/swap.py CORPUS OUT`.

Source becomes target and target becomes source, in the same order and with the same vocabulary.
This takes seconds where preparing the text again takes minutes. TSV files, `swap.py TABLE … OUT`,
become one with their first two columns swapped.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

from waitinfo.text.corpus import MANIFEST, ORIGINS, Corpus, Split
from waitinfo.text.files import read_lines

SIDES = ("source", "target")
Sentences = tuple[np.ndarray, np.ndarray]  # concatenated tokens, and the length of each sentence


def write_shard(folder: Path, name: str, sources: Sentences, targets: Sentences) -> dict[str, Any]:
    """Write tokens of both sides, alternating, as `Split` reads them; the manifest's entry."""
    lengths = np.stack([sources[1], targets[1]], 1).ravel()
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    flat = np.empty(offsets[-1], np.uint16)
    of_source = np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)
    flat[of_source], flat[~of_source] = sources[0], targets[0]
    np.save(folder / f"{name}.tokens.npy", flat)
    np.save(folder / f"{name}.offsets.npy", offsets)
    return {"name": name, "pairs": len(lengths) // 2}


def swap_split(split: Split, entry: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write the shards of a split; its entry in the manifest."""
    shards = []
    for number, shard in enumerate(entry["shards"]):
        indices = np.arange(split.starts[number], split.starts[number + 1])
        sides = [split.gather(indices, side) for side in (1, 0)]
        shards.append(write_shard(out, shard["name"], *sides))
    tokens = {"source_tokens": entry["target_tokens"], "target_tokens": entry["source_tokens"]}
    return {**entry, **tokens, "shards": shards}


def swap(corpus: Corpus, out: Path) -> None:
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    manifest = dict(corpus.manifest)
    entries = manifest["splits"]
    manifest["splits"] = {
        name: swap_split(getattr(corpus, name), entry, partial) for name, entry in entries.items()
    }
    for one, other in (SIDES, SIDES[::-1]):
        for name in ("dev.{}.txt", "counts.{}.npy"):
            shutil.copyfile(corpus.folder / name.format(one), partial / name.format(other))
    if corpus.origins() is not None:
        shutil.copyfile(corpus.folder / ORIGINS, partial / ORIGINS)
    known = manifest.get("languages", {})
    swapped = dict(zip(SIDES, SIDES[::-1], strict=True))
    manifest["languages"] = {swapped[side]: code for side, code in known.items()}
    sizes = manifest["vocabulary"]
    manifest["vocabulary"] = {**sizes, "source": sizes["target"], "target": sizes["source"]}
    type(corpus.vocabulary)(corpus.vocabulary.target, corpus.vocabulary.source).save(partial)
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    (partial / MANIFEST).write_text(text, "utf-8")
    partial.rename(out)


def swap_tables(tables: list[Path], out: Path) -> None:
    partial = out.with_name(f".{out.name}.partial")
    opened = lzma.open if out.suffix == ".xz" else open
    with opened(partial, "wt", encoding="utf-8") as stream:
        for table in tables:
            for number, line in enumerate(read_lines(table), 1):
                source, tab, target = line.partition("\t")
                if not tab:
                    sys.exit(f"{table}, line {number}: no tab; each line is source<TAB>target")
                stream.write(f"{target.split(tab)[0]}\t{source}\n")
    partial.rename(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path, nargs="+", help="a corpus, or TSV files")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    if all(path.is_file() for path in given.corpus):
        swap_tables(given.corpus, given.out)
    elif len(given.corpus) == 1:
        swap(Corpus(given.corpus[0]), given.out)
    else:
        sys.exit("give one corpus, or TSV files")


if __name__ == "__main__":
    main()
