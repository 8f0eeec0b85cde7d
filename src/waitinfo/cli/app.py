"""The command `waitinfo` and how it reports what went wrong."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from waitinfo.cli.flags import VERBS, find_verb, options_of, read
from waitinfo.errors import WaitinfoError

STOPPED = 130  # exit status after Ctrl-C
SENTENCES: dict[type[Exception], str] = {
    EOFError: "the input ends too early",
    MemoryError: "out of memory",
    RecursionError: "the input is nested too deeply",
}
EXTRAS = {"torch": "train", "rich": "cli", "typer": "cli"}


def main(arguments: Sequence[str] | None = None) -> None:
    if arguments is None:  # this is the program: what it loads is not garbage
        gc.set_threshold(100_000)
        atexit.register(_leave)
    try:
        _replace_closed_streams()
        with _naming_plugins():
            _run([_readable(a) for a in (sys.argv[1:] if arguments is None else arguments)])
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        _fail(f"the terminal cannot show {letter!a}; use UTF-8, as with PYTHONIOENCODING=utf-8")
    except WaitinfoError as error:
        _fail(error.sentence)
    except KeyboardInterrupt:
        _fail("stopped", STOPPED)
    except tuple(SENTENCES) as error:
        _fail(next(said for kind, said in SENTENCES.items() if isinstance(error, kind)))
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in EXTRAS:
            raise
        _fail(f"this needs {name}, which is not installed: pip install 'waitinfo[{EXTRAS[name]}]'")
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        problem = error.strerror or str(error)
        _fail(f"{error.filename}: {problem}" if error.filename else problem)


@contextlib.contextmanager
def _naming_plugins() -> Iterator[None]:
    """Give errors of plugins as one line with their place, not as a traceback."""
    try:
        yield
    except Exception as error:
        from waitinfo.systems.registry import plugin_error

        if (found := plugin_error(error)) is not None:
            raise found from None
        raise


def _leave() -> None:
    """End without freeing what is loaded, except under torch: parts of it would complain."""
    if "torch" not in sys.modules:
        gc.freeze()


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
    if arguments and arguments[0] in VERBS:
        verb = find_verb(arguments[0])
        options = read(options_of(verb), arguments[1:])
        if options is not None:
            verb(options)
            sys.exit(0)
    import typer

    from waitinfo.cli.verbs import make_app

    given = list(arguments) or ["--help"]
    try:
        code = make_app(given)(args=given, prog_name="waitinfo", standalone_mode=False)
    except typer.Abort as error:  # what typer makes of Ctrl-C, and of an end of input
        raise (error.__cause__ or error.__context__ or KeyboardInterrupt()) from None
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
