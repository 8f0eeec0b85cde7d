"""From text to translations in three minutes: prepare a small corpus, train a tiny model, use it.

The first run takes about two and a half minutes on two CPU cores. The model is kept, so later runs
only translate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(os.path.relpath(Path(__file__).parent))
SENTENCES = (
    "Ich muss heute mit meiner Mutter sprechen.",
    "Wo hast du das Buch gekauft?",
    "Er hat mir nicht gesagt, dass er heute kommt.",
    "Ich kann dir morgen helfen.",
)


def waitinfo(*arguments: str | Path) -> None:
    print("\n$ waitinfo", *(f'"{a}"' if " " in str(a) else a for a in arguments), flush=True)
    done = subprocess.run([sys.executable, "-m", "waitinfo", *map(str, arguments)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/tiny"))
    parser.add_argument("--minutes", default="2", help="training time")
    options = parser.parse_args()
    corpus, run = options.work / "corpus", options.work / "run"
    options.work.mkdir(parents=True, exist_ok=True)
    if not (corpus / "corpus.json").exists():
        tsv = HERE / "data" / "tatoeba.de-en.tsv"
        waitinfo(
            "prepare", "--tsv", tsv, "--vocab", "bpe:2000", "--holdout", "200", "--out", corpus
        )
    if not (run / "last" / "config.json").exists():
        resume = ["--resume"] if (run / "run.json").exists() else []
        recipe = HERE.parent / "recipes" / "tiny.toml"
        waitinfo("train", "--config", recipe, "--data", corpus, "--out", run,
                 "--max-minutes", options.minutes, *resume)  # fmt: skip
    print("\nWords arrive at speaking speed; the translation lags K = 3 info behind.")
    waitinfo("translate", "--model", run, "--k", "3", "--pace", "2.5", *SENTENCES)
    print("\nREADs and WRITEs in order, with a higher latency (K = 5):")
    waitinfo("translate", "--model", run, "--k", "5", "--show", "path", *SENTENCES[:2])


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
