"""Points from a table of the authors' code: `python experiments/paper/authors.py CSV DATA FILE`.

CSV has the columns data, system, k, bleu, bleu_lc, al, dal, ap, cw and early_stop, measured by
training and decoding with the authors' published code. DATA holds multi30k-de-en and de-en, whose
test sets it was measured on: the caption test set, and lines 900,501 to 901,500 of Europarl's
training part. FILE (.jsonl) gets one point for each line, so that `waitinfo compare` can
show it beside other points. Metrics that were not measured are null.
"""

from __future__ import annotations

import argparse
import csv
import json
from itertools import islice
from pathlib import Path
from typing import Any

from waitinfo.evaluation.latency import METRICS
from waitinfo.evaluation.points import FORMAT
from waitinfo.text.files import read_lines, sha256_lines

SOURCE = "the authors' code, trained and decoded by us; greedy, no guard, one seed"
# Name of the test set, path without language, first line and number of lines.
SETS = {
    "multi30k": ("test_2016_flickr", "multi30k-de-en/test_2016_flickr", 0, None),
    "europarl-178k": ("europarl-178k.test", "de-en/europarl.train", 900_500, 1000),
}
SYSTEMS = {"wait-info": "wait-info", "multipath": "multipath", "multipath-warm": "multipath"}


def facts(data: Path, name: str) -> dict[str, Any]:
    """Checksums of a test set, as `waitinfo evaluate` records them."""
    title, place, first, count = SETS[name]
    found: dict[str, Any] = {}
    for part, side in (("source", "de"), ("reference", "en")):
        path = next(
            p for p in (data / f"{place}.{side}", data / f"{place}.{side}.xz") if p.exists()
        )
        lines = list(islice(read_lines(path), first, count and first + count))
        found[part] = {"file": f"{title}.{side}", "sha256": sha256_lines(lines)}
        found["sentences"] = len(lines)
    return found


def point(row: dict[str, str], test: dict[str, Any]) -> dict[str, Any]:
    known = {"CW": "cw", "AP": "ap", "AL": "al", "DAL": "dal"}
    system, k = SYSTEMS[row["system"]], float(row["k"])
    return {
        "format": FORMAT,
        "source": SOURCE,
        "name": f"authors-{row['system']}",
        "run": row["system"],
        "seed": 1,
        "set": SETS[row["data"]][0],
        "system": system,
        "dial": "K" if system == "wait-info" else "k",
        "k": k,
        "quality": {"BLEU": float(row["bleu"]), "BLEU_lowercase": float(row["bleu_lc"])},
        "paper": {m: float(row[known[m]]) if m in known else None for m in METRICS},
        "word": dict.fromkeys(METRICS),
        "early_stop": float(row["early_stop"]),
        "length_ratio": None,
        "target_per_source": None,
        "info_ratio": None,
        "test": test,
        "model": {"folder": None, "sha256": None, "parameters": None},
        "settings": {
            "system": system, "options": {"whole_source": row["system"] != "multipath"}, "k": k,
            "ending": "allow", "beam": 1, "dtype": None,
        },
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("csv", "data", "file"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    with given.csv.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    tests = {name: facts(given.data, name) for name in dict.fromkeys(row["data"] for row in rows)}
    given.file.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(point(row, tests[row["data"]]), separators=(",", ":")) for row in rows)
    given.file.write_text("".join(f"{line}\n" for line in lines), "utf-8")


if __name__ == "__main__":
    main()
