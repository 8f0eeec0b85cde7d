"""Numbers from elsewhere into results, and copies of models: `python -m experiments.collect VERB`.

analysis OUT FILE.json     the numbers of a folder of `waitinfo analyse`, under the name of the
                           test set or another, without text: tokens are numbered, sentences
                           have line numbers
authors CSV DATA FILE      points (.jsonl) from a table of the authors' published code, with the
                           columns data, system, k, bleu, bleu_lc, al, dal, ap, cw, early_stop
switch MODEL COPY SWITCH=  a model with a switch of its network changed and the same weights: what
                           a trained model uses a part for, not the paper's ablation
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from waitinfo.analysis.case import END
from waitinfo.evaluation.latency import METRICS
from waitinfo.evaluation.points import FORMAT, Point, set_name
from waitinfo.text.files import read_lines, sha256_lines
from waitinfo.trained.folder import CONFIG, find_model, read_config

# Analyses

TEXTS = ("source", "reference", "written")


def without_text(case: dict[str, Any]) -> dict[str, Any]:
    """A case study with numbers instead of tokens, as test sets may not be published."""
    subjects = [
        {name: part for name, part in subject.items() if name != "text"}
        | {side: numbered(subject[side]) for side in ("source", "written")}
        for subject in case["subjects"]
    ]
    return {"line": case["line"], "latency": case["latency"], "subjects": subjects}


def without_sentences(difficulty: dict[str, Any]) -> dict[str, Any]:
    """Line numbers alone of the sentences where systems differ most."""
    kept = dict(difficulty)
    if "differences" in kept:
        kept["differences"] = {
            name: [{n: v for n, v in each.items() if n not in TEXTS} for each in value]
            if isinstance(value, list)
            else value
            for name, value in kept["differences"].items()
        }
    return kept


def numbered(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        token if token["token"] == END else {**token, "token": str(number)}
        for number, token in enumerate(tokens, 1)
    ]


def rounded(value: Any) -> Any:
    """Floats with six digits, which are more than any of them is certain of."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def lines(value: Any, depth: int = 0) -> str:
    """JSON with an object's entries on lines of their own, down to a depth."""
    if not isinstance(value, dict) or depth > 3:
        return json.dumps(value, ensure_ascii=False)
    inside = ",\n".join(
        f"{' ' * (depth + 1)}{json.dumps(name)}: {lines(each, depth + 1)}"
        for name, each in value.items()
    )
    return f"{{\n{inside}\n{' ' * depth}}}"


def analysis(out: Path, file: Path, name: str | None) -> None:
    found: dict[str, Any] = {}
    for path in sorted(out.glob("*.json")):
        read = json.loads(path.read_text("utf-8"))
        numbers = read[path.stem]
        found |= {"facts": read["facts"]}
        cleaned = {"case": without_text, "difficulty": without_sentences}.get(path.stem)
        found[path.stem] = cleaned(numbers) if cleaned else numbers
    name = name or set_name(found["facts"]["test"]["source"]["file"])
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    known[name] = rounded(found)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines(known) + "\n", "utf-8")


# The authors' code

SOURCE = "the authors' code, trained and decoded by us; greedy, no guard, one seed"
SETS = {  # name of the test set, path without language, first line and number of lines
    "multi30k": ("test_2016_flickr", "multi30k-de-en/test_2016_flickr", 0, None),
    "europarl-178k": ("europarl-178k.test", "de-en/europarl.train", 900_500, 1000),
}
COLUMNS = {"CW": "cw", "AP": "ap", "AL": "al", "DAL": "dal"}


def test_set(data: Path, name: str) -> dict[str, Any]:
    """Checksums of a test set, as `waitinfo evaluate` records them."""
    title, place, first, count = SETS[name]
    found: dict[str, Any] = {}
    for part, side in (("source", "de"), ("reference", "en")):
        paths = (data / f"{place}.{side}", data / f"{place}.{side}.xz")
        path = next(path for path in paths if path.exists())
        text = list(islice(read_lines(path), first, count and first + count))
        found[part] = {"file": f"{title}.{side}", "sha256": sha256_lines(text)}
        found["sentences"] = len(text)
    return found


def authors_point(row: dict[str, str], test: dict[str, Any]) -> Point:
    """A point that `waitinfo compare` can show beside others; None is what was not measured."""
    system, k = row["system"].removesuffix("-warm"), float(row["k"])
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
        "paper": {m: float(row[COLUMNS[m]]) if m in COLUMNS else None for m in METRICS},
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


def authors(table: Path, data: Path, file: Path) -> None:
    with table.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    tests = {name: test_set(data, name) for name in dict.fromkeys(row["data"] for row in rows)}
    file.parent.mkdir(parents=True, exist_ok=True)
    points = (authors_point(row, tests[row["data"]]) for row in rows)
    text = "".join(json.dumps(point, separators=(",", ":")) + "\n" for point in points)
    file.write_text(text, "utf-8")


# Switches

SWITCHES = ("info_self_attention", "info_cross_attention")


def switch(model: str, copy: Path, changes: dict[str, bool]) -> None:
    """A copy of a bundled model or of a folder."""
    folder = find_model(model)
    config = read_config(folder)
    config["model"] |= changes
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    (copy / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")


def change(text: str) -> tuple[str, bool]:
    name, _, value = text.partition("=")
    if name not in SWITCHES or value not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: give one of {', '.join(SWITCHES)}, and =false")
    return name, value == "true"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="experiments.collect", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = parser.add_subparsers(dest="verb", required=True)
    made = {name: verbs.add_parser(name) for name in ("analysis", "authors", "switch")}
    for verb, names in (("analysis", ("out", "file")), ("authors", ("csv", "data", "file"))):
        for name in names:
            made[verb].add_argument(name, type=Path)
    made["analysis"].add_argument("--name", help="[default: that of the test set]")
    made["switch"].add_argument("model", help="a bundled model or a folder")
    made["switch"].add_argument("copy", type=Path)
    made["switch"].add_argument("changes", type=change, nargs="*", metavar="SWITCH=false")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parse(arguments)
    if given.verb == "analysis":
        analysis(given.out, given.file, given.name)
    elif given.verb == "authors":
        authors(given.csv, given.data, given.file)
    else:
        switch(given.model, given.copy, dict(given.changes))


if __name__ == "__main__":
    main()
