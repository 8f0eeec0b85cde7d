"""Who may watch a room: tickets, PINs, and how pages send them."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Mapping

from waitinfo.serving.guards import Refusal, subprotocols
from waitinfo.serving.http import owner

WRONG = 5  # PINs that an address may try in a row
PATIENCE = 30.0  # seconds after which it may try again
ADDRESSES = 4_096  # whose wrong PINs are remembered
LOCKED = "this room has a PIN; ask the speaker for it"


class Tickets:
    """Signed leave to watch a room. Every server with the same secret takes them."""

    def __init__(self, secret: bytes, seconds: float) -> None:
        self._secret, self._seconds = secret, seconds

    def issue(self, room: str) -> str:
        expires = f"{int(time.time() + self._seconds):x}"
        return f"{expires}.{self._signature(room, expires)}"

    def check(self, room: str, ticket: str) -> None:
        """Raise unless the ticket is for this room, and not too old."""
        expires, _, signature = ticket.partition(".")
        expected = self._signature(room, expires)
        if not hmac.compare_digest(signature.encode(), expected.encode()):
            raise Refusal(401, "ticket", "this ticket is not for this room")
        if int(expires, 16) < time.time():
            raise Refusal(401, "ticket", "this ticket has expired; ask the speaker for a new link")

    def _signature(self, room: str, expires: str) -> str:
        text = f"watch\n{room}\n{expires}".encode()
        found = hmac.digest(self._secret, text, "sha256")[:16]
        return base64.urlsafe_b64encode(found).decode().rstrip("=")


def find_ticket(headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
    """The ticket of a request: ?ticket=, or a subprotocol, as pages send it."""
    return _offered(headers, "waitinfo-ticket.") or query.get("ticket")


def find_pin(headers: Mapping[str, str]) -> str | None:
    return _offered(headers, "waitinfo-pin.")


def given_pin(headers: Mapping[str, str], room: str) -> bytes | None:
    """The digest of the PIN of a request."""
    pin = find_pin(headers)
    return None if pin is None else pin_digest(room, pin)


def _offered(headers: Mapping[str, str], prefix: str) -> str | None:
    for name in subprotocols(headers):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return None


class Pins:
    """Counts wrong PINs: an address may try a few, and then waits."""

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, str], list[float]] = {}

    def check(self, room: str, expected: bytes | None, given: str | None, address: str) -> None:
        """Raise unless this is the room's PIN, or it has none. `expected` is its digest."""
        if expected is None:
            return
        if given is None:
            raise Refusal(401, "pin", LOCKED)
        who, now = (room, owner(address)), time.monotonic()
        tries = [at for at in self._wrong.get(who, ()) if now - at < PATIENCE]
        if len(tries) >= WRONG:
            wait = PATIENCE - (now - tries[0])
            raise Refusal(429, "pin", "too many wrong PINs; try again in half a minute", wait)
        if hmac.compare_digest(expected, pin_digest(room, given)):
            return
        if len(self._wrong) >= ADDRESSES:
            self._wrong.pop(next(iter(self._wrong)))
        self._wrong[who] = [*tries, now]
        raise Refusal(401, "pin", "this is not the PIN of the room")


def pin_digest(room: str, pin: str) -> bytes:
    return hmac.digest(room.encode(), pin.encode("utf-8", "surrogatepass"), "sha256")
