"""Translations of an unfinished point, kept on disk in case the evaluation is interrupted."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waitinfo.errors import WaitinfoError
from waitinfo.streaming.decoder import Hypothesis


class Partial:
    """Translations of an unfinished point, written to disk as they are completed.

    The file belongs to one process at a time. Its name contains a digest of the settings, so that
    translations made with other settings are neither used nor touched.
    """

    def __init__(self, folder: Path, stem: str, settings: dict[str, Any]) -> None:
        header = json.dumps(settings, sort_keys=True)
        digest = hashlib.sha256(header.encode()).hexdigest()[:12]
        self.path = folder / f".{stem}.{digest}.partial.jsonl"
        self._stream = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._stream.close()
            raise WaitinfoError(
                f"{folder / stem}: another process is evaluating this point"
            ) from None
        self._stream.seek(0)
        self.found = dict(self._read(self._stream.read().split("\n")[:-1]))
        # Drop incomplete and damaged lines.
        self._stream.truncate(0)
        for number, hypothesis in self.found.items():
            self.add(number, hypothesis)

    @staticmethod
    def _read(lines: list[str]) -> Iterator[tuple[int, Hypothesis]]:
        for line in lines:
            try:
                number, values = json.loads(line)
                yield number, Hypothesis(**values)
            except (ValueError, TypeError):
                continue

    def add(self, number: int, hypothesis: Hypothesis) -> None:
        self._stream.write(json.dumps([number, vars(hypothesis)]) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()
