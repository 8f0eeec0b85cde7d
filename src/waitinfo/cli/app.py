"""The command `waitinfo` and how it reports what went wrong."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from waitinfo.errors import WaitinfoError

STOPPED = 130  # exit status after Ctrl-C


def main(arguments: Sequence[str] | None = None) -> None:
    try:
        _replace_closed_streams()
        _run([_readable(a) for a in (sys.argv[1:] if arguments is None else arguments)])
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        _fail(f"the terminal cannot show {letter!a}; use UTF-8, as with PYTHONIOENCODING=utf-8")
    except WaitinfoError as error:
        _fail(error.sentence)
    except KeyboardInterrupt:
        _fail("stopped", STOPPED)
    except MemoryError:
        _fail("out of memory")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        _fail("this needs torch, which is not installed: pip install 'waitinfo[train]'")
    except RecursionError:
        _fail("the input is nested too deeply")
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        problem = error.strerror or str(error)
        _fail(f"{error.filename}: {problem}" if error.filename else problem)


class ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that was closed before the command began."""

    def write(self, text: str) -> int:
        raise WaitinfoError("standard output is closed")


def _replace_closed_streams() -> None:
    """Where standard streams are closed, keep files opened later from taking their place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 (kept open to the end)


def _readable(argument: str) -> str:
    """An argument as text, with U+FFFD for what is not UTF-8; names of files stay as they are."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        if os.path.lexists(argument):
            return argument
        argument = argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if "\N{REPLACEMENT CHARACTER}" in argument:
            print(f"note: not valid UTF-8: {argument}", file=sys.stderr)
    return argument


def _run(arguments: Sequence[str]) -> None:
    try:
        import rich  # noqa: F401
        import typer
    except ImportError:
        raise WaitinfoError("the command line needs: pip install 'waitinfo[cli]'") from None
    from waitinfo.cli.verbs import make_app

    given = list(arguments) or ["--help"]
    try:
        code = make_app(given)(args=given, prog_name="waitinfo", standalone_mode=False)
    except typer.Abort as error:  # what typer makes of Ctrl-C, and of an end of input
        if isinstance(error.__cause__ or error.__context__, EOFError):
            raise WaitinfoError("the input ends too early") from None
        raise KeyboardInterrupt from None
    except Exception as error:
        if not hasattr(error, "format_message"):  # only errors of usage have one
            raise
        _fail(_usage_error(error, given))
    if code == STOPPED:  # later versions of typer catch Ctrl-C themselves
        raise KeyboardInterrupt
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error(error: Any, given: Sequence[str]) -> str:
    """What is wrong with the arguments, in one line."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if context := getattr(error, "ctx", None):
        command = context.command_path
    else:
        command = " ".join(["waitinfo", *(word for word in given[:1] if word.isalpha())])
    return f"{message[:1].lower()}{message[1:]} (see {command} --help)"


def _fail(message: str, code: int = 2) -> None:
    with contextlib.suppress(OSError):  # standard error may be full
        print(f"waitinfo: {message}", file=sys.stderr)
    sys.exit(code)
