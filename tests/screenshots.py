"""Pictures of the page with the bundled model: python -m tests.screenshots --out FOLDER"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from tests.serving import CHROMIUM, SLOW, running
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import load_models

WORDS = 24  # of the sample speech, when the picture is taken


def take(browser: Any, url: str, path: Path, compare: str = "", **options: Any) -> None:
    """Play the sample speech, point at a word, and take a picture."""
    context = browser.new_context(bypass_csp=True, **options)
    page = context.new_page()
    page.set_default_timeout(SLOW)
    page.goto(url)
    page.locator("#panes .words").first.wait_for()
    if compare:
        page.evaluate("document.getElementById('settings').open = true")
        page.select_option("#compare", compare)
    page.fill("#room", "stage")
    page.locator("#room").blur()
    page.click("#sample")
    page.wait_for_function(f"document.querySelectorAll('#source .w').length >= {WORDS}")
    page.click("#play")
    page.wait_for_timeout(2000)
    words = page.locator("#panes .w")
    words.nth(min(8, words.count() - 1)).hover()
    page.screenshot(path=path, full_page=True)
    if path.stem == "page":
        overlay = context.new_page()
        overlay.goto(f"{url}/overlay?room=stage")
        overlay.locator("#captions p").first.wait_for(timeout=SLOW)
        overlay.evaluate("document.documentElement.style.background = '#7aa'")
        overlay.screenshot(path=path.with_name(f"overlay-{path.name}"))
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    metrics = Metrics()
    hub = Hub(load_models([], metrics, streams=4, device="cpu", compare=2), metrics=metrics)
    with running(hub) as server, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        wide = {"viewport": {"width": 1180, "height": 800}}
        phone = {"viewport": {"width": 320, "height": 640}}
        take(browser, server.url, out / "page.png", **wide)
        take(browser, server.url, out / "dark.png", color_scheme="dark", **wide)
        take(browser, server.url, out / "side-by-side.png", "wait-k,full", **wide)
        take(browser, server.url, out / "compare.png", "wait-k,full", color_scheme="dark", **wide)
        take(browser, server.url, out / "small.png", **phone)
        take(browser, server.url, out / "phone.png", "dial", **phone)
        browser.close()


if __name__ == "__main__":
    main()
