"""The log: lines for people, or one JSON object per line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from galley.settings.config import LOG_FORMAT

FORMAT_VARIABLE: Final = "GALLEY_LOG_FORMAT"
"""Environment variable with the log format, for engine processes, which write to the same log."""

_BREAKS: Final = frozenset(' "=')
"""Characters with which a value would not be one word of a line."""


class TextLines(logging.Formatter):
    """Formats each record as a line for people.

    Non-printable characters, which might start a line or control a terminal, are written as Python escape
    sequences; the lines of a traceback are indented.
    """

    def __init__(self) -> None:
        super().__init__(LOG_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """See :class:`logging.Formatter`."""
        return _seen(super().formatMessage(record))

    def formatException(self, exc_info: Any) -> str:  # noqa: N802
        """See :class:`logging.Formatter`."""
        lines = super().formatException(exc_info).splitlines()
        return "\n".join(f"  {_seen(line)}" for line in lines)


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object.

    ``time`` is UTC in the format of RFC 3339. The record's attribute ``fields``, a mapping, is merged in.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See :class:`logging.Formatter`."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        entry.setdefault("message", record.getMessage())
        text = json.dumps(entry, ensure_ascii=False, default=str)
        return text if text.isprintable() else json.dumps(entry, default=str)


def start(form: str, level: str = "warning") -> None:
    """Have this process write its log to stderr.

    Args:
        form: "text" or "json".
        level: the least severe level that is written.
    """
    # Neither format shows the place in the source, the thread or the process of a record, and to find them
    # takes time for each record (see "Optimization" in the documentation of logging).
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def say(message: str, stream: TextIO | None = None, **fields: Any) -> None:
    """Print a message at any log level, as a JSON record if the log is JSON.

    Args:
        message: the message for people.
        stream: stdout or stderr; the default is stdout.
        fields: fields of a JSON record; with fields, the record's message is only the first line.
    """
    forms = (handler.formatter for handler in logging.getLogger().handlers)
    as_json = next((form for form in forms if isinstance(form, JsonLines)), None)
    if as_json is not None:
        level = logging.ERROR if stream is sys.stderr else logging.INFO
        text = message.strip().partition("\n")[0] if fields else message
        record = logging.LogRecord("galley", level, "", 0, text, args=None, exc_info=None)
        record.__dict__["fields"] = fields
        message = as_json.format(record)
    print(message, file=stream, flush=True)


def readable(fields: dict[str, Any]) -> str:
    """Return ``name=value`` for each field; texts with spaces are quoted as in JSON."""
    return " ".join(f"{name}={quoted(value)}" for name, value in fields.items())


def quoted(value: object) -> str:
    """Return a value as one word of a line, quoted as in JSON if it would not be a single word."""
    if not isinstance(value, str):
        return json.dumps(value)
    simple = value.isprintable() and _BREAKS.isdisjoint(value)
    return value if simple else json.dumps(value, ensure_ascii=False)


def _seen(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
