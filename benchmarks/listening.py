"""How long after a word was spoken it is recognised, and translated: a talk of ten sentences.

    python benchmarks/listening.py WHISPER-TINY WHISPER-BASE [--speech FOLDER] [--lag 4]

The arguments are recognisers, as `waitinfo listen --recogniser` has them. The recordings are read
German sentences (VoxForge); they are joined to one talk with short pauses. It comes at its own
pace by a simulated clock: computing takes as long as it takes, waiting takes no time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import wave
from pathlib import Path

import numpy as np

from waitinfo.listening.audio import RATE, read_file

SPEECH = Path(__file__).resolve().parents[2] / "shared" / "data" / "speech" / "de"
PAUSE = 0.8  # seconds between two sentences
REFERENCES = {
    67: "They tried to break mathematics down completely into axioms",
    68: "and to reduce the mathematical objects to their essential properties.",
    69: "How can the divisibility of whole numbers be studied?",
    70: "How can spatial relations be captured optimally by calculation?",
    71: "How are the areas under the curves determined?",
    72: "He wanted to study functions and to measure curved surfaces.",
    73: "Mathematical questions arise from physics and engineering.",
    74: "Mathematics is used by many natural scientists as an auxiliary science.",
    75: "Mathematics is not a natural science in the proper sense,",
    76: "because the statements of mathematics do not depend on experiments.",
}


def manifest(speech: Path, folder: Path) -> Path:
    """The talk, and what is said in it when."""
    pause, parts, lines, at = np.zeros(round(PAUSE * RATE), np.float32), [], [], 0
    for number, reference in REFERENCES.items():
        samples = np.concatenate(list(read_file(speech / f"{number}.wav")))
        source = (speech / f"{number}.txt").read_text("utf-8").strip()
        lines.append({"audio": "talk.wav", "offset": at / RATE, "duration": len(samples) / RATE,
                      "source": source, "reference": reference})  # fmt: skip
        parts += [samples, pause]
        at += len(samples) + len(pause)
    with wave.open(str(folder / "talk.wav"), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.concatenate(parts) * 32767).astype("<i2").tobytes())
    path = folder / "talk.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recogniser", nargs="+")
    parser.add_argument("--speech", type=Path, default=SPEECH)
    parser.add_argument("--lag", default="4")
    parser.add_argument("--out", type=Path, help="a folder to keep the figures in")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = manifest(options.speech, Path(folder))
        for name in options.recogniser:
            out = (options.out or Path(folder)) / Path(name).name
            command = ["evaluate", "--audio", given, "--recogniser", name, "--lag", options.lag,
                       "--out", out]  # fmt: skip
            subprocess.run([sys.executable, "-m", "waitinfo", *map(str, command)], check=True)


if __name__ == "__main__":
    main()
