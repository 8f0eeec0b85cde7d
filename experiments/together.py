"""Run several waitinfo commands in one process: `python experiments/together.py < COMMANDS`.

COMMANDS is a JSON list of objects with `arguments` and, optionally, `makes`: a file that must be
there afterwards, as a training run that was asked to stop has not ended. A process that has trained
can score without starting Python, torch and the GPU again. The first command that fails ends it.
"""

from __future__ import annotations

import gc
import json
import shlex
import sys
from pathlib import Path

from waitinfo.cli.app import main as waitinfo


def run(arguments: list[str]) -> None:
    """One command, as if it had been given on the command line."""
    print(f"$ {shlex.join(['waitinfo', *arguments])}", file=sys.stderr, flush=True)
    sys.argv = ["waitinfo", *arguments]  # is recorded in run folders
    try:
        waitinfo(arguments)
    except SystemExit as ended:
        if ended.code:
            raise


def free_memory() -> None:
    """Give back memory that the last command used, for other processes on the same GPU."""
    gc.collect()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def main() -> None:
    for command in json.load(sys.stdin):
        run(command["arguments"])
        if "makes" in command and not Path(command["makes"]).exists():
            sys.exit("stopped")
        free_memory()


if __name__ == "__main__":
    main()
