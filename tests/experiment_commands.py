"""Commands of experiments, for the tests that check them against the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments import run
from experiments.experiment import Experiment

ROOT = Path(__file__).resolve().parents[1]


def commands_of(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[list[str]]:
    """Arguments of every waitinfo command of an experiment."""
    found: list[list[str]] = []
    monkeypatch.setattr(Experiment, "waitinfo", lambda self, arguments: found.append(arguments))
    monkeypatch.setattr(Experiment, "shell", lambda self, command: None)
    run.main([name, "DATA", "WORK", "--dry-run", *options])
    return found
