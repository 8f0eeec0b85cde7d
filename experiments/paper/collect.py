"""Put the numbers of an analysis into results: `python experiments/paper/collect.py OUT FILE`.

OUT is a folder of `waitinfo analyse`. FILE (.json) gets its numbers under the name of
the test set, or another name. It gets no text: tokens of the case study are numbered, sentences
have line numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from waitinfo.analysis.case import END
from waitinfo.evaluation.points import set_name

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="of the analysis [default: that of the test set]")
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for path in sorted(given.out.glob("*.json")):
        read = json.loads(path.read_text("utf-8"))
        numbers = read[path.stem]
        found |= {"facts": read["facts"]}
        cleaned = {"case": without_text, "difficulty": without_sentences}.get(path.stem)
        found[path.stem] = cleaned(numbers) if cleaned else numbers
    name = given.name or set_name(found["facts"]["test"]["source"]["file"])
    known = json.loads(given.file.read_text("utf-8")) if given.file.exists() else {}
    known[name] = rounded(found)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(lines(known) + "\n", "utf-8")


if __name__ == "__main__":
    main()
