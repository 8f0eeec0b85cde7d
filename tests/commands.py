"""Commands called by tests, in this process or in one of their own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import pytest
import typer

from waitinfo.cli.app import main
from waitinfo.cli.verbs import make_app

VERBS: dict[str, Any] = typer.main.get_command(make_app()).commands  # type: ignore[attr-defined]
HANGS = 600  # seconds after which a command has certainly got stuck


class Done(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def standard_input(content: bytes) -> Iterator[None]:
    """A pipe that holds this, and ends."""
    reader, writer = os.pipe()
    os.write(writer, content)  # as much as a pipe holds
    os.close(writer)
    before = sys.stdin
    with os.fdopen(reader) as sys.stdin:
        yield
    sys.stdin = before


def called(*arguments: object, stdin: bytes = b"") -> Done:
    """The command in this process: starting another takes seconds."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        standard_input(stdin),
        pytest.raises(SystemExit) as stop,
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        main([str(argument) for argument in arguments])
    return Done(stop.value.code or 0, stdout.getvalue(), stderr.getvalue())


def typed(*arguments: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "waitinfo", *map(str, arguments)],
        input=stdin, capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip


def parsed(verb: str, *arguments: str) -> dict[str, Any]:
    """Options of a command as the command line takes them; unknown options are errors."""
    return VERBS[verb].make_context(verb, list(arguments)).params


def done_quietly(*arguments: object) -> None:
    """A command that must succeed; what it prints is not looked at."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        assert not stop.code, f"{arguments}: exit {stop.code}"


def arguments_of(command: str) -> list[str]:
    """The arguments of a command line, without comments, pipes and redirections."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    arguments = []
    for word in lexer:
        if set(word) <= set("|>&;"):
            break
        arguments.append(word)
    return arguments


def check_options(arguments: list[str]) -> None:
    verb = VERBS[arguments[0]]
    known = {"-h", "--help", *(o for p in verb.params for o in (*p.opts, *p.secondary_opts))}
    given = {word.partition("=")[0] for word in arguments[1:] if re.match(r"--?[a-z]", word)}
    assert given <= known, f"{verb.name} has no {', '.join(sorted(given - known))}"


def check_command(command: str) -> None:
    """Every option exists, and a command that is not cut short parses."""
    arguments = arguments_of(command)
    check_options(arguments)
    if "…" not in command:
        parsed(*arguments)
