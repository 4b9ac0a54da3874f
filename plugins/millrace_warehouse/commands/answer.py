"""A job's answer: one line of JSON, which the job prints and its command reads.

The line is `{"result": …}` with exit code 0, or `{"error": "one line with advice"}` with 1, and
`"unforeseen": true` if the stack trace above it is needed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from millrace.errors import MillraceError


def answer_of(work: Callable[[], Any], describe: Callable[[Exception], str]) -> dict[str, Any]:
    """Do a job's work. Return its answer; `describe` returns one line for an unforeseen exception."""
    try:
        return {"result": work()}
    except MillraceError as error:
        return {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": describe(error), "unforeseen": True}


def end_with(answer: dict[str, Any], reply: Callable[[str], None]) -> NoReturn:
    """Pass the line to `reply`, and end the process with its exit code."""
    reply(json.dumps(answer, default=dataclasses.asdict))
    sys.exit(1 if "error" in answer else 0)


def unexpected(error: Exception) -> str:
    """Return one line for an unforeseen exception."""
    text = next(iter(str(error).splitlines()), "")
    return f"unexpected {type(error).__name__}: {text}; see the job's output"
