"""Pictures of the pages with the bundled model: python -m tests.screenshots --out FOLDER"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.serving import CHROMIUM, SLOW, running
from waitinfo.serving.hearing import Hearing
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import load_models

WORDS = 24  # of the sample speech, when the picture is taken


def opened(browser: Any, url: str, **options: Any) -> Any:
    page = browser.new_context(bypass_csp=True, **options).new_page()
    page.set_default_timeout(SLOW)
    page.goto(url)
    return page


def play(page: Any) -> None:
    """Play the sample speech for some words."""
    page.wait_for_function("document.getElementById('state').textContent === 'connected'")
    page.click("#sample")
    page.wait_for_function(
        f"document.querySelector('#source').innerText.split(' ').length >= {WORDS}"
    )
    page.click("#play")
    page.wait_for_timeout(2000)


def speaker(browser: Any, url: str, out: Path, name: str, **options: Any) -> None:
    """Who speaks, who listens, and the captions on a stage."""
    page = opened(browser, url, **options)
    page.fill("#room", name)
    page.click("#open")
    page.locator("#qr svg").wait_for()
    listener = opened(browser, f"{url}/r/{name}", **options)
    empty = opened(browser, f"{url}/overlay?room=empty", **options)
    overlay = opened(browser, f"{url}/overlay?room={name}", **options)
    play(page)
    page.screenshot(path=out / f"speaker-{name}.png")
    page.screenshot(path=out / f"speaker-{name}-whole.png", full_page=True)
    listener.screenshot(path=out / f"audience-{name}.png")
    for which, shown in (("overlay", overlay), ("empty", empty)):
        shown.evaluate("document.documentElement.style.background = '#7aa'")
        shown.screenshot(path=out / f"{which}-{name}.png")
    for each in (page, listener, empty, overlay):
        each.context.close()


def lab(browser: Any, url: str, out: Path, name: str, compare: str = "", **options: Any) -> None:
    """Play the sample speech, and point at a word."""
    page = opened(browser, f"{url}/lab", **options)
    page.locator("#panes .words").first.wait_for()
    if compare:
        page.evaluate("document.getElementById('settings').open = true")
        page.select_option("#compare", compare)
    play(page)
    words = page.locator("#panes .w")
    words.nth(min(8, words.count() - 1)).hover()
    page.screenshot(path=out / f"lab-{name}.png", full_page=True)
    page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    metrics = Metrics()
    models = load_models([], metrics, streams=4, device="cpu", compare=2)
    hub = Hub(models, metrics=metrics, hearing=Hearing(metrics, "tests.listening:tones", 4))
    with running(hub) as server, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        wide = {"viewport": {"width": 1180, "height": 800}}
        phone = {"viewport": {"width": 360, "height": 740}}
        speaker(browser, server.url, out, "wide", **wide)
        speaker(browser, server.url, out, "dark", color_scheme="dark", **wide)
        speaker(browser, server.url, out, "phone", **phone)
        lab(browser, server.url, out, "wide", **wide)
        lab(browser, server.url, out, "side-by-side", "wait-k,full", color_scheme="dark", **wide)
        lab(browser, server.url, out, "phone", "dial", **phone)
        browser.close()


if __name__ == "__main__":
    main()
