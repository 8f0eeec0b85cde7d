"""The speaker's page, the audience's, and the overlay, in a real browser."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import (
    TEXT,
    browser,
    connected,
    local_words,
    needs_chromium,
    open_room,
    problems,
    server,
    shows,
    speaker_and_listener,
    visit,
)
from tests.listening import WORDS, save, speech
from tests.serving import SLOW, Running, running, toy_served, wait_for
from waitinfo.listening import captions
from waitinfo.serving.guards import KeyLimits, Keys
from waitinfo.serving.hearing import Hearing
from waitinfo.serving.hub import Hub
from waitinfo.serving.metrics import Metrics
from waitinfo.serving.models import Models

__all__ = ["browser", "problems", "server", "visit"]
pytestmark = needs_chromium
PAGES = {"/": "#target", "/r/stage": "#words", "/lab": "#panes .words", "/overlay": "#captions"}


def speak(page: Any, text: str = TEXT) -> None:
    """Paste a text and play it to the end, faster than people may."""
    page.evaluate(
        """text => { const box = document.getElementById("text"); box.value = text;
        document.getElementById("speed").add(new Option(100, 100));
        box.dispatchEvent(new InputEvent("input", { inputType: "insertFromPaste" })); }""",
        text,
    )
    page.select_option("#speed", "100")
    page.click("#play")
    page.wait_for_function("document.getElementById('play').textContent === 'Play'")


def state(page: Any, text: str, place: str = "state") -> None:
    page.wait_for_function(
        "([id, text]) => document.getElementById(id).textContent.includes(text)", arg=[place, text]
    )


def test_what_the_pages_may_do(browser: Any, server: Running, problems: list[str]) -> None:
    """Nothing that their Content-Security-Policy forbids, and nothing from elsewhere."""
    requests: list[str] = []
    for path, ready in PAGES.items():
        page = browser.new_page()
        page.on("console", lambda m: m.type == "error" and problems.append(m.text))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(server.url + path)
        page.locator(ready).wait_for(state="attached", timeout=SLOW)
        page.close()
    assert not problems
    assert all(url.startswith((server.url, "data:")) for url in requests)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_small_dark_and_accessible(visit: Callable[..., Any], path: str, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    small = {"viewport": {"width": 320, "height": 640}, "color_scheme": scheme}
    page = visit(path, **small)
    if path == "/":
        open_room(connected(page), f"axe-{scheme}")
        page.locator("#text").press_sequentially("ba be bi. ")
        page.wait_for_function("document.querySelector('#source').innerText.includes('bi')")
    elif path != "/lab":
        state(page, "Nobody", "state" if path == "/r/stage" else "captions")
    assert page.evaluate("document.documentElement.scrollWidth <= 320")
    found = axe.Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_from_one_who_speaks_to_those_who_listen(
    visit: Callable[..., Any], server: Running
) -> None:
    """A room that is opened while somebody speaks begins there, and the speaker loses nothing."""
    page = connected(visit("/"))
    listener, overlay = visit("/r/hall"), visit("/overlay?room=hall")
    state(listener, "Nobody is speaking yet")
    state(overlay, "Nobody speaks in the room", "captions")
    speak(page, "ba be bi. ")
    words = local_words(server, "ba be bi. ")
    shows(page, words, "#target")
    open_room(page, "hall")
    state(listener, "as they are spoken")
    speak(page, "da de di. ")
    both = local_words(server, "ba be bi. da de di. ")
    shows(page, both, "#target")
    shows(listener, both[len(words) :], "#words")
    shows(overlay, both[len(words) :], "#captions")
    transparent = overlay.evaluate("getComputedStyle(document.body).backgroundColor")
    assert transparent == "rgba(0, 0, 0, 0)"
    page.click("#clear")
    connected(page)
    speak(page, "bo bu. ")
    again = local_words(server, "bo bu. ")
    shows(page, again, "#target")
    shows(listener, both[len(words) :] + again, "#words")
    with listener.expect_download() as download:
        listener.click("#save")
    assert download.value.path().read_text("utf-8").split() == both[len(words) :] + again
    page.close()
    state(visit("/r/hall"), "")


def test_names_and_pins_that_cannot_be(visit: Callable[..., Any]) -> None:
    page = connected(visit("/"))
    for name, pin, why in (
        ("two words", "", "no spaces"),
        ("", "", "no spaces"),
        ("a", "12", "4 to 12"),
    ):
        page.fill("#room", name)
        page.fill("#pin", pin)
        page.click("#open")
        state(page, why, "room-error")
    open_room(page, "taken")
    other = connected(visit("/"))
    other.fill("#room", "taken")
    other.click("#open")
    state(other, "belongs to another speaker", "room-error")
    other.locator("#text").press_sequentially("ba be bi. ")
    other.wait_for_function("document.querySelector('#target').innerText.trim() !== ''")
    state(visit("/r/no%20name"), "not the name of a room")


def test_a_pin(visit: Callable[..., Any], server: Running, problems: list[str]) -> None:
    page = connected(visit("/"))
    open_room(page, "secret", "2468")
    listener = visit("/r/secret")
    listener.fill("#pin", "1111")
    listener.click("#ask button")
    state(listener, "not the PIN")
    listener.fill("#pin", "2468")
    listener.click("#ask button")
    state(listener, "as they are spoken")
    speak(page)
    shows(listener, local_words(server), "#words")
    assert all("401" in problem or "Authentication" in problem for problem in problems)
    problems.clear()


def test_the_code_of_the_audience(visit: Callable[..., Any]) -> None:
    """As a phone's camera sees it."""
    zxing = pytest.importorskip("zxingcpp", reason="needs zxing-cpp")
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    page = connected(visit("/", color_scheme="dark"))
    open_room(page, "hall-7")
    for large in (False, True):
        if large:
            page.click("#enlarge")
        found = zxing.read_barcodes(image.open(io.BytesIO(page.screenshot(full_page=True))))
        assert [each.text for each in found] == [page.locator("#link").get_attribute("href")]
    page.keyboard.press("Escape")
    lengths = [2, 14, 15, 26, 100, 200, 213, 214, 400, 600, 666]
    grids = page.evaluate(
        """async lengths => { const { encode } = await import("/page/qr.js");
        return lengths.map((n) => encode("ö".repeat(n % 2) + "x".repeat(n - 2 * (n % 2)))); }""",
        lengths,
    )
    numpy = pytest.importorskip("numpy")
    for length, grid in zip(lengths, grids, strict=True):
        picture = numpy.kron(
            numpy.pad(255 * (1 - numpy.array(grid, numpy.uint8)), 4, constant_values=255),
            numpy.ones((3, 3), numpy.uint8),
        )
        (found,) = zxing.read_barcodes(picture)
        assert len(found.text.encode()) == length


def test_keys_and_tickets(browser: Any) -> None:
    """The page asks for a key; the link has a ticket instead, and no other right."""
    metrics = Metrics()
    hub = Hub(
        Models([toy_served(metrics, streams=9)]), keys=Keys([KeyLimits("a-secret-key")]),
        metrics=metrics,
    )  # fmt: skip
    with running(hub) as server:
        context = browser.new_context(bypass_csp=True)
        page = context.new_page()
        page.set_default_timeout(SLOW)
        page.goto(server.url)
        state(page, "needs a key")
        page.fill("#key", "a-wrong-key")
        page.click("#unlock button")
        state(page, "a valid key is required")
        page.fill("#key", "a-secret-key")
        page.click("#unlock button")
        connected(page)
        open_room(page, "stage")
        page.reload()  # the browser has the key and the room still
        connected(page)
        assert page.locator("#room").input_value() == "stage"
        page.click("#open")
        page.wait_for_function("document.getElementById('link').href.includes('ticket')")
        link = page.locator("#link").get_attribute("href")
        assert "secret" not in link and link.startswith(f"{server.url}/r/stage#ticket=")
        other = browser.new_context(bypass_csp=True).new_page()
        other.set_default_timeout(SLOW)
        other.goto(f"{server.url}/r/stage")
        state(other, "A key is required")
        other.goto(f"{server.url}/overlay?room=stage")
        state(other, "by the link on the speaker", "captions")
        other.goto(link)
        other.reload()
        speak(page, "ba be bi.")
        shows(other, local_words(server, "ba be bi."), "#words")
        refused = """async () => { const { refusal } = await import("/page/socket.js");
            return (await refusal())?.reason; }"""
        assert other.evaluate(refused) == "key"
        context.close()


def test_the_audience_chooses_its_language(browser: Any) -> None:
    metrics = Metrics()
    models = [toy_served(metrics), toy_served(metrics, name="french", system="full", target="fr")]
    with running(Hub(Models(models), metrics=metrics)) as server:
        context = browser.new_context(bypass_csp=True)
        page, listener, late = (context.new_page() for _ in range(3))
        for each, path in ((page, "/"), (listener, "/r/hall")):
            each.set_default_timeout(SLOW)
            each.goto(server.url + path)
        open_room(connected(page), "hall")
        listener.locator("#language").wait_for()
        names = listener.locator("#language option").all_inner_texts()
        assert names == ["English", "Français"]
        listener.select_option("#language", "fr")
        wait_for(lambda: server.hub.models.find("french").free == 3)
        late.set_default_timeout(SLOW)
        late.goto(listener.url)
        late.wait_for_function("document.getElementById('words').lang === 'fr'")
        speak(page, "ba be bi. ")
        with server.hub.models.find("french").translator.stream(raw=True, history=None) as stream:
            stream.push("ba be bi. ")
            stream.finish()
            for each in (listener, late):
                shows(each, stream.text.split(), "#words")
        listener.select_option("#language", "en")
        shows(listener, local_words(server, "ba be bi. "), "#words")
        context.close()


def test_reading_along(visit: Callable[..., Any], server: Running) -> None:
    """Who has scrolled back is not pulled down; sentences are announced, not words."""
    page = connected(visit("/"))
    open_room(page, "reading")
    listener = visit("/r/reading", viewport={"width": 360, "height": 300})
    state(listener, "as they are spoken")
    listener.evaluate(
        """() => { window.announced = [];
        new MutationObserver(() => announced.push(aloud.textContent))
          .observe(document.getElementById("aloud"), { childList: true }); }"""
    )
    speak(page, TEXT * 20)
    words = local_words(server, TEXT * 20)
    shows(listener, words, "#words")
    place = "() => Math.round(document.getElementById('words').scrollTop)"
    end = listener.evaluate(place)
    assert end > 0 and listener.locator("#jump").is_hidden()
    listener.evaluate("document.getElementById('words').scrollTop = 10")
    listener.locator("#jump").wait_for()
    page.locator("#text").press_sequentially("bo bu. ")
    more = local_words(server, TEXT * 20 + " bo bu. ")
    shows(listener, more, "#words")
    assert listener.evaluate(place) == 10
    listener.click("#jump")
    assert listener.evaluate(place) >= end and listener.locator("#jump").is_hidden()
    announced = " ".join(listener.evaluate("announced")).split()
    assert announced and announced == more[: len(announced)]
    said = [(" Good", 0), (" morning", 0), (" all.", 0), (" Today", 1), (" is", 1), (" Now", 2)]
    aloud = listener.evaluate(
        """async (said) => { const { Transcript } = await import("/page/transcript.js");
        const make = () => document.createElement("div");
        const aloud = make(), text = new Transcript(make(), { aloud });
        return said.map(([text_, sentence]) => {
          text.add([{ text: text_, sentence }]);
          return aloud.textContent;
        }); }""",
        [list(each) for each in said],
    )
    assert aloud == ["", "", *3 * ["Good morning all."], "Today is"]
    large = "() => parseFloat(getComputedStyle(document.getElementById('words')).fontSize)"
    before = listener.evaluate(large)
    listener.click("#larger")
    listener.click("#dark")
    listener.reload()
    assert listener.evaluate(large) > before
    assert listener.locator("html").get_attribute("class") == "dark"


def test_pace_instead_of_k(visit: Callable[..., Any]) -> None:
    script = """window.WebSocket = class extends WebSocket {
      send(text) { (window.sent ??= []).push(JSON.parse(text)); super.send(text); }
    };"""
    page = connected(visit("/", script=script))
    first = page.evaluate("sent.at(-1).k")
    page.locator("#pace").fill("4")
    slower = page.evaluate("sent.at(-1)")
    assert slower["type"] == "set" and slower["k"] > first
    assert page.locator("#pace-name").inner_text() == "slowest and safest"
    assert page.locator("#model option").all_inner_texts() == ["Deutsch → English"]


def test_a_server_without_recogniser_says_so(visit: Callable[..., Any]) -> None:
    page = connected(visit("/"))
    page.click("#microphone", force=True)
    assert "no speech recognition" in page.locator("#hears").inner_text()


def test_lines_that_people_read(visit: Callable[..., Any]) -> None:
    """The browser breaks lines and makes cues exactly as Python does."""
    draw = random.Random(5)
    words = [
        "the",
        "commission,",
        "and",
        "house.",
        "which",
        "presented",
        "a",
        "proposal;",
        "yesterday",
        "because",
        "however-",
        "Wir",
        "die",
    ]
    texts = [" ".join(draw.choice(words) for _ in range(draw.randint(1, 60))) for _ in range(40)]
    texts += ["x" * 100, "今日は皆さん、とても嬉しいです。" * 5, "你好 world " * 9]
    sentences = []
    at = 0.0
    for text in texts:
        start = at + draw.choice([0.0, 0.2, 3.0])
        at = start + draw.choice([0.1, 0.5, 2.0, 9.0])
        sentences.append(captions.Sentence(text, start, at))
    page = visit("/lab")
    found = page.evaluate(
        """async (given) => { const { cues, layout } = await import("/page/lines.js");
        return [given.map(([text]) => layout(text)),
          cues(given.map(([text, start, end]) => ({ text, start, end })))]; }""",
        [list(sentence) for sentence in sentences],
    )
    assert found[0] == [[list(lines) for lines in captions.layout(text)] for text in texts]
    expected = [
        (list(c.lines), round(c.start, 6), round(c.end, 6)) for c in captions.cues(sentences)
    ]
    assert [(c["lines"], round(c["start"], 6), round(c["end"], 6)) for c in found[1]] == expected


def test_lines_of_the_overlay(visit: Callable[..., Any]) -> None:
    """No line is wider than 42 letters or than the window; what is shown never moves."""
    overlay = visit("/overlay?room=lines", viewport={"width": 800, "height": 450})
    grown = overlay.evaluate(
        """async () => { const { Lines, width } = await import("/page/lines.js");
        const text = ("Ladies and gentlemen, I am very pleased to be with you today, "
          + "because the Commission presented a new proposal for all who live here. ").repeat(5);
        const lines = new Lines(), steps = [];
        for (const word of text.trim().split(" ")) {
          lines.add({ text: ` ${word}`, sentence: 0 });
          steps.push([...lines.lines]);
        }
        return [steps, Math.max(...lines.lines.map(width)), text.trim()]; }"""
    )
    steps, widest, text = grown
    assert widest <= captions.WIDTH
    assert " ".join(steps[-1]) == text
    for before, after in pairwise(steps):
        assert after[: len(before) - 1] == before[:-1] and after[len(before) - 1].startswith(
            before[-1]
        )
    ends = [line.split()[-1][-1] in ",." for line in steps[-1][:-1]]
    assert sum(ends) >= len(ends) / 3
    page = connected(visit("/"))
    open_room(page, "lines")
    state_of = """() => [...document.querySelectorAll('#captions span')]
        .map((each) => each.getBoundingClientRect())"""
    speak(page, " ".join(["babebibobu"] * 30))
    overlay.wait_for_function("document.querySelectorAll('#captions p').length === 2")
    for box in overlay.evaluate(state_of):
        assert box["left"] >= 0 and box["right"] <= 800


def test_from_a_microphone_to_the_audience(
    browser: Any, tmp_path: Path, problems: list[str]
) -> None:
    """Tones that stand for words, as a browser's microphone hears them, on another's page."""
    recording = save(tmp_path / "tones.wav", speech([2.0, *WORDS[:6], 1.5, *WORDS[6:11], 60.0])[0])
    metrics = Metrics()
    hub = Hub(
        Models([toy_served(metrics, system="wait-info")]), metrics=metrics,
        hearing=Hearing(metrics, "tests.listening:tones", 1),
    )  # fmt: skip
    with (
        running(hub) as server,
        speaker_and_listener(browser, server, recording, problems) as (page, listener),
    ):
        page.click("#microphone")
        page.wait_for_function("document.getElementById('level').value > 0.5")
        shows(page, WORDS[:11], "#source")
        page.click("#microphone")  # a pause: what was said is translated to its end
        with server.hub.models.find().translator.stream(raw=True, history=None) as stream:
            for words in (WORDS[:6], WORDS[6:11]):
                stream.push("".join(f"{word} " for word in words))
                stream.flush()
            stream.finish()
            shows(listener, stream.text.split(), "#words")
            shows(page, stream.text.split(), "#target")
        page.wait_for_function("document.getElementById('level').value === 0")
        wait_for(lambda: server.hub.hearing.free == 1)  # the voice is given back; text goes on
        page.locator("#text").press_sequentially("guten morgen. ")
        page.wait_for_function("document.querySelector('#source').innerText.includes('morgen.')")
