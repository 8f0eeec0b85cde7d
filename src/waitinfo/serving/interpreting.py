"""Rooms in further languages: one more stream for each language that somebody follows.

What is said in a room goes to these streams as it goes to the speaker's own. They are opened when
the first watcher asks for the language, and closed when nobody has for a while.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from waitinfo.errors import WaitinfoError
from waitinfo.serving.connection import Live
from waitinfo.serving.guards import Caller, Refusal
from waitinfo.serving.logs import failed, log
from waitinfo.serving.protocol import Words
from waitinfo.serving.rooms import Claim

if TYPE_CHECKING:
    from waitinfo.serving.hub import Hub

WANTED = 60.0  # seconds for which a language is kept that a watcher has asked for
MOST, TEXT = 10_000, 100_000  # pieces and characters that an interpreter may be behind
LOOK = 5.0  # seconds

Piece = tuple[int, str | None]  # text and where it ends; None: the sentence ends


class Pieces:
    """What was said, in order."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._queue: deque[Piece] = deque()
        self._size = 0  # characters
        for piece in pieces:
            self.append(piece)

    def __bool__(self) -> bool:
        return bool(self._queue)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._queue)

    @property
    def too_many(self) -> bool:
        return len(self._queue) > MOST or self._size > TEXT

    def append(self, piece: Piece) -> None:
        self._queue.append(piece)
        self._size += len(piece[1] or "")

    def take(self, rest: str = "") -> Piece:
        """The first one, of which a rest may stay."""
        end, text = self._queue.popleft()
        self._size -= len(text or "") - len(rest)
        if rest:
            self._queue.appendleft((end, rest))
        return end, text


class Interpreter:
    """The stream of one language."""

    def __init__(self, task: asyncio.Task[None], pieces: Pieces) -> None:
        self.task, self.pieces = task, pieces
        self.until = 0.0  # when nobody wants it any more
        self.over = False  # nothing more will be said
        self.news = asyncio.Event()

    def stop(self, reason: str) -> None:
        """Another server interprets now."""
        self.task.cancel()


class Interpreters:
    """Those of one room."""

    def __init__(self, hub: Hub, claim: Claim, caller: Caller) -> None:
        self._hub, self._claim, self._caller = hub, claim, caller
        self._said = Pieces()  # since the present sentence began
        self._end, self._flushed = 0, -1
        self._open: dict[str, Interpreter] = {}
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, hub: Hub, claim: Claim, caller: Caller) -> Interpreters:
        """Those of a room whose speaker has come, or has come back."""
        found = hub.interpreters.get(claim.name)
        if found is not None and claim.again and found._claim.digest == claim.digest:
            found._claim, found._caller = claim, caller
        else:
            if found is not None:
                found.close()
            found = hub.interpreters[claim.name] = cls(hub, claim, caller)
        if found._timer is not None:
            found._timer.cancel()
        for language in claim.languages:
            if hub.rooms.watched(f"{claim.name}/{language}"):
                found.want(language)
        return found

    def leave(self, kept: float) -> None:
        """The speaker has gone, and may come back for some seconds."""
        if kept > 0:
            self._timer = asyncio.get_running_loop().call_later(kept, self.close)
            return
        self._forget()
        for each in self._open.values():
            each.over = True
            each.news.set()

    def close(self) -> None:
        """The speaker does not come back."""
        self._forget()
        for each in list(self._open.values()):
            each.task.cancel()

    def _forget(self) -> None:
        if self._hub.interpreters.get(self._claim.name) is self:
            del self._hub.interpreters[self._claim.name]

    # What is said

    def hear(self, position: int, text: str) -> None:
        """Text of the speaker, from a position on; what is repeated after a break is known."""
        new = text[max(0, self._end - position) :]
        self._end = max(self._end, position + len(text))
        if new:
            self._put((self._end, new))

    def flush(self) -> None:
        if self._flushed < self._end:
            self._flushed = self._end
            self._put((self._end, None))

    def done(self, position: int) -> None:
        """The speaker's own sentence begins there."""
        while self._said:
            end, text = next(iter(self._said))
            left = "" if text is None else text[max(0, len(text) - max(0, end - position)) :]
            if left.strip():
                self._said.take(rest=left)
                return
            if end > position and text is None:
                return
            position = max(position, end)
            self._said.take()

    def _put(self, piece: Piece) -> None:
        self._said.append(piece)
        while self._said.too_many:
            self._said.take()
        for each in self._open.values():
            each.pieces.append(piece)
            if each.pieces.too_many:  # it cannot keep up
                each.task.cancel()
            each.news.set()

    # Who listens

    def want(self, language: str) -> None:
        """Somebody watches in a language."""
        if language not in self._claim.languages or language == self._claim.target:
            return
        if language not in self._open:
            task = asyncio.ensure_future(self._run(language))
            self._open[language] = Interpreter(task, Pieces(self._said))
        self._open[language].until = asyncio.get_running_loop().time() + WANTED

    async def _run(self, language: str) -> None:
        await asyncio.sleep(0)  # until it is known
        room = f"{self._claim.name}/{language}"
        try:
            await self._interpret(language, room)
        except (Refusal, WaitinfoError) as error:
            log("no interpreter", reason=str(error))
            self._hub.rooms.tell(room, f"There is no free stream for this language: {error}.")
            await asyncio.sleep(WANTED)
        except Exception as error:
            failed("an interpreter failed", error)
        finally:
            del self._open[language]

    async def _interpret(self, language: str, room: str) -> None:
        hub, mine = self._hub, self._open[language]
        served = hub.models.between(self._claim.source or "auto", language)
        if served is None:
            raise WaitinfoError(f"no model translates into {language}")
        hub.check_free(served)
        async with self._caller.streaming(1, hub.settings.retry):
            live = Live.open(hub, served, Caller())
            claim = replace(self._claim, name=room, speaker=mine, target=language, again=False)
            try:
                seat = await hub.rooms.speak(claim)
                feeding = asyncio.ensure_future(_feed(mine, live))
                try:
                    async for found in live.updates():
                        if isinstance(found, Words) and found.words:
                            await seat.say([word.model_dump() for word in found.words])
                finally:
                    feeding.cancel()
                    seat.leave(0.0)
            finally:
                live.close()


async def _feed(mine: Interpreter, live: Live) -> None:
    """Hand on what is said, as long as somebody listens."""
    loop = asyncio.get_running_loop()
    while mine.pieces or (loop.time() < mine.until and not mine.over):
        while mine.pieces:
            _, text = mine.pieces.take()
            await (live.flush() if text is None else live.text(text))
            await live.room()
        mine.news.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(mine.news.wait(), LOOK)
    await live.end()
