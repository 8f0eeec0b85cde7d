"""Arguments that are read without typer mean what typer makes of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.commands import VERBS, parsed
from waitinfo.cli.flags import find_verb, options_of, read

VALUES = ("3", "0.5", "-1", "a", "a b", "", "-", "--", "x=1", "ä", "1_0", " 2", "nan", "-h")


def known_flags(verb: str) -> list[str]:
    return [flag for p in VERBS[verb].params for flag in (*p.opts, *p.secondary_opts)]


def arguments_for(verb: str) -> st.SearchStrategy[list[str]]:
    flags = [flag for flag in known_flags(verb) if flag.startswith("-")]
    values = st.sampled_from(VALUES)
    flag = st.sampled_from([*flags, "--unknown", "-x"])
    pair = st.tuples(flag, values)
    joined = pair.map("=".join).map(lambda argument: (argument,))
    parts = st.lists(st.one_of(pair, joined, flag.map(lambda f: (f,)), values.map(lambda v: (v,))))
    return parts.map(lambda found: [argument for part in found for argument in part])


@pytest.mark.parametrize("verb", list(VERBS))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_read_without_typer_is_what_typer_reads(verb: str, data: Any) -> None:
    options = options_of(find_verb(verb))
    required = ["--out", "o"] if "--out" in known_flags(verb) else []
    arguments = required + data.draw(arguments_for(verb))
    found = read(options, arguments)
    if found is not None:
        assert repr(found) == repr(options(**parsed(verb, *arguments)))  # nan is not itself


PLAIN: list[tuple[list[str], dict[str, object]]] = [
    (["Guten Morgen."], {"text": ["Guten Morgen."]}),
    (["a", "--k", "3", "b", "--show=path"], {"text": ["a", "b"], "k": 3.0, "show": "path"}),
    (["--scores", "--threads", "2"], {"scores": True, "threads": 2}),
]


@pytest.mark.parametrize(("arguments", "values"), PLAIN)
def test_plain_arguments_are_read(arguments: list[str], values: dict[str, object]) -> None:
    options = options_of(find_verb("translate"))
    assert read(options, arguments) == options(**values)


@pytest.mark.parametrize("arguments", [["--help"], ["--set", "rho=1"], ["--k", "x"], ["--k"]])
def test_the_rest_is_left_to_typer(arguments: list[str]) -> None:
    assert read(options_of(find_verb("translate")), arguments) is None


def test_settings_in_the_environment_are_left_to_typer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAITINFO_KEY", "secret")
    assert read(options_of(find_verb("translate")), ["a"]) is None


def test_a_sentence_is_translated_without_typer() -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('typer', 'rich', 'torch'))\n"
        "from waitinfo.cli import main; main(['translate', 'Guten Morgen.'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Good morning.\n"
