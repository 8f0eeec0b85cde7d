"""WebSocket /v1/watch: the words of a room, for captions and everybody who listens."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter, WebSocket

from waitinfo.errors import WaitinfoError
from waitinfo.serving.guards import Refusal
from waitinfo.serving.hub import Hub
from waitinfo.serving.protocol import Malformed
from waitinfo.serving.rooms import Watcher, check_name
from waitinfo.serving.wire import Gone, Stalled, Wire, deny

router = APIRouter()


@router.websocket("/v1/watch")
async def watch(socket: WebSocket) -> None:
    hub: Hub = socket.app.state.hub
    name = socket.query_params.get("room", "")
    try:
        hub.admit(socket.headers, socket.query_params)
        check_name(name)
        with hub.rooms.watch(name) as watcher:
            await socket.accept()
            await Watching(socket, hub, watcher).run()
    except Refusal as refusal:
        hub.refuse(refusal)
        await deny(socket, refusal)
    except WaitinfoError as error:
        await deny(socket, Refusal(400, "room", str(error)))


class Watching:
    """One who watches."""

    def __init__(self, socket: WebSocket, hub: Hub, watcher: Watcher) -> None:
        self.hub, self.watcher = hub, watcher
        self.wire = Wire(socket, hub.settings.stall, hub.settings.message_size)
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._listen())]
        with self.hub.connection(self):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.wire.close(1012 if self.hub.draining else 1000)

    async def _send(self) -> None:
        with suppress(Gone, Stalled):
            while True:
                await self.wire.send(await self.watcher.get())

    async def _listen(self) -> None:
        """Notice that the watcher leaves; what it says does not matter."""
        with suppress(Gone):
            while True:
                with suppress(Malformed):
                    await self.wire.receive()

    async def announce(self, seconds: float) -> None:
        """Watchers are closed at once, so that they look for another server."""
        self.stop()

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
