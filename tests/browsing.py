"""A browser for tests of the pages, and a server with small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.serving import CHROMIUM, SLOW, Running, running, toy_served
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models
from waitinfo.serving.settings import Settings

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
TEXT = "ba be bi bo bu. da de di do du."


def toys() -> Hub:
    metrics = Metrics()
    served = [toy_served(metrics, system=name, streams=9) for name in ("wait-info", "wait-k")]
    return Hub(Models(served), Settings(), metrics=metrics)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(toys()) as found:
        yield found


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def visit(browser: Any, server: Running, problems: list[str]) -> Iterator[Callable[..., Any]]:
    """Opens the page in a fresh context; afterwards the console must be clean."""
    contexts = []

    def opened(path: str = "/lab", script: str = "", **options: Any) -> Any:
        # Waiting for conditions needs eval, which the page's policy forbids.
        context = browser.new_context(bypass_csp=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SLOW)
        page.on("console", lambda m: m.type == "error" and problems.append(m.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        if script:
            page.add_init_script(script)
        page.goto(server.url + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


def connected(page: Any) -> Any:
    page.wait_for_function("document.getElementById('state').textContent === 'connected'")
    return page


def local_words(server: Running, text: str = TEXT) -> list[str]:
    """What a stream of this process writes."""
    with server.hub.models.find().translator.stream() as stream:
        stream.push(text)
        stream.finish()
        return stream.text.split()


def shows(page: Any, words: list[str], place: str = "#panes") -> None:
    """Wait until these words are shown, and no others."""
    page.wait_for_function(
        """([place, text]) => document.querySelector(place).innerText.trim().split(/\\s+/).join(" ")
        === text""",
        arg=[place, " ".join(words)],
    )


def open_room(page: Any, name: str, pin: str = "") -> None:
    page.fill("#room", name)
    page.fill("#pin", pin)
    page.click("#open")
    page.locator("#qr svg").wait_for()


@contextmanager
def speaker_and_listener(
    browser: Any, server: Running, recording: Path, problems: list[str], script: str = "",
    **options: Any,
) -> Iterator[tuple[Any, Any]]:  # fmt: skip
    """The speaker's page, where the microphone hears a recording, and another browser's page of
    the room "hall"; afterwards the consoles of both must be clean."""
    flags = [
        "--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={recording}%noloop",
    ]  # fmt: skip
    speaking = browser.browser_type.launch(executable_path=CHROMIUM, args=flags)
    contexts = [
        speaking.new_context(bypass_csp=True, permissions=["microphone"], **options),
        browser.new_context(bypass_csp=True, **options),
    ]
    pages = [context.new_page() for context in contexts]
    for page, path in zip(pages, ("/", "/r/hall"), strict=True):
        page.set_default_timeout(SLOW)
        page.on("console", lambda m: m.type == "error" and problems.append(m.text))
        page.add_init_script(script)
        page.goto(server.url + path)
    connected(pages[0])
    open_room(pages[0], "hall")
    yield pages[0], pages[1]
    contexts[1].close()
    speaking.close()
    assert not problems
