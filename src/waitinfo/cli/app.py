"""The command `waitinfo` and how it reports what went wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from waitinfo.errors import WaitinfoError

# Options that take several values after one flag: --source a b c.
LISTS = {
    "prepare": {"--source", "--target", "--tsv", "--dev-source", "--dev-target", "--exclude-source",
                "--exclude-target"},
    "train": {"--set"},
    "evaluate": {"--set"},
}  # fmt: skip


def expand_lists(arguments: Sequence[str]) -> list[str]:
    """`--source a b` as the parser wants it: `--source a --source b`."""
    if not arguments or arguments[0] not in LISTS:
        return list(arguments)
    expanded = [arguments[0]]
    flag, values = None, 0
    for argument in arguments[1:]:
        if argument.startswith("-") and argument != "-":
            flag, values = (argument if argument in LISTS[arguments[0]] else None), 0
        elif flag is not None:
            if values:
                expanded.append(flag)
            values += 1
        expanded.append(argument)
    return expanded


def main(arguments: Sequence[str] | None = None) -> None:
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        _fail(f"the terminal cannot show {letter!a}; use UTF-8, as with PYTHONIOENCODING=utf-8")
    except WaitinfoError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except MemoryError:
        _fail("out of memory")
    except BrokenPipeError:
        # Whoever read our output has gone; keep Python from complaining while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")


def _run(arguments: Sequence[str]) -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        raise WaitinfoError("the command line needs: pip install 'waitinfo[cli]'") from None
    from waitinfo.cli.commands import app

    app(args=expand_lists(arguments))


def _fail(message: str, code: int = 2) -> None:
    print(f"waitinfo: {message}", file=sys.stderr)
    sys.exit(code)
