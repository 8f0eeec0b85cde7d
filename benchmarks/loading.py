"""What a user waits for before the first word: cold starts, memory and installed size.

    python benchmarks/loading.py [MODEL] [--times 9] [--out FILE.json]
    python benchmarks/loading.py --demo

The first starts, by turns and each in a new process: `waitinfo translate` of one sentence; the same
by the Python API; CTranslate2 (and sentencepiece) with a model of the same shape in 8-bit integers,
which translates the same sentence to as many tokens; and, where torch is installed, `import torch`
alone. It prints the median seconds, and the most memory (Linux). The second clones this checkout
and times `make demo` there to its first sentence, which takes some seconds to speak.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from measurements import save

ROOT = Path(__file__).resolve().parents[1]
SENTENCE = "Guten Morgen, meine Damen und Herren."
API = "import sys, waitinfo; print(waitinfo.load(sys.argv[1]).translate(sys.argv[2]))"
THEIRS = """
import sys
import ctranslate2, sentencepiece
folder, tokenizer, text, count = sys.argv[1:]
pieces = sentencepiece.SentencePieceProcessor(model_file=tokenizer)
translator = ctranslate2.Translator(folder, "cpu", compute_type="int8", intra_threads=1)
tokens = [f"w{token}" for token in pieces.encode(text)]
found = translator.translate_batch(
    [tokens], beam_size=1, min_decoding_length=int(count), max_decoding_length=int(count)
)
print(pieces.decode([int(name[1:]) for name in found[0].hypotheses[0] if name[:1] == "w"]))
"""


def start(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of a process that is started, and the most memory it took, in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: failed")
    return seconds, used.ru_maxrss / 1024


def make_theirs(model: str | None, folder: Path) -> None:
    """Write a model of our model's shape for CTranslate2, and print what its program is given."""
    from against_ctranslate2 import ctranslate2_model
    from waitinfo.streaming.translator import load
    from waitinfo.text.tokenizer import SOURCE_FILE

    translator = load(model)
    loaded = translator.loaded
    ctranslate2_model(loaded.model.config, folder, "int8")
    count = len(loaded.vocabulary.target.encode(translator.translate(SENTENCE)))
    print(loaded.folder / SOURCE_FILE, count, sep="\n")


def their_command(model: str | None, folder: Path) -> list[str]:
    """CTranslate2 with such a model.

    Another process makes it: the memory of this one counts for those that it starts.
    """
    command = [sys.executable, __file__, *([model] if model else []), "--make", str(folder)]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    tokenizer, count = made.stdout.split("\n")[:2]
    return [sys.executable, "-c", THEIRS, str(folder), tokenizer, SENTENCE, count]


def cold_starts(model: str | None, times: int) -> dict[str, dict[str, float]]:
    """Median seconds and memory of every command, which take turns."""
    name = model or "de-en"
    compileall.compile_dir(ROOT / "src", quiet=1)  # as pip does with what it installs
    with tempfile.TemporaryDirectory() as folder:
        commands = {
            "waitinfo translate": [
                sys.executable, "-m", "waitinfo", "translate", "--model", name, SENTENCE,
            ],
            "waitinfo.load": [sys.executable, "-c", API, name, SENTENCE],
        }  # fmt: skip
        if find_spec("ctranslate2"):
            commands["CTranslate2"] = their_command(model, Path(folder))
        if find_spec("torch"):
            commands["import torch"] = [sys.executable, "-c", "import torch"]
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for turn in range(times + 1):
            for name, command in commands.items():
                found = start(command)
                if turn:  # the first reads the files from the disk
                    runs[name].append(found)
    return {
        name: {
            "seconds": statistics.median(seconds for seconds, _ in found),
            "MiB": statistics.median(memory for _, memory in found),
        }
        for name, found in runs.items()
    }


def demo() -> dict[str, float]:
    """Seconds of `make demo` in a new clone to its first sentence, and the size of .venv in MB."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        began = time.perf_counter()
        process = subprocess.Popen(
            ["make", "demo"], cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        set_up = seconds = 0.0
        for line in process.stdout:
            if line.startswith("Words arrive"):
                set_up = time.perf_counter() - began
            if set_up and line.startswith("Ladies and gentlemen"):
                seconds = time.perf_counter() - began
                break
        process.terminate()
        process.wait()
        files = (path for path in (clone / ".venv").rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files if not path.is_symlink())
    return {"set-up": set_up, "first sentence": seconds, "MB": size / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", help="a model folder or a bundled model's name")
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--demo", action="store_true", help="time `make demo` in a new clone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make_theirs(options.model, options.make)
        return
    if options.demo:
        found: dict[str, Any] = demo()
        print(", ".join(f"{name} {value:.1f}" for name, value in found.items()))
    else:
        found = cold_starts(options.model, options.times)
        for name, numbers in found.items():
            print(f"{name:20} {numbers['seconds']:6.3f} s {numbers['MiB']:6.0f} MiB")
    save(options.out, found)


if __name__ == "__main__":
    main()
