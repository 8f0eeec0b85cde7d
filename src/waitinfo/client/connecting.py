"""Where a server is, the key to it, and a connection to it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from waitinfo.errors import WaitinfoError

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
REASONS = {
    401: "the server requires a valid key; give one with --key",
    403: "the server refuses this client",
    404: "not a server of waitinfo",
}


class Interrupted(Exception):
    """The connection is gone; another one may work, after `wait` seconds."""

    def __init__(self, why: str, wait: float | None = None) -> None:
        super().__init__(why)
        self.wait = wait


@dataclass(frozen=True)
class Address:
    """The address of a server, and the key to it."""

    url: str
    key: str | None = None

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            wrong = parts.scheme not in SCHEMES or not parts.hostname or (parts.port or 1) < 0
        except ValueError:
            wrong = True
        if wrong:
            raise WaitinfoError(f"{self.url}: not a server; give an address like http://HOST:8000")

    @property
    def shown(self) -> str:
        """For messages: without anything secret."""
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}"

    @property
    def websocket(self) -> str:
        parts = urlsplit(self.url)
        return f"{SCHEMES[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}/v1/stream"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def explain(self, status: int) -> str:
        return f"{self.shown}: {REASONS.get(status, f'refused with status {status}')}"

    async def connect(self) -> ClientConnection:
        """Raises `Interrupted` where it may work later, `WaitinfoError` where it will not."""
        try:
            return await connect(
                self.websocket,
                additional_headers=self.headers,
                max_size=None,
                ping_timeout=60,
                open_timeout=30,
            )
        except InvalidStatus as refused:
            status, headers = refused.response.status_code, refused.response.headers
            if status in (429, 502, 503, 504):
                after = headers.get("Retry-After", "")
                hint = float(after) if after.isdigit() else None
                raise Interrupted(f"the server refuses (status {status})", hint) from None
            raise WaitinfoError(self.explain(status)) from None
        except (OSError, EOFError, InvalidHandshake, TimeoutError, ConnectionClosed) as error:
            raise Interrupted(f"cannot be reached ({error})") from None
