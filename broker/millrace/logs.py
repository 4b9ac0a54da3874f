"""How a server logs on standard error: lines for people, or an object in JSON a line, for a collector."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

import click

FORMATS = ("text", "json")
VERBOSE = "MILLRACE_VERBOSE"
"""Set while `millrace --verbose` runs, also for the processes that it starts."""
LINE = "%(asctime)s %(name)s %(message)s"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class TextLines(logging.Formatter):
    """A line for each message, its traceback behind it: no name that a client makes up begins another."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), line)


class JsonLines(logging.Formatter):
    """time (UTC, ISO 8601), level, logger, message; exception where there is one, with its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def start_logging(line: str = LINE) -> None:
    """Log from now on, in the format that `millrace --log-format` names; `line` is the one for people."""
    context = click.get_current_context(silent=True)
    chosen = context.find_root().params.get("log_format") if context is not None else None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if chosen == "json" else TextLines(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
