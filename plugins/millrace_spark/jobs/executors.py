"""Watches a job's wait for executors: reports the wait, and gives up after a time limit.

Spark itself waits for ever and reports nothing: its warning is below the level at which these jobs log. The
watch polls the driver's own scheduler once a second, so it also notices lost executors. Depends on no
particular job. A local master has no executors to wait for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext

from millrace.errors import ConfigError
from millrace_spark.jobs.submit import DEFAULT_TIMEOUT, SAY_AFTER_S, TIMEOUT

POLL_S = 1.0


class ExecutorWatch:
    """Watches for executors from before Spark's context starts until the job is done. A context manager.

    `say` gets one sentence when the cluster has given no executor for SAY_AFTER_S. `give_up` gets one
    sentence when TIMEOUT has passed. Both are called in a separate thread.
    """

    def __init__(self, say: Callable[[str], None], give_up: Callable[[str], None]) -> None:
        """Read the time limit. Raise ConfigError when TIMEOUT is not a time."""
        SparkContext._ensure_initialized()  # without a JVM there are no settings
        conf = SparkConf()
        self._master = conf.get("spark.master", "")
        self._timeout_s = _timeout_s(conf)
        self._say, self._give_up = say, give_up
        self.context: SparkContext | None = None
        """Spark's context, once started. YARN and Kubernetes delay that, for a queue or executors."""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def __enter__(self) -> ExecutorWatch:
        if self._master.partition("[")[0] != "local":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        since, said = time.monotonic(), False
        while not self._done.wait(POLL_S):
            wanted, there = self._look()
            said = said and not there
            if there or not wanted:
                since = time.monotonic()
            waited_s = time.monotonic() - since
            if waited_s >= self._timeout_s:
                self._give_up(
                    f"{self._master} has given this job no executor within {self._timeout_s} s: check that a"
                    " worker of the cluster has the cores and the memory for one, or let it wait longer with"
                    f" --conf {TIMEOUT}=TIME"
                )
                return
            if waited_s >= SAY_AFTER_S and not said:
                said = True
                self._say(
                    f"no executor from {self._master} for {SAY_AFTER_S:.0f} s; waiting for one, at most"
                    f" {self._timeout_s} s (--conf {TIMEOUT}=TIME)"
                )

    def _look(self) -> tuple[bool, bool]:
        """Return True if the job waits for executors, and True if it has any."""
        if (context := self.context) is None:
            return True, False
        try:
            there = int(context._jsc.sc().getExecutorMemoryStatus().size()) > 1  # the driver counts too
            return bool(context.statusTracker().getActiveStageIds()), there
        except Py4JError:  # the context has stopped: the job's own error explains it
            return False, False


def _timeout_s(conf: SparkConf) -> int:
    try:
        return int(conf._jconf.getTimeAsSeconds(TIMEOUT, DEFAULT_TIMEOUT))  # type: ignore[union-attr]
    except Py4JJavaError:
        raise ConfigError(f"{TIMEOUT}={conf.get(TIMEOUT)} is not a time like 90s, 10m or 1h") from None
