"""Spark's errors in a resident application. The texts are those of PySpark 4.1 and 4.0."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from millrace.errors import MillraceError
from millrace_spark.jobs.follow import cause_of, engine_on

CALL = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
ABORTED = (
    f"{CALL}: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4"
    " times, most recent failure: Lost task 0.3 in stage 3.0 (TID 7) (10.9.0.5 executor 1): "
)
TRACE = """Traceback (most recent call last):
  File "/opt/pyspark/worker.py", line 4327, in invoke_udf
    run_process()
  File "/opt/millrace/task.py", line 48, in write_cut
    raise RuntimeError
"""
STACK = "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)\n\tat more\n"
STOPPED = (
    "An error occurred while calling o71.defaultParallelism.\n: java.lang.IllegalStateException: Cannot call"
    " methods on a stopped SparkContext.\nThis stopped SparkContext was created at:\n\norg.apache.spark\n"
)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            f"{CALL}: org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown"
            f" from the Python worker: {TRACE}RuntimeError: a bug\nof two lines\n SQLSTATE: 38000\n{STACK}",
            "RuntimeError: a bug of two lines",
        ),
        (
            f"{ABORTED}org.apache.spark.api.python.PythonException: {TRACE}OSError: disk full\n\n{STACK}",
            "OSError: disk full",
        ),
        (
            f"{ABORTED}org.apache.spark.SparkException: Python worker exited (crashed).\n{STACK}",
            "Python worker exited (crashed).",
        ),
        (
            f"{ABORTED}ExecutorLostFailure (executor 1 exited caused by a running task) Reason: code"
            f" 137\n\nDriver stacktrace:\n{STACK}",
            "ExecutorLostFailure (executor 1 exited caused by a running task) Reason: code 137",
        ),
        (STOPPED, "Cannot call methods on a stopped SparkContext."),
        ("Error while sending or receiving", "Error while sending or receiving"),
    ],
)
def test_the_cause_of_a_failed_job_is_one_line_without_stack_and_numbers(text: str, cause: str) -> None:
    assert cause_of(text) == cause


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_loader_stops_only_if_spark_has_ended_the_application(has_ended: bool) -> None:
    def fail(*_: object) -> None:
        raise Py4JError(STOPPED)

    stop = threading.Event()
    spark: Any = SimpleNamespace(
        _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: has_ended)),
        setLocalProperty=lambda *_: None,
        parallelize=fail,
    )
    with pytest.raises(MillraceError, match=r"^Spark could not run the tasks: Cannot call methods on"):
        engine_on(spark, stop).run_tasks(len, ["a task"])
    assert stop.is_set() == has_ended
