"""WebSocket /v1/watch: the words of a room, for captions and everybody who listens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from fastapi import APIRouter, Request, WebSocket

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal
from waitinfo.serving.hub import Hub
from waitinfo.serving.protocol import Malformed
from waitinfo.serving.room import Caption, Watcher
from waitinfo.serving.rooms import check_name
from waitinfo.serving.tickets import given_pin
from waitinfo.serving.wire import Gone, Stalled, Wire, choose, deny
from waitinfo.text.languages import CODE

router = APIRouter()
PING, PING_SECONDS = b"\x89\x00", 25.0


@router.websocket("/v1/watch")
async def watch(socket: WebSocket) -> None:
    hub: Hub = socket.app.state.hub
    name = socket.query_params.get("room", "")
    try:
        check_name(name)
        await hub.admit_watcher(socket, name)
        watching = Watching(socket, hub)
        watching.name, watching.language = name, find_language(socket)
        watching.watcher = await hub.rooms.watch(
            watching.place,
            watching.write,
            socket.query_params.get("after"),
            given_pin(socket.headers, name),
        )
    except Refusal as refusal:
        hub.refuse(refusal)
        await deny(socket, refusal)
    except WaitinfoError as error:
        await deny(socket, Refusal(400, "room", str(error)))
    else:
        await watching.run()


@router.get("/v1/access", status_code=204)
async def access(request: Request) -> None:
    """Whether a request might speak, or watch a `room`.

    For pages: they cannot see why a WebSocket is refused.
    Keys, tickets and PINs are sent as with a WebSocket, in the header `Waitinfo-Protocols`.
    """
    hub: Hub = request.app.state.hub
    if (room := request.query_params.get("room")) is None:
        hub.admit(request)
        hub.check_space()
    else:
        check_name(room)
        await hub.admit_watcher(request, room)


def find_language(socket: WebSocket) -> str | None:
    """The language that a room is followed in."""
    found = socket.query_params.get("language")
    if found is not None and not CODE.fullmatch(found):
        raise WaitinfoError("language: give a code such as fr")
    return found


class Watching:
    """A connection of one who watches."""

    watcher: Watcher
    name: str  # of the room
    language: str | None  # if it is not the room's own

    def __init__(self, socket: WebSocket, hub: Hub) -> None:
        self.hub, self._socket = hub, socket
        self.wire = Wire(socket, hub.settings.stall, hub.settings.message_size)
        self._accepted = False

    def write(self, caption: Caption) -> bool:
        return self._accepted and self.wire.write(caption.frame)

    @property
    def place(self) -> str:
        return self.name if self.language is None else f"{self.name}/{self.language}"

    async def run(self) -> None:
        try:
            await self._socket.accept(choose(self._socket, "waitinfo"))
            self._accepted = True
            tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]
            try:
                await self._until_one_ends(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await self.wire.close(1012 if self.hub.draining else 1008)
        finally:
            self.hub.rooms.unwatch(self.watcher)

    async def _until_one_ends(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """A ping that is not acknowledged shows that the watcher has gone; proxies see life."""
        done: set[asyncio.Task[None]] = set()
        while not done:
            if self.language is not None:
                await self.hub.rooms.want(self.name, self.language)
            done, _ = await asyncio.wait(
                tasks, timeout=PING_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            self.wire.write(PING)

    async def _send(self) -> None:
        with suppress(Gone, Stalled):
            async for caption in self.watcher.captions():
                await self.wire.send(caption.text)

    async def _listen(self) -> None:
        """Notice that the watcher leaves; what it says does not matter."""
        with suppress(Gone):
            while True:
                with suppress(Malformed):
                    await self.wire.receive()
