"""Messages of /v1/stream, version 1. JSON, one message per WebSocket frame.

Unknown fields are ignored. Optional fields may be left out or null.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
)

from waitinfo.errors import WaitinfoError

VERSION = 1


class Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


# From the client

# A limit of length also refuses halves of characters, which could not be sent back.
Name = Annotated[str, Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Mark = Annotated[int, Field(ge=-(1 << 53), le=1 << 53)]


class Begin(Message):
    """Where a sentence, or a window that has moved on, begins. Nothing here is for clients."""

    position: Count = Field(description="Where in the source; the text from there follows.")
    sentence: Count = Field(0, description="Number of the sentence or window.")
    begun: Count = Field(0, description="Source tokens read when the window began.")
    kept: Count = Field(0, description="Tokens of the path written by then.")
    shown: Count = Field(0, description="Words shown among them.")
    punctuated: bool | None = Field(None, description="Whether the text has sentence ends.")
    inside: bool = Field(False, description="The text begins inside a word without spaces.")
    after: str = Field(" ", max_length=8, description="The last character shown by then.")


class Resume(Begin):
    """Where an interrupted stream continues: the newest `replay` and all of its path."""

    # Without FailFast, thousands of wrong items are described one by one.
    path: Annotated[list[tuple[Count, Count]], FailFast()] = Field(
        [], description="Tokens accepted since then, each with the source tokens read before it."
    )
    read: Count = Field(0, description="Source tokens of the sentence that were reported.")
    dial: tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat] | None = Field(
        None, description="The state of a stream that holds its lag."
    )
    memory: list[FiniteFloat] = Field(
        [], max_length=64, description="What the policy remembered as the window began."
    )
    seconds: FiniteFloat = Field(0.0, ge=0, le=1e9, description="Age of the stream.")
    vocabulary: Name | None = Field(None, description="The `vocabulary` of `started`.")


class AudioPlace(Message):
    """Where audio has to be sent again from, after a break."""

    sample: Count = Field(0, description="At the client's rate, counted from 0.")
    words: Annotated[list[Annotated[str, Field(max_length=100)]], FailFast()] = Field(
        [], max_length=400, description="Words from there on that have been reported."
    )


class AudioStart(Message):
    """Binary frames follow: 16-bit little-endian PCM of one channel."""

    rate: int = Field(16_000, ge=8_000, le=48_000, multiple_of=25, description="Samples a second.")
    language: str | None = Field(
        None, max_length=35, description="Of the speaker; the model's source language if left out."
    )
    resume: AudioPlace | None = Field(None, description="The newest `replay` of `heard`.")


class Start(Message):
    """Open the stream. The first message."""

    type: Literal["start"]
    version: Count = Field(VERSION, description="Version of this protocol.")
    model: Name | None = Field(None, description="Name of a model; the first one if left out.")
    system: Name | None = Field(None, description="Decode by another system that the server has.")
    k: FiniteFloat | None = Field(None, description="The latency dial.")
    lag: FiniteFloat | None = Field(None, description="Hold this lag (words) instead of a dial.")
    segmenter: Name | None = Field(None, description="How sentences are found.")
    trace: bool = Field(False, description="Also report every READ and WRITE.")
    room: str | None = Field(None, max_length=64, description="Let others watch under this name.")
    secret: str | None = Field(
        None, min_length=16, max_length=128, description="Who shows it again may speak there again."
    )
    pin: str | None = Field(
        None, pattern=r"^\d{4,12}$", description="Digits that watchers of the room have to give."
    )
    audio: AudioStart | None = Field(None, description="Take a voice instead of text.")
    resume: Resume | None = None


class Text(Message):
    """Source text, in any pieces. A word is complete when a space or the end follows."""

    type: Literal["text"]
    text: str
    id: Mark | None = Field(None, description="Answered by `idle` once the text is worked off.")
    at: FiniteFloat | None = Field(
        None, description="When it was spoken, in seconds by any clock; pauses are measured by it."
    )


class Set(Message):
    """Turn the dial. Counts from the next decision on."""

    type: Literal["set"]
    k: FiniteFloat | None = None
    lag: FiniteFloat | None = None


class Flush(Message):
    """End the present sentence, whatever its text, and write the rest of its translation."""

    type: Literal["flush"]
    id: Mark | None = None


class End(Message):
    """No more text will come."""

    type: Literal["end"]


class StatsRequest(Message):
    """Ask for `stats`."""

    type: Literal["stats"]


Incoming = Annotated[Start | Text | Set | Flush | End | StatsRequest, Field(discriminator="type")]

# From the server


class Started(Message):
    """The stream is open."""

    type: Literal["started"] = "started"
    version: int = VERSION
    model: str
    system: str
    source: str | None = Field(description="Language code.")
    target: str | None
    k: float | None
    vocabulary: str = Field(description="Fingerprint; a resumed stream needs the same.")
    session: str | None = Field(None, description="How the server's logs call this connection.")
    secret: str | None = Field(None, description="That of the room; keep it.")
    ticket: str | None = Field(None, description="With it, others may watch the room, and no more.")


class WrittenWord(Message):
    """A word of the translation. Never taken back."""

    word: str
    text: str = Field(description="The same, with a space before it if one is due.")
    sentence: int = Field(description="Counted from 0; where there are no sentences, windows.")
    info: float | None = Field(description="Its info, or null in a model without info.")
    read: int = Field(description="Source words of the sentence read when it was written.")
    position: int = Field(description="Source characters (code points) read by then.")
    lag: int = Field(description="Source words read minus words written before, in the sentence.")
    source_info: float = Field(description="Info read when its first token was written.")
    target_info: float = Field(description="Info written before it.")
    time: float = Field(description="Seconds since the stream was opened.")


class ResumePoint(Begin):
    """Keep it to resume: the path continues the former ones unless `sentence` has changed.

    Source text before `position` is done with.
    """

    path: list[tuple[int, int]]
    read: int
    dial: tuple[float, float, float, float, float] | None
    memory: list[float] = []


class Words(Message):
    """What has happened: new words, and every READ and WRITE if a trace was asked for."""

    type: Literal["words"] = "words"
    text: str = Field(description="What the new words add to the text, spaces included.")
    words: list[WrittenWord]
    position: int = Field(description="Source characters read so far.")
    time: float
    trace: list[dict[str, Any]] | None = Field(None, description="READ and WRITE events.")
    replay: ResumePoint


class SpokenWord(Message):
    """A recognised word, and when it was spoken, in seconds of the audio."""

    text: str
    start: float
    end: float


class HeardWords(Message):
    """What was recognised in the audio, and where the translation's source text goes on."""

    type: Literal["heard"] = "heard"
    words: list[SpokenWord] = Field(description="After those before; never taken back.")
    text: str = Field(description="What they add to the source text, spaces included.")
    open: list[SpokenWord] = Field(description="What seems to follow. Replaces those before.")
    position: float = Field(description="Seconds of audio taken into account.")
    pause: bool = Field(description="The sentence ends here.")
    id: int | None = Field(None, description="Of the flush that ends it.")
    replay: AudioPlace


class Idle(Message):
    """Everything up to the text with this id is worked off."""

    type: Literal["idle"] = "idle"
    id: int


class Stats(Message):
    """Totals of the stream. Sent on request and before `ended`."""

    type: Literal["stats"] = "stats"
    seconds: float
    words_in: int
    words_out: int
    sentences: int
    mean_lag: float | None = Field(description="Mean lag of the words written, in source words.")
    k: float | None


class Error(Message):
    """Something was refused. Unless `fatal`, the stream lives on."""

    type: Literal["error"] = "error"
    code: str
    message: str
    fatal: bool = False
    retry_after: float | None = Field(None, description="Seconds after which to try again.")


class Closing(Message):
    """The server stops; the stream ends in `seconds`."""

    type: Literal["closing"] = "closing"
    seconds: float


class Ended(Message):
    """The last message."""

    type: Literal["ended"] = "ended"
    reason: str = Field(description="end, idle, closing, full, replaced, refused or error.")


Outgoing = Started | Words | HeardWords | Idle | Stats | Error | Closing | Ended


class Malformed(WaitinfoError):
    """A message that cannot be understood."""

    code: ClassVar[str] = "malformed"


_incoming: TypeAdapter[Any] = TypeAdapter(Incoming)


def _refuse(name: str) -> Any:
    raise Malformed(f"{name} is not a JSON number")


_decoder = json.JSONDecoder(parse_constant=_refuse)  # made once: it costs more than a message


def parse_json(text: str) -> Any:
    """JSON without NaN and infinities."""
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError):
        raise Malformed("the message is not valid JSON") from None


def parse(text: str) -> Start | Text | Set | Flush | End | StatsRequest:
    """A message of a client."""
    try:
        return _incoming.validate_python(parse_json(text))
    except ValidationError as error:
        raise Malformed(explain(error)) from None


def explain(error: ValidationError) -> str:
    """The first problem in one line; never repeats what the client sent, except for names."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return "type: must be one of start, text, set, flush, end, stats"
    return f"{place}: {first['msg']}" if place else first["msg"]


def schema() -> dict[str, Any]:
    """JSON Schema of both directions."""
    both = {
        "client": TypeAdapter(Incoming).json_schema(ref_template="#/$defs/{model}"),
        "server": TypeAdapter(Outgoing).json_schema(ref_template="#/$defs/{model}"),
    }
    definitions: dict[str, Any] = {}
    for side in both.values():
        definitions |= side.pop("$defs", {})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"waitinfo /v1/stream, version {VERSION}",
        "client": both["client"],
        "server": both["server"],
        "$defs": definitions,
    }
