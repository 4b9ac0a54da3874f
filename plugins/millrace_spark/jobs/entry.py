"""Entry point of `script.py`: runs a request's job with a Spark context and prints one line of JSON at the
end.

The line is `{"result": …}` with exit code 0, or `{"error": "one line with advice"}` with 1, and
`"unforeseen": true` if the stack trace above it is needed. Each step is written to standard error when it is
done.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from py4j.protocol import INPUT_CONVERTER
from pyspark import SparkContext
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from millrace.config import from_mapping
from millrace.errors import MillraceError
from millrace_spark.jobs.executors import ExecutorWatch
from millrace_warehouse.commands.steps import to_stderr
from millrace_warehouse.requests import Load, Mirror, Reload

JOBS: Mapping[str, tuple[type, str]] = {
    "load": (Load, "millrace_spark.jobs.load:load_topics"),
    "follow": (Load, "millrace_spark.jobs.follow:follow_until_stopped"),
    "reload": (Reload, "millrace_spark.jobs.load:reload_loads"),
    "mirror": (Mirror, "millrace_spark.jobs.mirror:mirror_topics"),
}
"""Name -> the class of the request that is read from JSON, and the function that takes a Spark context and
the request.
"""
GATEWAY_S = 5.0
"""Seconds to connect to the JVM on the same machine."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the job that the arguments name, and end the process with its exit code."""
    # Spark's JVM started this process, in its main thread, which waits for it. Without this call a driver
    # could go on alone, though no command waits for it any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Both import pandas with the first argument for the JVM, to see whether it is one of theirs: half a
    # second of CPU, and no job has such arguments.
    numpys = (NumpyArrayConverter, NumpyScalarConverter)
    INPUT_CONVERTER[:] = [converter for converter in INPUT_CONVERTER if not isinstance(converter, numpys)]
    name, *files = sys.argv[1:]
    reply: Callable[[str], None] = partial(print, flush=True)
    if files:
        settings = json.loads(Path(files[0]).read_text())
        # The files may hold passwords, and a command that is killed deletes nothing. They are not read
        # again.
        for file in files:
            Path(file).unlink()
    else:
        from millrace_spark.jobs.elsewhere import SentJob  # not needed by a driver beside its command

        sent = SentJob.take()
        settings, reply = sent.settings, sent.reply
        _take_settings(sent.conf)
    request: Any = from_mapping(JOBS[name][0], settings, "the job's settings")
    try:
        answer: dict[str, Any] = {"result": _result(name, request, partial(_give_up, reply))}
    except MillraceError as error:
        answer = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        answer = {"error": describe(error), "unforeseen": True}
    reply(json.dumps(answer, default=dataclasses.asdict))
    sys.exit(1 if "error" in answer else 0)


def _take_settings(conf: Mapping[str, str]) -> None:
    """Apply these settings in the JVM: on a command line every user could read them."""
    SparkContext._ensure_initialized()
    system: Any = SparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    for key, value in conf.items():
        system.setProperty(key, value)


def _result(name: str, request: Any, give_up: Callable[[str], None]) -> Any:
    module, _, function = JOBS[name][1].partition(":")
    spark: SparkContext | None = None
    try:
        # The JVM makes the context while Python imports the job.
        with ThreadPoolExecutor(1) as pool, ExecutorWatch(to_stderr(name), give_up) as executors:
            imported = pool.submit(import_module, module)
            spark = executors.context = _context()
            return getattr(imported.result(), function)(spark, request)
    finally:
        if spark is not None:
            spark.stop()


def _give_up(reply: Callable[[str], None], reason: str) -> None:
    """End the driver from another thread than the job's, which waits for tasks that no executor runs."""
    reply(json.dumps({"error": reason}))
    os._exit(1)


def _context() -> SparkContext:
    """Start a Spark context without a session, which takes two more seconds of CPU."""
    try:
        return SparkContext.getOrCreate()
    except Exception as error:
        # No master there, or settings that Spark refuses: Java's message is enough, without its stack.
        lines = str(error).splitlines() or [""]
        reason = next((line[2:] for line in lines if line.startswith(": ")), lines[0])
        raise MillraceError(
            f"Spark does not start ({reason}): check that the --master is up, and the --conf settings"
        ) from error


def describe(error: Exception) -> str:
    """Return one line for an unforeseen exception."""
    if jvm_has_ended():
        return "the driver's JVM has ended (killed, or out of memory): see the job's output, then run again"
    text = next(iter(str(error).splitlines()), "")
    return f"unexpected {type(error).__name__}: {text}; see the job's output"


def jvm_has_ended() -> bool:
    """Return True when the driver's JVM does not listen any more, so that every call fails."""
    if (gateway := SparkContext._gateway) is None:
        return False
    parameters = gateway.gateway_parameters
    try:
        socket.create_connection((parameters.address, parameters.port), timeout=GATEWAY_S).close()
    except OSError:
        return True
    return False
