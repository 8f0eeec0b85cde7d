"""Limits of a server."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Settings:
    """What clients may do. Times are in seconds, sizes in characters."""

    message_size: int = 65_536  # of one message of a WebSocket
    request_size: int = 1_048_576  # of the body of a request
    audio_size: int = 26_214_400  # bytes of a file of audio
    audio_seconds: float = 3_600.0  # and of what it holds
    backlog: int = 20_000  # text that a stream may be ahead of the model
    pieces: int = 10_000  # texts and marks, of any length, that it may be ahead
    bodies: int = 64  # large ones at a time; of one other machine's address half of them
    texts: int = 256  # texts of one request for a translation
    words: int = 20_000  # words of one request
    word: int = 4_096  # of one word between spaces, anywhere
    path: int = 2_048  # tokens of a resumed sentence
    start: float = 20.0  # a connection that does not start a stream is closed
    head: float = 10.0  # the head of a request has to arrive
    body: float = 60.0  # and its body
    silent: float = 1.0  # a stream without text may be closed when others wait
    idle: float = 900.0  # a stream without text is closed
    stall: float = 20.0  # a client that does not read is closed
    drain: float = 30.0  # a server that stops waits for its streams
    retry: float = 5.0  # what a refused client is told
    connections: int = 1_000  # open WebSockets, with or without a stream
    watchers: int = 5_000  # that may watch rooms
    kept: float = 300.0  # a room waits for its speaker to come back
    ticket: float = 86_400.0  # a link for watchers is valid
    # Signs tickets: replicas of one plan take those of each other.
    secret: bytes = field(
        default_factory=lambda: secrets.token_bytes(32), repr=False, compare=False
    )
    # Of one address, unless it has a key; None: half of all for other machines, any number for
    # this one, 0: any number.
    address_streams: int | None = None
    address_connections: int | None = None
    proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For is believed
    private: bool = False  # figures, models and the API's description need a key, too
    origins: tuple[str, ...] = ()  # foreign pages that may connect; "*" for all
    rooms: str | None = None  # a Redis that keeps rooms and limits of keys for several servers
    local: bool = True  # listens on this machine only
