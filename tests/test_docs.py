"""The documentation: its Python runs, its examples print what they say, its commands exist."""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.commands import VERBS, arguments_of, check_command, check_options
from waitinfo.systems import System
from waitinfo.trained.folder import bundled_models, find_model

ROOT = Path(__file__).resolve().parents[1]
# Pages whose Python is run; commands and links are checked in all pages.
GUIDES = [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
GUIDES += sorted((ROOT / "docs").glob("*.md"))
CARDS = [model.folder / "README.md" for model in bundled_models().values()]
PAGES = [*GUIDES, *sorted((ROOT / "results").rglob("*.md")), *CARDS]

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S
)
SENTENCES = {
    "Guten Morgen!": "Good morning!",
    "Das ist eine gute Idee.": "That is a good idea.",
}


def title(page: Path) -> str:
    return os.path.relpath(page, ROOT)


def fenced(page: Path, language: str) -> Iterator[tuple[int, str]]:
    """Blocks of a language, and the line of the page that each begins after."""
    text = page.read_text("utf-8")
    for block in FENCE.finditer(text):
        if block["language"] == language:
            yield text.count("\n", 0, block.start("code")), textwrap.dedent(block["code"])


# Python


def prelude(folder: Path) -> dict[str, Any]:
    """What examples may use without saying so.

    The folder has `run`, a model, and `test.de` and `test.en`, a test set.
    """
    (folder / "run").symlink_to(find_model(None))
    (folder / "test.de").write_text("".join(f"{line}\n" for line in SENTENCES), "utf-8")
    (folder / "test.en").write_text("".join(f"{line}\n" for line in SENTENCES.values()), "utf-8")
    return {"__name__": "__main__"}


@pytest.mark.usefixtures("own_registry")
@pytest.mark.parametrize("page", [p for p in GUIDES if any(fenced(p, "python"))], ids=title)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page run one after the other and share their names; they may `await`."""
    monkeypatch.chdir(tmp_path)
    names = prelude(tmp_path)
    with asyncio.Runner() as runner:
        for line, code in fenced(page, "python"):
            compiled = compile(
                "\n" * line + code, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
            if compiled.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(compiled, names))
            else:
                exec(compiled, names)


@pytest.mark.parametrize("page", [p for p in GUIDES if ">>>" in p.read_text("utf-8")], ids=title)
def test_examples_print_what_they_say(page: Path) -> None:
    found = doctest.testfile(
        str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted and not found.failed


def test_the_interface_of_a_system() -> None:
    """The methods that docs/systems.md lists are there, with those arguments."""
    blocks = [ast.parse(code) for _, code in fenced(ROOT / "docs" / "systems.md", "python")]
    (listed,) = [
        node
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ClassDef) and node.name == "System"
    ]
    methods = [node for node in listed.body if isinstance(node, ast.FunctionDef)]
    assert len(methods) >= 4
    for method in methods:
        found = inspect.signature(getattr(System, method.name)).parameters
        assert [argument.arg for argument in method.args.args] == list(found), method.name


# Commands

COMMAND = re.compile(rf"(?:^|[\s`/])waitinfo +(?P<rest>(?:{'|'.join(VERBS)})\b.*)", re.S)


def blocks_of_commands(text: str) -> Iterator[str]:
    """Commands on lines of their own: indented by four, after a $, or in a block of a shell."""
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        if found := COMMAND.search(line):
            before = line[: found.start()]
            if line.startswith(("    ", "$ ", ".venv", "waitinfo")) and "`" not in before:
                yield found["rest"]


def inline_commands(text: str) -> Iterator[str]:
    """Commands between backticks, which may leave out what they are not about."""
    without_blocks = FENCE.sub("", text)
    for code in re.findall(r"`([^`]+)`", without_blocks):
        if found := COMMAND.match(code):
            yield found["rest"]


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_commands_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for command in blocks_of_commands(text):
        check_command(command)
    for command in inline_commands(text):
        check_options(arguments_of(command))


def test_commands_are_found() -> None:
    """The checks above see what a reader sees."""
    text = (
        "$ waitinfo models de-en\n"
        "    a | waitinfo translate --k 3    # live\n"
        "    waitinfo prepare --tsv a \\\n        --out b > log\n"
        "Say `waitinfo compare\n--paired` or `waitinfo translate`.\n"
    )
    assert [arguments_of(command) for command in blocks_of_commands(text)] == [
        ["models", "de-en"], ["translate", "--k", "3"], ["prepare", "--tsv", "a", "--out", "b"],
    ]  # fmt: skip
    assert [arguments_of(command) for command in inline_commands(text)] == [
        ["compare", "--paired"], ["translate"],
    ]  # fmt: skip
    readme = (ROOT / "README.md").read_text("utf-8")
    assert {c.split()[0] for c in blocks_of_commands(readme)} >= {"prepare", "train", "translate"}
    for wrong in ("translate --speed 3", "train --out run --size", "distill --data a"):
        with pytest.raises(Exception, match="no --speed|requires an argument|Missing parameter"):
            check_command(wrong)


@pytest.mark.parametrize("verb", VERBS)
def test_examples_of_the_help(verb: str) -> None:
    examples = list(blocks_of_commands(textwrap.dedent(VERBS[verb].help)))
    assert len(examples) >= 2
    for command in examples:
        check_command(command)


# Links


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]*)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{title(page)}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text("utf-8"), re.M)
            anchors = [
                re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings
            ]
            assert anchor in anchors, f"{title(page)}: {target}"


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for page in GUIDES:
        for name in re.findall(r"(?:^    |`)make (\w+)", page.read_text("utf-8"), re.M):
            assert re.search(rf"^{name}:", makefile, re.M), f"{title(page)}: make {name}"
