"""Where a server is."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from waitinfo.errors import WaitinfoError

SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
REASONS = {
    401: "the server requires a valid key; give one with --key",
    403: "the server refuses this client",
    404: "not a server of waitinfo",
}


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
