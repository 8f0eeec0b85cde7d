"""What a client keeps to continue an interrupted stream: text that is not done with, and the path.

No input or output here: the same rules in any language (docs/serving.md has them in JavaScript).
"""

from __future__ import annotations

from typing import Any


class Replay:
    """The messages of a stream that are to be sent again, and where the server continues."""

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []  # text and flush messages from `position` on
        self._newest: dict[str, Any] = {"position": 0, "sentence": 0}
        self._path: list[list[int]] = []
        self._seconds = 0.0

    @property
    def position(self) -> int:
        """Source text before it is done with."""
        return int(self._newest["position"])

    def sent(self, message: dict[str, Any]) -> None:
        """A message that carries text, or a mark in it, was handed in."""
        self._items.append(message)

    def received(self, words: dict[str, Any]) -> None:
        """A `words` message: what is done with is dropped."""
        found = words["replay"]
        if found["sentence"] != self._newest["sentence"]:
            self._drop(found["position"] - self.position)
            self._path = []
        self._path += found["path"]
        self._newest = found
        self._seconds = words["time"]

    def _drop(self, count: int) -> None:
        """Forget the first characters, and the marks among them."""
        while count > 0 and self._items:
            text = self._items[0].get("text", "")
            if len(text) <= count:
                self._items.pop(0)
                count -= len(text)
            else:
                self._items[0] = {**self._items[0], "text": text[count:]}
                count = 0
        while self._items and self._items[0]["type"] == "flush":
            self._items.pop(0)

    def resume(self, vocabulary: str | None) -> dict[str, Any]:
        """The `resume` of a new start message."""
        return {
            **self._newest,
            "path": self._path,
            "seconds": self._seconds,
            "vocabulary": vocabulary,
        }

    @property
    def items(self) -> list[dict[str, Any]]:
        """What to send after it."""
        return list(self._items)
