"""`make demo` shows the bundled models, with commands that exist, in about half a minute."""

from __future__ import annotations

from typing import Any

import pytest

from examples import demo
from tests.commands import check_command

SECONDS = 25  # of words that arrive at speaking speed


@pytest.mark.parametrize("models", [("de-en",), ("de-en", "en-de")])
def test_the_demo(
    models: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []

    def typed(arguments: list[str]) -> Any:
        called.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(demo, "command_line", typed)
    monkeypatch.setattr(demo, "bundled_models", lambda: dict.fromkeys(models))
    demo.main()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    commands = [line for line in shown.splitlines() if line.startswith("$ waitinfo ")]
    assert len(commands) == len(called)
    for command in commands:
        check_command(command.removeprefix("$ waitinfo "))
    named = {given[given.index("--model") + 1] for given in called if "--model" in given}
    assert named == set(models) - {"de-en"}
    paced = [given for given in called if "--pace" in given]
    assert paced[-1][-1].islower() and "." not in paced[-1][-1]
    words = sum(len(text.split()) for given in paced for text in given if " " in text)
    assert words / 3 < SECONDS


def test_a_failing_command_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(arguments: list[str]) -> Any:
        raise SystemExit(2)

    monkeypatch.setattr(demo, "command_line", fails)
    with pytest.raises(SystemExit) as stop:
        demo.main()
    assert stop.value.code == 2
