"""Structured logs: one JSON object per line on standard error, whoever writes them.

Nothing that a client sends is logged. An unexpected error is logged by its kind and place; its
message, which may quote a client, only at level debug. Whatever happens, there is one line of a
kind each second; it says how many were left out.
"""

from __future__ import annotations

import contextvars
import json
import logging
import secrets
import sys
import threading
import time
import traceback
import warnings
from datetime import UTC, datetime
from types import TracebackType

logger = logging.getLogger("waitinfo.serving")

SECONDS = 1.0  # between two lines of a kind
KINDS = 1_000  # that are remembered
# What uvicorn takes for errors of the application, and is the client's doing.
CLIENTS = ("Invalid UTF-8", "opening handshake failed", "Invalid HTTP request", "Unsupported up")

_session: contextvars.ContextVar[str | None] = contextvars.ContextVar("session", default=None)


def begin_session() -> str:
    """Give this task, and those it starts, a name that stands in all their lines."""
    name = secrets.token_hex(4)
    _session.set(name)
    return name


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage().partition("\n")[0].strip(),
            **getattr(record, "facts", {}),
        }
        if (left_out := getattr(record, "left_out", 0)) > 0:
            entry["left_out"] = left_out
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


class OnePerSecond(logging.Filter):
    """Lets one record of a kind through each second; all, below `info`."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._kinds: dict[object, list[float]] = {}  # when the last was written, and left out since

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:
            return True
        facts = getattr(record, "facts", {})
        error = type(record.exc_info[1]) if record.exc_info else None
        kind = record.name, str(record.msg)[:60], facts.get("reason"), error
        now = time.monotonic()
        with self._lock:
            if len(self._kinds) > KINDS:
                self._kinds.clear()
            known = self._kinds.setdefault(kind, [-SECONDS, 0])
            if now - known[0] < SECONDS:
                known[1] += 1
                return False
            record.left_out = int(known[1])
            known[:] = now, 0
        return True


def of_clients(record: logging.LogRecord) -> bool:
    """Let a record through; one that a client has caused is not an error."""
    if str(record.msg).startswith(CLIENTS):
        record.levelno, record.levelname = logging.INFO, "INFO"
        record.exc_info = None
    return True


def log(event: str, level: int = logging.INFO, **facts: object) -> None:
    if (session := _session.get()) is not None:
        facts["session"] = session
    logger.log(level, event, extra={"facts": facts})


def failed(event: str, error: BaseException) -> None:
    """Log an unexpected error."""
    facts = {} if (session := _session.get()) is None else {"session": session}
    logger.error(event, exc_info=error, extra={"facts": facts})


def set_up(level: str) -> None:
    """Send all logs, warnings and uncaught errors to standard error, as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    handler.addFilter(OnePerSecond())
    root = logging.getLogger()
    root.handlers = [handler]
    for name in ("waitinfo", "uvicorn", "uvicorn.error", "asyncio"):
        found = logging.getLogger(name)
        found.handlers, found.propagate = [], True
    logging.getLogger("waitinfo").setLevel(level.upper())
    logging.captureWarnings(False)
    warnings.showwarning = _show_warning  # type: ignore[assignment]
    sys.excepthook = _show_error
    threading.excepthook = lambda given: _show_error(
        given.exc_type, given.exc_value, given.exc_traceback
    )


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    log("warning", logging.WARNING, reason=category.__name__, message=str(message))


def _show_error(
    kind: type[BaseException], error: BaseException | None, _: TracebackType | None
) -> None:
    if error is not None and not issubclass(kind, KeyboardInterrupt):
        failed("an error that nobody caught", error)
