"""Commands of experiments, for the tests that check them against the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments import run as runner
from tests.commands import parsed

ROOT = Path(__file__).resolve().parents[1]


def commands_of(name: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[list[str]]:
    """Arguments of every waitinfo command of an experiment."""
    found: list[list[str]] = []
    monkeypatch.setattr(runner.Runner, "call", lambda self, command, log: found.append(command))
    monkeypatch.setattr(
        sys, "argv", ["run.py", name, "DATA", "WORK", "RESULTS", "--dry-run", *options]
    )
    runner.main()
    return [command[3:] for command in found if command[:3] == runner.WAITINFO]


def check_commands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of an experiment is one that the command line takes."""
    commands = commands_of(name, monkeypatch)
    assert {command[0] for command in commands} >= {"train", "evaluate"}
    for command in commands:
        options = parsed(*command)
        if command[0] == "train":
            assert options["config"].exists() and options["settings"]
