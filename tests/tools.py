"""Published scorers, installed for the tests that compare with them."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def python_with(package: str, version: str) -> Path:
    """A Python with a package, which also finds the packages of this Python and our own."""
    folder = (
        ROOT / "build" / f"{package}-{version}-{sys.version_info.major}{sys.version_info.minor}"
    )
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                   "--no-input", "--no-compile", f"{package}=={version}"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["pip failed"]
            pytest.skip(f"{package} {version} cannot be installed here: {reason[0]}")
        paths = [path for path in sys.path if path.endswith("site-packages")]
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "ours.pth").write_text("\n".join([str(ROOT / "src"), *paths]) + "\n")
        (folder / "ready").touch()
    return python
