"""A long talk: synthetic speech, heard and translated by a server; its memory stays flat.

    python -m tests.long_talk --minutes 30 --recogniser FOLDER [--pace]

NanoTTS (`pip install py-nanotts`) speaks German sentences, with pauses. They are sent as fast as
the server takes them, with --pace as if they were spoken now. Checked are: words are committed in
order, and never taken back; nothing is translated before it was heard; what was written is what a
stream of this process writes for the same words; the memory of the server and its workers. With
--pace, how long a spoken word takes to be recognised and translated: it must not take ever longer.
"""

from __future__ import annotations

import argparse
import bisect
import json
import math
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from websockets.sync.client import ClientConnection, connect

from tests.served import Served
from waitinfo import load
from waitinfo.listening.audio import RATE, Samples

SENTENCES = Path(__file__).resolve().parents[1] / "examples" / "data" / "tatoeba.de-en.tsv"
BLOCK = RATE // 10
PARTS = 10
K = 3.0


def talk(minutes: float, seed: int = 0) -> Iterator[Samples]:
    """Blocks of synthetic speech."""
    from py_nanotts import NanoTTS

    chance = random.Random(seed)
    lines = SENTENCES.read_text("utf-8").splitlines()
    given = 0
    while given < 60 * minutes * RATE:
        # Sentences that are spoken without a break are one stretch for the recogniser.
        text = " ".join(each.split("\t")[0] for each in chance.sample(lines, chance.randint(1, 5)))
        spoken = NanoTTS().speak(text, "de-DE", speed=chance.uniform(0.8, 1.2))
        pause = np.zeros(round(chance.uniform(0.2, 1.6) * RATE), np.float32)
        samples = np.concatenate([np.frombuffer(spoken, "<i2") / np.float32(32768), pause])
        given += len(samples)
        yield from (samples[at : at + BLOCK] for at in range(0, len(samples), BLOCK))


def memory(server: Served) -> dict[str, float]:
    """MiB of the server's processes, and of its recogniser."""
    sizes = {"server": 0.0, "recogniser": 0.0}
    parents, found = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(re.findall(r"^(\w+):\s*(\d+)", status.read_text("utf-8"), re.M))
            command = (status.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        own = int(status.parent.name)
        parents[own] = int(fields["PPid"])
        hears = b"waitinfo.listening.worker" in command
        found[own] = "recogniser" if hears else "server", int(fields.get("VmRSS", 0)) / 1024
    for own, (kind, size) in found.items():
        above = own
        while above not in (0, server.process.pid):
            above = parents.get(above, 0)
        sizes[kind] += size if above else 0.0
    return sizes


def rhythm(server: Served) -> float:
    """Mean seconds between two looks at what is being said, since the server began."""
    with urlopen(f"{server.url}/metrics") as answer:
        text = answer.read().decode()
    name = "waitinfo_recognition_rhythm_seconds"
    found = dict(re.findall(rf"^{name}_(sum|count) (\S+)", text, re.M))
    return float(found["sum"]) / float(found["count"])


class Account:
    """What the server says, checked as it comes."""

    def __init__(self) -> None:
        self.pieces: list[str | None] = []  # source text; None where a sentence was ended
        self.read = self.words = 0
        self.shown = ""
        self.position = self.last = 0.0
        self.ends: list[tuple[int, float]] = []  # of words: in the text, in the audio
        self.recognised: list[float] = []  # seconds since a word was spoken
        self.translated: list[float] = []  # seconds since the newest word read was spoken
        self.behind: list[float] = []  # seconds of audio that are not taken into account yet

    def take(self, message: dict[str, Any], clock: float) -> None:
        """A message, so many seconds after the talk began."""
        assert message["type"] in ("heard", "words", "stats", "ended"), message
        if message["type"] == "heard":
            assert message["position"] >= self.position
            self.position = message["position"]
            for word in message["words"]:
                assert self.last <= word["start"] <= word["end"] <= self.position + 0.1, message
                self.last, self.words = word["end"], self.words + 1
                self.recognised.append(clock - word["end"])
                self.ends.append((self.read + len(word["text"]), word["end"]))
                self.read += len(word["text"]) + 1
            self.behind.append(clock - self.position)
            self.pieces += [message["text"], *([None] if message["pause"] else [])]
        elif message["type"] == "words":
            assert message["position"] <= self.read, message
            self.shown += message["text"]
            newest = bisect.bisect(self.ends, (message["position"], math.inf)) - 1
            self.translated += [clock - self.ends[newest][1]] * len(message["words"])

    def check(self) -> None:
        """What was written is what a stream here writes."""
        with load("de-en", streams=1).stream(K, raw=True, history=None) as stream:
            for piece in self.pieces:
                _ = stream.flush() if piece is None else stream.push(piece)
            stream.finish()
            assert self.shown.strip() == stream.text

    def part(self) -> str:
        """How long words took since the last part, and how far hearing was behind."""
        text = []
        for name in ("recognised", "translated", "behind"):
            if seconds := getattr(self, name):
                middle, late = np.percentile(seconds, [50, 95])
                text.append(f"{name} {middle:.2f}, {late:.2f}, {max(seconds):.2f} s")
                seconds.clear()
        return "; ".join(text)


def send(socket: ClientConnection, minutes: float, pace: bool, began: float) -> None:
    given = 0
    for samples in talk(minutes):
        given += len(samples)
        if pace:
            time.sleep(max(0.0, began + given / RATE - time.monotonic()))
        socket.send((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    socket.send('{"type": "end"}')


def told(account: Account, seconds: float, sizes: dict[str, float]) -> str:
    text = f"{account.position / 60:.1f} min of audio after {seconds / 60:.1f} min, "
    text += f"{account.words} words, load {os.getloadavg()[0]:.1f}, "
    return text + ", ".join(f"{kind} {size:.0f} MiB" for kind, size in sizes.items())


def listen(server: Served, minutes: float, pace: bool) -> list[dict[str, float]]:
    """Memory after each part of the talk."""
    account, sizes = Account(), []
    url = server.url.replace("http", "ws", 1) + "/v1/stream"
    # No pings: while audio waits, the server does not read them.
    with connect(url, max_size=None, ping_interval=None) as socket:
        start = {"type": "start", "k": K, "audio": {"rate": RATE, "language": "de"}}
        socket.send(json.dumps(start))
        assert json.loads(socket.recv())["type"] == "started"
        began = time.monotonic()
        given = (socket, minutes, pace, began)
        threading.Thread(target=send, args=given, daemon=True).start()
        while (message := json.loads(socket.recv()))["type"] != "ended":
            seconds = time.monotonic() - began
            account.take(message, seconds)
            if account.position >= 60 * minutes * (len(sizes) + 1) / PARTS:
                sizes.append(memory(server))
                print(told(account, seconds, sizes[-1]), flush=True)
                if pace:
                    print(f"    {account.part()}; rhythm {rhythm(server):.2f} s", flush=True)
        assert message["reason"] == "end"
    account.check()
    print(f"{account.words} words heard, {len(account.shown.split())} written; none taken back")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--recogniser", required=True)
    parser.add_argument("--pace", action="store_true", help="as if it were spoken now")
    options = parser.parse_args()
    served = ("--model", "de-en", "--compare", "0", "--streams", "4",
              "--recogniser", options.recogniser)  # fmt: skip
    with Served(*served, threads=None) as server:
        found = listen(server, options.minutes, options.pace)
        server.stop()
    sizes = [sum(each.values()) for each in found]
    first, most = sizes[2], max(sizes[2:])
    print(f"memory after 3 of {PARTS} parts: {first:.0f} MiB, then at most {most / first - 1:+.1%}")
    assert most < 1.05 * first, f"memory grows: {sizes}"


if __name__ == "__main__":
    main()
