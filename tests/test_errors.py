"""Errors name arguments as Python does, and options as the command line does."""

from __future__ import annotations

from pathlib import Path

import pytest

from waitinfo.cli.app import main
from waitinfo.errors import WaitinfoError
from waitinfo.text.files import ParallelText
from waitinfo.text.prepare import PrepareOptions, prepare


@pytest.mark.parametrize(
    ("command", "python"),
    [
        ("--max-ratio 0.5: must be 1 or more", "max_ratio 0.5: must be 1 or more"),
        ("use --source and --target, or --tsv", "use source and target, or tsv"),
        ("cannot be kept (--k, --against-k)", "cannot be kept (k, against_k)"),
        ("unknown name '--k'; see a--b", "unknown name '--k'; see a--b"),
        ("run waitinfo models --import X; or --force", "run waitinfo models --import X; or force"),
        ("audio needs: pip install --upgrade x", "audio needs: pip install --upgrade x"),
    ],
)
def test_options_become_arguments(command: str, python: str) -> None:
    error = WaitinfoError(command)
    assert (error.sentence, str(error)) == (command, python)


def test_the_same_mistake_in_python_and_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("ja\tyes\n", "utf-8")
    with pytest.raises(WaitinfoError, match=r"^max_ratio -1.0: must be above 0$"):
        prepare(ParallelText(tsv=[pairs]), tmp_path / "out", PrepareOptions(max_ratio=-1.0))
    with pytest.raises(SystemExit):
        main(["prepare", "--tsv", str(pairs), "--out", str(tmp_path / "out"), "--max-ratio", "-1"])
    assert capsys.readouterr().err == "waitinfo: --max-ratio -1.0: must be above 0\n"
