"""release.py VERSION: the new version in all places, its heading in the changelog, a commit, a tag.

Nothing is pushed. `git reset --hard HEAD~ && git tag -d vVERSION` takes it back.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
CODE, CITATION, CHANGES = "src/waitinfo/__init__.py", "CITATION.cff", "CHANGELOG.md"


def main(arguments: list[str]) -> None:
    wanted = arguments[0] if len(arguments) == 1 else ""
    if not VERSION.fullmatch(wanted):
        stop(f"a version is three numbers, as 1.2.3, not {wanted!r}: make release VERSION=1.2.3")
    if git("status", "--porcelain"):
        stop("there are changes that are not committed: commit them first")
    code = Path(CODE).read_text("utf-8")
    now = re.search(r'^__version__ = "(.+)"$', code, re.M)
    assert now is not None
    if numbers(wanted) <= numbers(now[1]):
        stop(f"{wanted} is not later than {now[1]}")
    changes = Path(CHANGES).read_text("utf-8")
    if not re.search(r"^## Unreleased\n+- ", changes, re.M):
        stop(f"{CHANGES} has nothing under `## Unreleased`: there is nothing to release")
    today = datetime.date.today().isoformat()
    write(CODE, code.replace(now[0], f'__version__ = "{wanted}"'))
    citation = Path(CITATION).read_text("utf-8")
    dated = f"version: {wanted}\ndate-released: {today}\n"
    write(CITATION, re.sub(r"(?m)^version: .*\n(date-released: .*\n)?", dated, citation, count=1))
    write(CHANGES, changes.replace("## Unreleased\n", f"## {wanted} ({today})\n", 1))
    git("commit", "--quiet", "--all", "--message", f"Release {wanted}")
    git("tag", "--annotate", f"v{wanted}", "--message", f"waitinfo {wanted}")
    print(f"v{wanted} is committed and tagged. `git push --follow-tags` publishes it.")


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def write(path: str, text: str) -> None:
    Path(path).write_text(text, "utf-8")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        stop(done.stderr.strip())
    return done.stdout.strip()


def stop(message: str) -> None:
    sys.exit(f"Error: {message}.")


if __name__ == "__main__":
    main(sys.argv[1:])
