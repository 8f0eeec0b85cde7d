"""Lines as they are spoken: `python -m waitinfo.text.speech FILE [--language de] [--errors 0.1]`.

Without a style only case and punctuation are removed; --errors adds recognition errors, and --full
everything that `prepare --spoken` does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from waitinfo.errors import WaitinfoError
from waitinfo.text.files import normalise, read_lines
from waitinfo.text.speech.speaker import Speaker, style_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--language", help="code of the language: de, en, …")
    parser.add_argument("--errors", type=float, default=0.0, help="for each word [default: 0]")
    parser.add_argument("--full", action="store_true", help="numbers, fillers and repeats, too")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    try:
        lines = [normalise(line) for line in read_lines(given.file)]
        speaker = Speaker(given.language, style_of(given.errors, given.full), lines, given.seed)
    except WaitinfoError as error:
        sys.exit(error.sentence)
    for line in lines:
        print(speaker.say(line))


if __name__ == "__main__":
    main()
