"""WebSocket /v1/stream: live translation in messages of `protocol`."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import ClassVar

from fastapi import APIRouter, WebSocket

from waitinfo.errors import WaitinfoError
from waitinfo.serving import protocol
from waitinfo.serving.connection import Connection, Live, Stopped
from waitinfo.serving.hearing import Ear
from waitinfo.serving.interpreting import Interpreters
from waitinfo.serving.logs import log
from waitinfo.serving.rooms import Claim, Seat, check_name
from waitinfo.serving.wire import Gone, Stalled

router = APIRouter()


@router.websocket("/v1/stream")
async def stream(socket: WebSocket) -> None:
    await StreamConnection.serve(socket, socket.app.state.hub)


class StreamConnection(Connection):
    subprotocols: ClassVar[tuple[str, ...]] = ("waitinfo",)

    async def session(self) -> str:
        try:
            start, live = await asyncio.wait_for(self._start(), self.hub.settings.start)
        except TimeoutError:
            await self.error("start", "no start message came", None, fatal=True)
            return "idle"
        served, languages = live.served, live.served.languages
        if start.audio is not None:
            await self.open_ear(live, start.audio)
        await self.wire.send(
            protocol.Started(
                model=served.name,
                system=served.system.name,
                source=languages.source,
                target=languages.target,
                k=live.k,
                vocabulary=served.vocabulary,
                session=self.name,
                secret=None if self.seat is None else self.seat.secret,
                ticket=self._ticket(),
            )
        )
        log("started", logging.DEBUG, model=served.name, system=served.system.name)
        listening = () if self.ear is None else (self._hear(live, self.ear),)
        await self.both(live, self._write(live, start.trace), *listening)
        return "end"

    def _ticket(self) -> str | None:
        """What the audience needs, if it needs anything."""
        if self.seat is None or not len(self.hub.keys):
            return None
        return self.hub.tickets.issue(self.seat.name)

    async def _start(self) -> tuple[protocol.Start, Live]:
        """The message that opens the stream, and the stream; bad ones get an error each."""
        while True:
            try:
                message = protocol.parse(await self.wire.receive())
                if not isinstance(message, protocol.Start):
                    raise protocol.Malformed("the first message must be start")
                if message.version != protocol.VERSION:
                    raise protocol.Malformed(
                        f"version {message.version}: this server speaks {protocol.VERSION}"
                    )
                self.live = await self._open(message)
                return message, self.live
            except WaitinfoError as error:
                await self.complain(getattr(error, "code", "refused"), str(error))

    async def _open(self, start: protocol.Start) -> Live:
        if self.hub.draining:
            raise Stopped  # it would not get far, and its watchers have been sent away
        served = self.hub.models.find(start.model, start.system)
        self.hub.check_free(served)
        live = Live.open(
            self.hub, served, self.client, start.k, start.lag, start.segmenter, start.resume
        )
        if start.room is not None:
            try:
                self.seat = await self._take_seat(start.room, start, live)
            except BaseException:
                live.close()
                raise
        return live

    async def _take_seat(self, room: str, start: protocol.Start, live: Live) -> Seat:
        check_name(room)
        languages = live.served.languages
        claim = Claim(
            room,
            self.client,
            self,
            start.secret or secrets.token_urlsafe(16),
            start.pin,
            languages.source,
            languages.target,
            self.hub.models.targets(languages.source),
            start.resume is not None,
        )
        seat = await self.hub.rooms.speak(claim)
        live.listener = Interpreters.of(self.hub, claim, self.client)
        seat.left = live.listener.leave
        return seat

    async def message(self, live: Live, text: str) -> float:
        match protocol.parse(text):
            case protocol.Text(text=words, id=mark, at=at):
                if self.ear is not None and self.ear.begun:
                    raise WaitinfoError("text has to come before the audio of a stream")
                return await live.text(words, mark, at)
            case protocol.Set(k=k, lag=lag):
                live.set(k, lag)
            case protocol.Flush(id=mark):
                await self._flush(live, mark)
            case protocol.End():
                await self.end_input(live)
            case protocol.StatsRequest():
                await self.wire.send(live.stats())
            case protocol.Start():
                raise protocol.Malformed("the stream has been started already")
        return 0.0

    async def _flush(self, live: Live, mark: int | None) -> None:
        if self.ear is not None and self.ear.begun:
            await self.ear.flush(mark)
        else:
            await live.flush(mark)

    async def audio(self, live: Live, data: bytes) -> float:
        if self.ear is None:
            return await super().audio(live, data)
        live.stir()
        return await self.ear.take(data)

    async def _hear(self, live: Live, ear: Ear) -> None:
        async for message in ear.messages(live):
            await self.wire.send(message)

    async def _write(self, live: Live, trace: bool) -> None:
        async for found in live.updates(trace):
            # What the speaker has been sent, the room remembers: so the room comes first.
            if self.seat is not None and isinstance(found, protocol.Words) and found.words:
                await self.seat.say([word.model_dump() for word in found.words])
            if live.listener is not None and isinstance(found, protocol.Words):
                live.listener.done(found.replay.position)
            await self.wire.send(found)

    async def error(self, code: str, message: str, retry: float | None, fatal: bool) -> None:
        await self.wire.send(
            protocol.Error(code=code, message=message, retry_after=retry, fatal=fatal)
        )

    async def farewell(self, reason: str) -> None:
        if reason == "full":
            retry = self.hub.settings.retry
            await self.error("full", self.refused, retry, fatal=True)
        elif self.live is not None:
            await self.wire.send(self.live.stats())
        await self.wire.send(protocol.Ended(reason=reason))

    async def announce(self, seconds: float) -> None:
        with suppress(Gone, Stalled):
            await self.wire.send(protocol.Closing(seconds=seconds))
