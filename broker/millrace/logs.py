"""A server's log on standard error: lines for people, or one JSON object per line for a collector."""

from __future__ import annotations

import json
import logging
import os
import sys
import textwrap
from datetime import UTC, datetime
from typing import Any

import click

from millrace.escaping import escaped, escaped_lines

FORMATS = ("text", "json")
VERBOSE = "MILLRACE_VERBOSE"
"""Environment variable that is set while `millrace --verbose` runs, also for the processes that it starts."""
FORMAT = "MILLRACE_LOG_FORMAT"
"""Environment variable with the format of the log."""
LINE = "%(asctime)s %(name)s %(message)s"


class TextLines(logging.Formatter):
    """A format with one line for each message and its traceback indented below: no client's text can begin a
    line.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return textwrap.indent(escaped_lines(super().formatException(ei)), "  ", lambda _: True)


class JsonLines(logging.Formatter):
    """A format of one JSON object per message: time (UTC, ISO 8601), level, logger, message, exception and
    traceback.
    """

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
        return json.dumps(line)


def start_logging(line: str = LINE) -> None:
    """Start to log in the format that `millrace --log-format` names; `line` is the format for people."""
    context = click.get_current_context(silent=True)
    given = os.environ.get(FORMAT)  # for a process that no command line started
    chosen = context.find_root().params.get("log_format") if context is not None else given
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if chosen == "json" else TextLines(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
