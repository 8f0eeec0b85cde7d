"""Whether both sides have equal info: `python experiments/info_totals.py MODEL SOURCE TARGET`.

Total info of every source less that of its reference translation, end-of-sentence on neither side;
and in which share of the pairs the path of that translation (with the floor) ends before the source
does, at each K: before end-of-sentence, which is a source token too, or before the last token.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import torch

from info_words import token_infos
from waitinfo.model.info import info_path
from waitinfo.model.saving import load_model
from waitinfo.text.files import normalise, read_lines
from waitinfo.text.special import EOS

DIALS = (1, 3, 5, 7, 9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "source", "target"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    loaded = load_model(arguments.model)
    differences: list[float] = []
    ends: dict[int, list[int]] = {k: [] for k in DIALS}  # source tokens never read
    pairs = zip(read_lines(arguments.source), read_lines(arguments.target), strict=True)
    for source_text, target_text in pairs:
        source = [*loaded.vocabulary.source.encode(normalise(source_text)), EOS]
        target = loaded.vocabulary.target.encode(normalise(target_text))
        source_info = token_infos(loaded, source, target=False)
        target_info = token_infos(loaded, target, target=True)
        differences.append(sum(source_info[:-1]) - sum(target_info))
        for k, unread in ends.items():
            path = info_path(
                torch.tensor([source_info]),
                torch.tensor([[1.0, *target_info]]),
                k,
                torch.tensor([len(source)]),
                floor=True,
            )
            unread.append(len(source) - int(path[0, -1]))
    found = {
        "pairs": len(differences),
        "difference_mean": mean(differences),
        "difference_deviation": stdev(differences),
        "ends_before_end_of_sentence": {k: mean(n > 0 for n in ends[k]) for k in DIALS},
        "ends_before_last_token": {k: mean(n > 1 for n in ends[k]) for k in DIALS},
    }
    print(json.dumps(found, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
