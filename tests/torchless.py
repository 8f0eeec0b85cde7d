"""Python in a new process in which packages cannot be imported, as if they were not installed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence

HOOK = """
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {packages!r}:
                raise {error}(f"{{name}} was imported", *({names} and [name]))

    sys.meta_path.insert(0, Refuse())
"""
MISSING = """
    class Missing(ModuleNotFoundError):
        def __init__(self, text, name):
            super().__init__(text, name=name)
"""


def run_without(
    packages: Sequence[str], code: str, *arguments: str, missing: bool = False, **settings: str
) -> subprocess.CompletedProcess[str]:
    """The process once it has ended. `missing`: what asks is told that there is no such package.

    Otherwise nothing may ask at all. settings: of the environment.
    """
    error = "Missing" if missing else "AssertionError"
    hook = HOOK.format(packages=tuple(packages), error=error, names=missing)
    script = "".join(map(textwrap.dedent, (MISSING, hook, code)))
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, check=False, env=os.environ | settings,
    )  # fmt: skip
