"""Structured logs: one JSON object per line on standard error.

Nothing that a client sends is logged. An unexpected error is logged by its kind and place; its
message, which may quote a client, only at level debug.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime

logger = logging.getLogger("waitinfo.serving")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            entry |= _describe(record.exc_info[1])
        return json.dumps(entry, ensure_ascii=False, default=str)


def _describe(error: BaseException) -> dict[str, object]:
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    found: dict[str, object] = {"error": type(error).__name__, "at": places[-8:]}
    if logging.getLogger("waitinfo").isEnabledFor(logging.DEBUG):
        found["message"] = str(error)
    return found


def log(event: str, level: int = logging.INFO, **facts: object) -> None:
    logger.log(level, event, extra={"facts": facts})


def set_up(level: str) -> None:
    """Send the logs of waitinfo and uvicorn to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name in ("waitinfo", "uvicorn"):
        found = logging.getLogger(name)
        found.handlers = [handler]
        found.propagate = False
    logging.getLogger("waitinfo").setLevel(level.upper())
