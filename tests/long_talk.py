"""A long talk: synthetic speech, heard and translated by a server; its memory stays flat.

    python -m tests.long_talk --minutes 30 --recogniser FOLDER [--pace]

espeak-ng (a package of Debian) speaks German sentences, with pauses. They are sent as fast as the
server takes them, with --pace as if they were spoken now. Checked are: words are committed in
order, and never taken back; nothing is translated before it was heard; what was written is what a
stream of this process writes for the same words; the memory of the server and its workers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from websockets.sync.client import ClientConnection, connect

from waitinfo import load
from waitinfo.listening.audio import RATE, Samples, read_bytes

SENTENCES = Path(__file__).resolve().parents[1] / "examples" / "data" / "tatoeba.de-en.tsv"
BLOCK = RATE // 10
PARTS = 10
K = 3.0


def talk(minutes: float, seed: int = 0) -> Iterator[Samples]:
    """Blocks of synthetic speech."""
    chance = random.Random(seed)
    lines = SENTENCES.read_text("utf-8").splitlines()
    given = 0
    while given < 60 * minutes * RATE:
        # Sentences that are spoken without a break are one stretch for the recogniser.
        text = " ".join(each.split("\t")[0] for each in chance.sample(lines, chance.randint(1, 5)))
        command = ["espeak-ng", "-v", "de", "-s", str(chance.randint(130, 170)), "--stdout", text]
        spoken = subprocess.run(command, capture_output=True, check=True).stdout
        pause = np.zeros(round(chance.uniform(0.2, 1.6) * RATE), np.float32)
        samples = np.concatenate([*read_bytes(spoken), pause])
        given += len(samples)
        yield from (samples[at : at + BLOCK] for at in range(0, len(samples), BLOCK))


class Served:
    """`waitinfo serve` in a process of its own."""

    def __init__(self, folder: Path, recogniser: str) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-m", "waitinfo", "serve", "--model", "de-en", "--port", "0",
                   "--compare", "0", "--streams", "4", "--recogniser", recogniser]  # fmt: skip
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        while (found := re.search(r'"port": (\d+)', self.text)) is None:
            assert self.process.poll() is None, self.text
            time.sleep(0.1)
        self.url = f"ws://127.0.0.1:{found[1]}/v1/stream"

    @property
    def text(self) -> str:
        return self.log.read_text("utf-8")

    def memory(self) -> dict[str, float]:
        """MiB of the server, and of its workers."""
        own, sizes = self.process.pid, {"server": 0.0, "workers": 0.0}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(re.findall(r"^(\w+):\s*(\d+)", status.read_text("utf-8"), re.M))
            except OSError:  # it has ended
                continue
            if int(status.parent.name) == own:
                sizes["server"] += int(fields["VmRSS"]) / 1024
            elif int(fields.get("PPid", 0)) == own:
                sizes["workers"] += int(fields.get("VmRSS", 0)) / 1024
        return sizes

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0, self.text


class Account:
    """What the server says, checked as it comes."""

    def __init__(self) -> None:
        self.pieces: list[str | None] = []  # source text; None where a sentence was ended
        self.read = self.words = 0
        self.shown = ""
        self.position = self.last = 0.0

    def take(self, message: dict[str, Any]) -> None:
        assert message["type"] in ("heard", "words", "stats", "ended"), message
        if message["type"] == "heard":
            assert message["position"] >= self.position
            self.position = message["position"]
            for word in message["words"]:
                assert self.last <= word["start"] <= word["end"] <= self.position + 0.1, message
                self.last, self.words = word["end"], self.words + 1
            self.read += len(message["text"])
            self.pieces += [message["text"], *([None] if message["pause"] else [])]
        elif message["type"] == "words":
            assert message["position"] <= self.read, message
            self.shown += message["text"]

    def check(self) -> None:
        """What was written is what a stream here writes."""
        with load("de-en", streams=1).stream(K, raw=True, history=None) as stream:
            for piece in self.pieces:
                _ = stream.flush() if piece is None else stream.push(piece)
            stream.finish()
            assert self.shown.strip() == stream.text


def send(socket: ClientConnection, minutes: float, pace: bool) -> None:
    began, given = time.monotonic(), 0
    for samples in talk(minutes):
        socket.send((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
        given += len(samples)
        if pace:
            time.sleep(max(0.0, began + given / RATE - time.monotonic()))
    socket.send('{"type": "end"}')


def run(minutes: float, recogniser: str, pace: bool) -> list[dict[str, float]]:
    """Memory after each part of the talk."""
    account, sizes = Account(), []
    with tempfile.TemporaryDirectory() as folder:
        server = Served(Path(folder), recogniser)
        began = time.monotonic()
        try:
            # No pings: while audio waits, the server does not read them.
            with connect(server.url, max_size=None, ping_interval=None) as socket:
                start = {"type": "start", "k": K, "audio": {"rate": RATE, "language": "de"}}
                socket.send(json.dumps(start))
                assert json.loads(socket.recv())["type"] == "started"
                sender = threading.Thread(target=send, args=(socket, minutes, pace), daemon=True)
                sender.start()
                while (message := json.loads(socket.recv()))["type"] != "ended":
                    account.take(message)
                    if account.position >= 60 * minutes * (len(sizes) + 1) / PARTS:
                        sizes.append(server.memory())
                        seconds = time.monotonic() - began
                        print(f"{account.position / 60:.1f} min of audio after {seconds / 60:.1f} "
                              f"min, {account.words} words, "
                              + ", ".join(f"{k} {v:.0f} MiB" for k, v in sizes[-1].items()),
                              flush=True)  # fmt: skip
                assert message["reason"] == "end"
        finally:
            server.stop()
    account.check()
    print(f"{account.words} words heard, {len(account.shown.split())} written; none taken back")
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--recogniser", required=True)
    parser.add_argument("--pace", action="store_true", help="as if it were spoken now")
    options = parser.parse_args()
    sizes = [sum(each.values()) for each in run(options.minutes, options.recogniser, options.pace)]
    first, most = sizes[2], max(sizes[2:])
    print(f"memory after 3 of {PARTS} parts: {first:.0f} MiB, then at most {most / first - 1:+.1%}")
    assert most < 1.05 * first, f"memory grows: {sizes}"


if __name__ == "__main__":
    main()
