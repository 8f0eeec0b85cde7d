"""The lab in a real browser: typing, playing, comparing, export, reconnects."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import (
    TEXT,
    browser,
    connected,
    local_words,
    needs_chromium,
    problems,
    server,
    shows,
    toys,
    visit,
)
from tests.serving import SLOW, Running, running

__all__ = ["browser", "problems", "server", "visit"]
pytestmark = needs_chromium


def translation(page: Any, number: int = 0) -> str:
    return page.locator("#panes .words").nth(number).inner_text().strip()


def play(page: Any, text: str = TEXT, speed: int = 100) -> None:
    """Paste a text and play it to the end, faster than people may."""
    page.evaluate(
        """([text, speed]) => { const box = document.getElementById("text"); box.value = text;
        document.getElementById("speed").add(new Option(speed, speed));
        box.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste" })); }""",
        [text, str(speed)],
    )
    page.select_option("#speed", str(speed))
    page.click("#play")
    page.wait_for_function("document.getElementById('play').textContent === 'Play'")


def worked_off(page: Any, sentences: int = 2) -> None:
    """Wait until a number of sentences has been translated in all columns."""
    page.wait_for_function(
        """n => [...document.querySelectorAll("#panes .words")].every(
          (box) => box.querySelectorAll("p").length >= n)""",
        arg=sentences,
    )


def test_typing(visit: Callable[..., Any]) -> None:
    page = connected(visit())
    page.locator("#text").press_sequentially("ba be bi. ")
    page.wait_for_function("document.querySelectorAll('#source .w').length === 3")
    page.locator("#text").press_sequentially("bo")
    page.keyboard.press("Enter")  # ends the sentence
    page.wait_for_function("document.querySelectorAll('#source .w').length === 4")
    worked_off(page)
    assert page.locator("#text").input_value() == ""
    page.locator("#panes .w").last.hover()
    assert "source words had been read" in page.locator("#detail").inner_text()
    assert page.locator("#source .w.seen").count() >= 1
    page.locator("#panes .words").focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#panes .w.chosen").count() == 1
    assert "read," in page.locator("#panes svg").get_attribute("aria-label")


def test_playing_turning_and_comparing(visit: Callable[..., Any]) -> None:
    page = connected(visit())
    page.select_option("#compare", "dial")
    connected(page)
    page.locator("#other").fill("12")
    play(page, speed=6)
    worked_off(page)
    assert page.locator("#panes article").count() == 2
    assert "K = 12" in page.locator("#panes h2").nth(1).inner_text()
    lags = [float(re.findall(r"([-\d.]+) on average", text)[0])
            for text in page.locator("#panes .figures").all_inner_texts()]  # fmt: skip
    assert len(lags) == 2
    page.select_option("#compare", "wait-k")
    connected(page)
    assert page.locator("#panes h2").nth(1).inner_text().startswith("English wait-k")
    page.locator("#dial").fill("2")
    assert "K = 2" in page.locator("#panes h2").nth(0).inner_text()


def test_export_and_replay(visit: Callable[..., Any], server: Running, tmp_path: Path) -> None:
    page = connected(visit())
    play(page)
    shows(page, local_words(server), "#panes .words")
    shown = translation(page)
    saved = {}
    for kind in ("txt", "srt", "vtt", "jsonl"):
        page.select_option("#format", kind)
        with page.expect_download() as download:
            page.click("#export")
        download.value.save_as(tmp_path / kind)
        saved[kind] = (tmp_path / kind).read_text("utf-8")
    assert saved["txt"].split() == shown.split()
    assert saved["srt"].startswith("1\n00:00:0") and " --> " in saved["srt"]
    assert saved["vtt"].startswith("WEBVTT\n\n00:00:0")
    kinds = {json.loads(line)["type"] for line in saved["jsonl"].splitlines()}
    assert {"columns", "text", "words"} <= kinds
    page.click("#clear")
    page.select_option("#rate", "1000")
    page.set_input_files("#load", {"name": "s.jsonl", "mimeType": "text/plain",
                                   "buffer": saved["jsonl"].encode()})  # fmt: skip
    page.wait_for_function("document.getElementById('state').textContent.includes('is over')")
    assert translation(page).split() == shown.split()
    page.set_input_files("#load", {"name": "s.txt", "mimeType": "text/plain", "buffer": b"no"})
    page.wait_for_function("document.getElementById('state').textContent.includes('not a session')")


def test_earlier_sessions_are_kept_in_the_browser(
    visit: Callable[..., Any], server: Running
) -> None:
    page = connected(visit())
    assert page.locator("#history-label").is_hidden()
    play(page)
    words = local_words(server)
    shows(page, words, "#panes .words")
    page.reload()
    connected(page)
    assert translation(page) == ""
    page.select_option("#rate", "1000")
    page.select_option("#history", index=1)
    shows(page, words, "#panes .words")
    page.click("#forget")
    assert page.locator("#history-label").is_hidden()
    page.reload()
    assert page.locator("#history-label").is_hidden()


LAGS = """
const asked = window.fetch;
window.fetch = async (...given) => {
  const found = await (await asked(...given)).json();
  return { ok: true, json: async () => found.map((model) => ({ ...model, lags: [1.93, 7.2] })) };
};
window.WebSocket = class extends WebSocket {
  send(text) { (window.sent ??= []).push(JSON.parse(text)); }
};
"""


def test_a_lag_instead_of_the_dial(visit: Callable[..., Any]) -> None:
    """With a calibrated model: as the server would describe it."""
    page = visit(script=LAGS)
    page.wait_for_function("window.sent?.at(-1)?.type === 'start'")
    assert page.evaluate("sent.at(-1).k") is not None
    page.check("#hold")
    page.wait_for_function("sent.at(-1).lag !== undefined && sent.at(-1).k === undefined")
    assert page.locator("#dial").get_attribute("min") == "2"
    page.locator("#dial").fill("3.5")
    assert page.locator("#panes h2").inner_text() == "English wait-info, lag 3.5"
    assert page.evaluate("sent.at(-1)") == {"type": "set", "lag": 3.5}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_small_dark_and_accessible(visit: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    page = connected(visit(viewport={"width": 320, "height": 640}, color_scheme=scheme))
    play(page)
    worked_off(page)
    assert page.evaluate("document.documentElement.scrollWidth <= 320")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
    assert dark is (scheme == "dark")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


RECOGNITION = """
window.SpeechRecognition = window.webkitSpeechRecognition = class {
  start() { setTimeout(() => { this.onresult({ resultIndex: 0, results: [
    Object.assign([{ transcript: "ba be bi." }], { isFinal: true })] }); this.onend(); }, 50); }
  stop() {}
};
"""


def test_dictation(visit: Callable[..., Any]) -> None:
    page = connected(visit(script=RECOGNITION))
    assert "its maker" in page.locator("#hears").inner_text()
    page.click("#dictate")
    page.wait_for_function("document.querySelectorAll('#source .w').length === 3")


RELEASES = """() => {
  const box = document.querySelector("#panes .words");
  window.releases = [];
  new MutationObserver(() => {
    const words = [...box.querySelectorAll(".w")];
    releases.push([words.length, words.at(-1).textContent, box.querySelectorAll("p").length]);
  }).observe(box, { childList: true, subtree: true });
}"""


def test_reading_mode_releases_lines(visit: Callable[..., Any], server: Running) -> None:
    """Up to a comma or a stop, to the end of the sentence, or twelve words."""
    page = connected(visit())
    page.check("#reading")
    page.evaluate(RELEASES)
    play(page, "ba be bi bo bu. da de di do du ba be bi bo bu da de di")
    words = local_words(server, "ba be bi bo bu. da de di do du ba be bi bo bu da de di")
    shows(page, words, "#panes .words")
    releases = page.evaluate("releases")
    before = 0
    for count, last, _ in releases[:-1]:
        assert count - before >= 12 or last[-1] in ".!?…,;:" or sentence_ends(page, count)
        before = count


def sentence_ends(page: Any, count: int) -> bool:
    """Whether the word with this number is the last of its sentence."""
    return page.evaluate(
        """n => { const word = document.querySelectorAll("#panes .w")[n - 1];
        return word === [...word.parentNode.querySelectorAll(".w")].at(-1); }""",
        count,
    )


STREAM = """async (late) => {
  const { LiveStream } = await import("/page/stream.js");
  const heard = [], idle = { type: "ended", reason: "idle" };
  const pause = (ms) => new Promise((go) => setTimeout(go, ms));
  made.length = 0;
  const stream = new LiveStream({}, { words: ({ text }) => heard.push(text) });
  const first = stream.socket;
  if (late === "before the answer to the start") {
    first.addEventListener("open", () => { stream.text("ba "); stream.text("be bi. "); });
  } else {
    stream.text("ba ");
    while (stream.done < 1) await pause(5);
    if (late === "while the server closes") {
      stream.transmit = () => {};  // nobody reads it
      stream.text("be bi. ");
      delete stream.transmit;
      stream.receive(idle);
    } else {
      stream.receive(idle);
      stream.text("be ");
      stream.socket.addEventListener("open", () => stream.text("bi. "));
    }
    first.close();
  }
  while (stream.done < (late === "before the socket is closed" ? 3 : 2)) await pause(5);
  await pause(500);  // a socket that seems to be lost would be replaced
  stream.close();
  return [heard.join(""), made.length];
}"""
COUNTED = """
window.made = [];
window.WebSocket = class extends WebSocket {
  constructor(...given) { super(...given); made.push(this); }
};
"""


@pytest.mark.parametrize(
    ("late", "connections"),
    [
        ("before the answer to the start", 1), ("while the server closes", 2),
        ("before the socket is closed", 2),
    ],
)  # fmt: skip
def test_text_is_never_left_behind(
    visit: Callable[..., Any], server: Running, late: str, connections: int
) -> None:
    """Text that is sent while a stream begins or an idle one is closed, and no text after it."""
    page = connected(visit(script=COUNTED))
    text, made = page.evaluate(STREAM, late)
    assert text.split() == local_words(server, "ba be bi. ") and made == connections


ROOM = """async () => {
  const { LiveStream } = await import("/page/stream.js");
  const heard = [], errors = [], pause = (ms) => new Promise((go) => setTimeout(go, ms));
  const on = { words: ({ text }) => heard.push(text), error: ({ code }) => errors.push(code) };
  const own = new LiveStream({ room: "hall" }, on);
  own.text("ba be ");
  while (own.done < 1) await pause(5);
  own.socket.close();  // as if it was cut
  const stranger = new LiveStream({ room: "hall" }, on);
  while (!stranger.over) await pause(5);
  own.text("bi. ");
  while (own.done < 2) await pause(5);
  const again = new LiveStream({ room: "hall", secret: own.options.secret }, on);
  while (!own.over) await pause(5);
  again.close();
  return [heard.join(""), errors, again.open];
}"""


def test_a_room_belongs_to_its_speaker(visit: Callable[..., Any], server: Running) -> None:
    """Who speaks on after a cut, whom no stranger replaces, and who may move to another window."""
    text, *others = connected(visit()).evaluate(ROOM)
    assert text.split() == local_words(server, "ba be bi. ")
    assert others == [["room", "room"], True]


def test_a_killed_server_changes_nothing(browser: Any) -> None:
    """The page goes on by itself once a server is there again; so do 20 lines of JavaScript."""
    docs = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
    script = re.findall(r"^```js\n(.*?)^```$", docs.read_text("utf-8"), re.M | re.S)[0]
    with running(toys()) as first:
        expected = " ".join(local_words(first))
        page = browser.new_page(bypass_csp=True)
        page.set_default_timeout(SLOW)
        page.goto(f"{first.url}/lab")
        connected(page)
        page.evaluate(
            "([code, url]) => { window.heard = []; "
            "window.say = Function(code + '; return translate')()(url, (w) => heard.push(w)); }",
            [script, first.url.replace("http", "ws")],
        )
        page.evaluate("say('ba be bi bo ')")
        page.locator("#text").press_sequentially("ba be bi bo ")
        page.wait_for_function("document.querySelectorAll('#source .w').length === 4")
        port = first.port
    page.wait_for_function("document.getElementById('state').textContent.includes('lost')")
    with running(toys(), port):
        connected(page)
        page.locator("#text").press_sequentially("bu. da de di do du. ")
        page.evaluate("say('bu. da de di do du. ')")
        page.wait_for_function("document.querySelectorAll('#source .w').length === 10")
        shows(page, expected.split(), "#panes .words")
        page.wait_for_function("text => heard.join('').trim() === text", arg=expected)
    page.close()
