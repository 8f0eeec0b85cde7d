"""How a translation is shown: words, the path they took, their info, or every event as JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from waitinfo.streaming.event import Event
from waitinfo.text.tokenizer import SPACE

if TYPE_CHECKING:  # rich is imported by the views that need it: others start sooner
    from rich.text import Text

    from waitinfo.listening.listen import SpeechEvent

STOP = "</s>"
BYTES = re.compile(r"(<0x[0-9A-F]{2}>)+")  # how the vocabulary spells letters it has no piece for


class View:
    """Shows words as they arrive, and a line when it has ended."""

    reviews = False  # whether the end of a line shows all of it again

    def words(self, events: Sequence[Event]) -> None:
        """Events of the current line."""

    def end(self, source: str, trace: Sequence[Event]) -> None:
        """The line has ended."""

    def line(self, source: str, trace: Sequence[Event]) -> None:
        """A line that is shown all at once."""
        self.words(trace)
        self.end(source, trace)


class WordsView(View):
    """The translation alone, each word as soon as it is written."""

    def __init__(self) -> None:
        self.begun = False

    def words(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.text:
                sys.stdout.write(event.text if self.begun else event.text.lstrip())
                sys.stdout.flush()
                self.begun = True

    def end(self, source: str, trace: Sequence[Event]) -> None:
        print(flush=True)
        self.begun = False


class PathView(View):
    """A staircase: what was read, and what was then written."""

    reviews = True

    def end(self, source: str, trace: Sequence[Event]) -> None:
        steps = staircase(trace)
        width = max((len(read) for read, _ in steps), default=0)
        print(source.strip())
        for read, written in steps:
            print(f"  READ {read:<{width}}   WRITE {written}")
        print(translation(trace), end="\n\n", flush=True)


class JsonView(View):
    """One event per line."""

    def words(self, events: Sequence[Event]) -> None:
        for event in events:
            print(json.dumps(event.as_dict(), ensure_ascii=False), flush=True)


class InfoView(View):
    """Tokens coloured by their info: red above the average, blue below."""

    reviews = True

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)

    def end(self, source: str, trace: Sequence[Event]) -> None:
        for kind in ("READ", "WRITE"):
            events = [event for event in trace if event.kind == kind and event.token != STOP]
            self.console.print(coloured(events, self.console.is_terminal), soft_wrap=True)
        print(flush=True)


VIEWS: dict[str, type[View]] = {
    "words": WordsView,
    "path": PathView,
    "info": InfoView,
    "json": JsonView,
}


def translation(trace: Sequence[Event]) -> str:
    return "".join(event.text for event in trace).lstrip()


def staircase(trace: Sequence[Event]) -> list[tuple[str, str]]:
    """Pairs of tokens read in a row and tokens written in a row after them."""
    steps: list[list[str]] = []
    last = "WRITE"
    for event in trace:
        if event.kind not in ("READ", "WRITE"):
            continue
        # A stream without sentence ends may write first after its window has moved on.
        if not steps or (event.kind == "READ" and last == "WRITE"):
            steps.append(["", ""])
        steps[-1][event.kind == "WRITE"] += " ⏎" if event.token == STOP else event.token
        last = event.kind
    return [(_plain(read), _plain(written)) for read, written in steps]


def _plain(pieces: str) -> str:
    """Pieces as text; one that goes on a word begins with a hyphen."""
    goes_on = pieces and not pieces.startswith((SPACE, " "))
    text = BYTES.sub(_letters, pieces)
    return ("-" if goes_on else "") + text.replace(SPACE, " ").strip()


def _letters(found: re.Match[str]) -> str:
    """The letters that pieces of single bytes spell."""
    return bytes.fromhex(found.group().replace("<0x", "").replace(">", "")).decode(
        "utf-8", "replace"
    )


def coloured(events: Sequence[Event], colours: bool) -> Text:
    """Tokens in red and blue, or with their info as numbers in a terminal without colour."""
    from rich.text import Text

    infos = [event.info for event in events if event.info is not None]
    average = sum(infos) / len(infos) if infos else 1.0
    text = Text()
    for event in events:
        text.append(event.token.replace(SPACE, " "), style=_shade(event.info, average))
        if event.info is not None and not colours:
            text.append(f"({event.info:.2f})")
    return text


def _shade(info: float | None, average: float) -> str:
    if info is None:
        return ""
    strength = min(1.0, abs(info - average) / max(average, 1e-6) * 2)
    faded = int(210 * (1 - strength))
    return f"rgb(235,{faded},{faded})" if info > average else f"rgb({faded},{faded},235)"


class LiveCaption:
    """The source above, the translation beneath, both growing; plain lines without a terminal."""

    def __init__(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        self.heard, self.said = Text(style="dim"), Text(style="bold")
        self.console = Console(highlight=False)
        self.live = Live(Group(self.heard, self.said), console=self.console, auto_refresh=False)

    def __enter__(self) -> LiveCaption:
        if self.console.is_terminal:
            self.live.start()
        return self

    def hear(self, word: str) -> None:
        self._add(self.heard, f"{word} ")

    def say(self, events: list[Event]) -> list[Event]:
        """Show the words that events made visible; returns the events."""
        for event in events:
            if event.text:
                self._add(self.said, event.text)
        return events

    def _add(self, line: Text, text: str) -> None:
        line.append(text)
        if self.console.is_terminal:
            self.live.refresh()

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()
        else:
            print(self.heard.plain.strip(), self.said.plain.strip(), sep="\n")
        print(flush=True)


class SpeechView:
    """What is said, and its translation."""

    def __enter__(self) -> SpeechView:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing more will come."""

    def event(self, event: SpeechEvent) -> None:
        """Something was heard or written."""

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class SpeechLines(SpeechView):
    """Two lines that grow on a terminal; elsewhere two lines for each sentence that is complete."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self.console = Console(highlight=False)
        self.live = Live(console=self.console, auto_refresh=False)
        self.heard: list[str] = []  # words of sentences that are not complete
        self.open = self.said = ""

    def __enter__(self) -> SpeechView:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.update("", refresh=True)
            self.live.stop()

    def event(self, event: SpeechEvent) -> None:
        if event.kind == "HEARD":
            self.heard.append(event.text)
        elif event.kind == "OPEN":
            self.open = event.text
        elif event.kind == "WRITE":
            self.said = (self.said + event.text).lstrip()
        elif event.kind == "END":
            del self.heard[: len(event.source.split())]
            self.said = ""
            self._print(event.source, event.text)
        if self.console.is_terminal:
            self.live.update(self._growing(), refresh=True)

    def note(self, text: str) -> None:
        if self.console.is_terminal:
            self.console.print(text, style="yellow", markup=False)
        else:
            super().note(text)

    def _print(self, source: str, translation: str) -> None:
        """A sentence, for good."""
        from rich.text import Text

        self.console.print(Text(source, style="dim"), soft_wrap=True)
        self.console.print(Text(translation, style="bold"), soft_wrap=True)
        self.console.print()

    def _growing(self) -> Text:
        """As much of the end of both as has room."""
        from rich.text import Text

        room = 3 * self.console.width - 1
        heard = Text(" ".join(self.heard)[-room:], style="dim")
        if self.open:
            heard.append(f" {self.open}", style="bright_black italic")
        return Text("\n").join([heard, Text(self.said[-room:], style="bold")])


class SpeechJson(SpeechView):
    """An event a line."""

    def event(self, event: SpeechEvent) -> None:
        fields = event._asdict()
        fields["event"] = None if event.event is None else event.event.as_dict()
        print(json.dumps(fields, ensure_ascii=False), flush=True)


SPEECH_VIEWS: dict[str, type[SpeechView]] = {"words": SpeechLines, "json": SpeechJson}
