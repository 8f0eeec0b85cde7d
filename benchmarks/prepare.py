"""Time and memory of `prepare` on a large corpus.

python benchmarks/prepare.py SOURCE TARGET [--vocab bpe:16000] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from measurements import save
from waitinfo.progress import Lines
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--vocab", default="bpe:16000")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        manifest = prepare(
            ParallelText([options.source], [options.target]),
            Path(folder) / "corpus",
            PrepareOptions(vocab=options.vocab),
            progress=Lines(),
        )
        seconds = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    pairs = manifest["read"]
    save(
        options.out,
        {
            "pairs": pairs,
            "seconds": seconds,
            "pairs_per_second": pairs / seconds,
            "gigabytes": peak,
        },
    )
    print(f"{pairs:,} pairs in {seconds:.0f} s ({pairs / seconds:,.0f} per second), {peak:.2f} GB")


if __name__ == "__main__":
    main()
