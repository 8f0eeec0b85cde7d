"""python -m tests.fuzz TARGET [--seconds 3600]: fuzz with atheris, from the corpus on."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

parser = argparse.ArgumentParser(prog="tests.fuzz", description=__doc__)
NAMES = ("html", "body", "tokens", "model", "messages", "replay", "frames")
parser.add_argument("target", choices=NAMES)
parser.add_argument("--seconds", type=int, default=3600)
parser.add_argument("--found", type=Path, default=Path("fuzz-found"), help="where finds are put")


def main() -> None:
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        raise SystemExit("fuzzing needs atheris: pip install atheris") from None
    with atheris.instrument_imports(include=["waitinfo"]):
        from tests.fuzz.targets import TARGETS, corpus

    options.found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as inputs:
        for data in corpus(options.target):
            (Path(inputs) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        settings = [f"-max_total_time={options.seconds}", "-timeout=20", "-rss_limit_mb=4096"]
        settings += [f"-artifact_prefix={options.found}/", "-max_len=4096", inputs]
        atheris.Setup([sys.argv[0], *settings], TARGETS[options.target])
        atheris.Fuzz()


main()
