"""One Spark application that runs this project's jobs one after the other, in a driver that can be killed.

What the commands do in an application each, here without the eight seconds that starting one takes: the jobs
are the same functions, called with the same settings. The driver is `python -m` this module, its JVM a child
of it; requests go in and answers come out as lines of JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from millrace.errors import MillraceError
from tests.jobs import descendants
from tests.support import REPOSITORY, start_for_the_test_run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ANSWER = "answer: "


class ApplicationGone(Exception):
    """The driver has ended, or does not answer any more; a new one may be started."""


class SparkApplication:
    """A driver of the given master; started when made, ready with its first answer. A context."""

    def __init__(
        self, master: str, conf: Mapping[str, str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._log = log.open("ab")
        settings = json.dumps({"master": master, **conf})
        self._process = start_for_the_test_run(
            [sys.executable, "-m", "tests.peers.spark_application", settings],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(path),
                "PYSPARK_PYTHON": sys.executable,
                **(environment or {}),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.pid = self._process.pid
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, job: str, settings: Mapping[str, Any], *, timeout_s: float = 120) -> Any:
        """The result of one job; MillraceError with its own line, ApplicationGone without an answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"job": job, "settings": dict(settings)}) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout_s)
        except (BrokenPipeError, queue.Empty) as error:
            raise ApplicationGone(f"no answer to {job}: {error!r}") from error
        if line is None:
            raise ApplicationGone(f"the driver ended during {job}")
        answer = json.loads(line)
        if "gone" in answer:
            raise ApplicationGone(answer["gone"])
        if "error" in answer:
            raise MillraceError(answer["error"])
        return answer["result"]

    def jvm(self) -> int | None:
        """Process id of the driver's JVM, None before it is there and after its end."""
        for pid in descendants(self.pid):
            try:
                if b"org.apache.spark.deploy.SparkSubmit" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return pid
            except OSError:
                continue
        return None

    def close(self) -> None:
        """Kill the driver and its JVM."""
        below = descendants(self.pid)
        self._process.kill()
        self._process.wait()
        for pid in below:
            _end(pid)
        self._reader.join(10)
        self._log.close()
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # a request that the driver did not live to read
                self._process.stdin.close()

    def __enter__(self) -> SparkApplication:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith(_ANSWER):
                    self._answers.put(line.removeprefix(_ANSWER))
        self._answers.put(None)


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# In the driver.


def main() -> None:
    """Answer every request on standard input until it ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    for key, value in json.loads(sys.argv[1]).items():
        builder = builder.config("spark.master" if key == "master" else key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        print(_ANSWER + json.dumps(_answer(spark, json.loads(line))), flush=True)


def _answer(spark: SparkSession, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"result": _run(spark, request["job"], request["settings"])}
    except MillraceError as error:
        return {_kind(spark): str(error)}
    except Exception as error:
        traceback.print_exc()
        return {_kind(spark): f"{type(error).__name__}: {str(error)[:300]}"}


def _kind(spark: SparkSession) -> str:
    """A stopped context does not come back: the master gave the application up, or the JVM is dead."""
    return "error" if _alive(spark) else "gone"


def _alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def _run(spark: SparkSession, job: str, settings: Mapping[str, Any]) -> Any:
    from millrace_spark.jobs import mirror
    from millrace_warehouse import requests
    from tests.jobs import load_topics

    if job == "load":
        return [dataclasses.asdict(each) for each in load_topics(spark, requests.Load(**settings))]
    if job == "mirror":
        return [
            dataclasses.asdict(each)
            for each in mirror.mirror_topics(spark.sparkContext, requests.Mirror(**settings))
        ]
    assert job == "read", job
    return _read(spark, **settings)


def _read(spark: SparkSession, warehouse: str, topic: str) -> Mapping[str, int]:
    """Count the rows that Spark sees in the published table of a topic."""
    from millrace_spark import tables

    table = tables.read(spark, warehouse, topic).select("header.instance", "header.sequence")
    return {"rows": table.count(), "distinct": table.distinct().count()}


if __name__ == "__main__":
    main()
