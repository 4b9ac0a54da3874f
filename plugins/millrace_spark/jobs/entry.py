"""Entry point of `script.py`: runs a request's job with a Spark context and prints its answer at the end.

Each step is written to standard error when it is done.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from py4j.protocol import INPUT_CONVERTER
from pyspark import SparkContext
from pyspark.sql.types import NumpyArrayConverter, NumpyScalarConverter

from millrace.config import from_mapping
from millrace.errors import MillraceError
from millrace.steps import to_stderr
from millrace_spark.jobs.executors import ExecutorWatch
from millrace_warehouse.commands.answer import answer_of, end_with, unexpected
from millrace_warehouse.requests import Load, Mirror, Reload

if TYPE_CHECKING:
    from millrace_spark.jobs.drivers import SentJob

JOBS: Mapping[str, tuple[type, str]] = {
    "load": (Load, "millrace_spark.jobs.load:load_topics"),
    "follow": (Load, "millrace_spark.jobs.follow:follow_until_stopped"),
    "reload": (Reload, "millrace_spark.jobs.load:reload_loads"),
    "mirror": (Mirror, "millrace_spark.jobs.mirror:mirror_topics"),
}
"""Name -> the class of the request that is read from JSON, and the function that takes a Spark context and
the request.
"""
JVM_HAS_ENDED = "the driver's JVM has ended (killed, or out of memory): see the job's output, then run again"
GATEWAY_S = 5.0
"""Seconds to connect to the JVM on the same machine."""

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the job that the arguments name, and end the process with its exit code."""
    begin()
    name, *files = sys.argv[1:]
    if not files:
        from millrace_spark.jobs.drivers import SentJob  # not needed by a driver beside its command
        from millrace_spark.jobs.standalone import SENT

        sent = SentJob.unpacked(os.environ.pop(SENT))  # child processes would inherit it
        run_sent(sent, Path.cwd().name)  # a worker's folder for a driver has the driver's id as its name
    settings = json.loads(Path(files[0]).read_text())
    # The files may hold passwords, and a command that is killed deletes nothing. They are not read again.
    for file in files:
        Path(file).unlink()
    _run(name, settings, partial(print, flush=True))


def begin() -> None:
    """Prepare the process, before anything else."""
    # Spark's JVM started this process, in its main thread, which waits for it. Without this call a driver
    # could go on alone, though no command waits for it any more.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Both import pandas with the first argument for the JVM, to see whether it is one of theirs: half a
    # second of CPU, and no job has such arguments.
    numpys = (NumpyArrayConverter, NumpyScalarConverter)
    INPUT_CONVERTER[:] = [converter for converter in INPUT_CONVERTER if not isinstance(converter, numpys)]


def run_sent(sent: SentJob, driver: str) -> NoReturn:
    """Run a job that was sent to a cluster, in the driver of this id, and end with its exit code."""
    os.environ |= sent.environment
    try:
        sent.begin(driver)
    except MillraceError as error:
        sys.exit(f"millrace: {error}")
    SparkContext._ensure_initialized()
    system: Any = SparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    for key, value in sent.conf.items():  # on a command line every user could read them
        system.setProperty(key, value)
    _run(sent.job, sent.settings, sent.reply)


def _run(name: str, settings: Mapping[str, Any], reply: Callable[[str], None]) -> NoReturn:
    request: Any = from_mapping(JOBS[name][0], settings, "the job's settings")
    end_with(answer_of(lambda: _result(name, request, partial(_give_up, reply)), describe), reply)


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
    return JVM_HAS_ENDED if jvm_has_ended() else unexpected(error)


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
