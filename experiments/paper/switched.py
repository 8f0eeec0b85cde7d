"""Copy a model with a switch of its network changed: `python experiments/paper/switched.py`.

    python experiments/paper/switched.py de-en WORK/no-self info_self_attention=false

The weights stay as they are, so that the copy shows what a trained model uses a part for. It is
not the paper's ablation, in which the model is trained without the part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.trained.folder import CONFIG, find_model, read_config

SWITCHES = ("info_self_attention", "info_cross_attention")


def switched(model: str, copy: Path, changes: dict[str, bool]) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a bundled model or a folder")
    parser.add_argument("copy", type=Path)
    parser.add_argument("changes", type=change, nargs="+", metavar="SWITCH=false")
    given = parser.parse_args()
    try:
        switched(given.model, given.copy, dict(given.changes))
    except WaitinfoError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
