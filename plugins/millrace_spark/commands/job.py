"""Runs a command's job, on Spark or without it, and shows its steps."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from millrace.errors import ConfigError
from millrace.printing import say
from millrace.signals import interruptible
from millrace.steps import steps
from millrace_spark.commands.early import check_master
from millrace_spark.jobs import submit
from millrace_warehouse.commands.options import Output
from millrace_warehouse.option_values import LOCAL, SPARK
from millrace_warehouse.requests import Load, Mirror, command_options, option

CONF = "MILLRACE_SPARK_CONF"
"""Environment variable with more Spark settings, as JSON."""
# local-cluster[workers,cores,MB] is Spark's own, for tests.
_MASTER = re.compile(r"local(-cluster)?(\[[\d*, ]+\])?|spark://[^/]+:\d+|yarn|k8s://.+")
_LOCAL = re.compile(r"local(?:\[(\d+|\*)\])?")


def _checked_master(text: str, name: str) -> str:
    if not _MASTER.fullmatch(text):
        raise ConfigError(
            f"{name} {text!r} is not a Spark master: write local[2], spark://HOST:PORT, yarn or k8s://URL"
        )
    return text


def _conf_of_environment() -> dict[str, str]:
    """Return the settings in the environment variable, which other users cannot read."""
    try:
        conf = json.loads(os.environ.get(CONF) or "{}")
    except ValueError:
        conf = None
    if not isinstance(conf, dict) or not all(
        key.startswith("spark.") and isinstance(value, str) for key, value in conf.items()
    ):
        raise ConfigError(f'{CONF} in the environment is not JSON like {{"spark.KEY": "VALUE"}}')
    return conf


def _parse_conf(words: Sequence[str], name: str) -> dict[str, str]:
    for word in words:
        if not re.match("spark\\.[^=]*=", word):
            raise ConfigError(f"{name} {word!r} is not of the form spark.KEY=VALUE")
    return {**_conf_of_environment(), **dict(word.split("=", 1) for word in words)}


@command_options
class Invocation(Output):
    """Options of a command's job: master, settings, and the output of its answer (docs/clusters.md)."""

    takes_values: ClassVar[bool] = False
    master: str = option(
        "--master URL", "Spark master the job is submitted to.", _checked_master, default="local[2]"
    )
    conf: Mapping[str, str] = option(
        "--conf KEY=VALUE...",
        "A Spark setting, which overrides Millrace's own; may be repeated.",
        _parse_conf,
        default_factory=_conf_of_environment,
    )
    archives: Sequence[str] = option(
        "--archives FILE#NAME...",
        "A packed Python environment; may be repeated. The executors run the Python of the first one.",
        default=(),
    )

    def packages_for(self, request: Any) -> Sequence[str]:
        """Return the packages that a job needs; `--engine local` does without Spark."""
        packages = super().packages_for(request)
        return packages if self.processes_for(request) else (*packages, "pyspark")

    def processes_for(self, request: Any) -> int:
        """Return the number of processes of this machine that run a request's tasks, or 0 for Spark."""
        if isinstance(request, Load) and request.follow:
            return 0 if request.engine == SPARK else 1
        if isinstance(request, Mirror) or request.engine != LOCAL:
            return 0
        if (local := _LOCAL.fullmatch(self.master)) is None:
            raise ConfigError(
                "--engine local runs on this machine: give --master local[N], or leave one of them out"
            )
        return (os.cpu_count() or 1) if local[1] == "*" else max(int(local[1] or 1), 1)


def run_job(name: str, request: Any, invocation: Invocation) -> Any:
    """Run a request's job, show its steps, and return its answer as JSON.

    Raise MillraceError with the job's own line.
    """
    check_master(invocation.master)
    # Topics share the cores, so that a small topic need not wait for the tasks of a big one.
    conf, settings = {"spark.scheduler.mode": "FAIR", **invocation.conf}, dataclasses.asdict(request)
    elsewhere = conf.get(submit.DEPLOY_MODE) == "cluster"
    where: Any = {"master": invocation.master, "archives": invocation.archives}
    with steps(name) as on_line, _from_the_first_step(on_line) as on_line:
        if elsewhere and "warehouse" not in settings:
            on_line(f"step: {name}: the driver runs here: there is no warehouse to leave an answer in")
            del conf[submit.DEPLOY_MODE]
        elif elsewhere:
            from millrace_spark.jobs.elsewhere import submit as run  # imports the storage: not for --help

            with interruptible():
                return run(name, settings, conf=conf, on_line=on_line, **where)
        if processes := invocation.processes_for(request):
            return submit.run_here(name, settings, processes=processes, on_line=on_line)
        return submit.submit(name, settings, conf=conf, on_line=on_line, **where)


def run_resident_job(
    name: str, request: Load, invocation: Invocation, stop: threading.Event, on_part: Callable[[Any], None]
) -> Any:
    """Run a job that ends when `stop` is set. Show its log, and return its answer as JSON.

    `on_part` is called with every part of the answer when the job has it. Raise MillraceError with the job's
    own line.
    """
    check_master(invocation.master)
    if invocation.conf.get(submit.DEPLOY_MODE) == "cluster":
        raise ConfigError(
            f"--follow keeps its driver beside the command, which serves metrics and stops it: leave out"
            f" {submit.DEPLOY_MODE}=cluster"
        )
    # Topics share the cores, so that a small topic need not wait for the tasks of a big one.
    conf = {"spark.scheduler.mode": "FAIR", **invocation.conf}

    def show(line: str) -> None:
        say(line, err=invocation.as_json or not line.startswith("ready: "))
        sys.stdout.flush()

    with _stop_pipe(stop) as pipe, _from_the_first_step(show) as on_line:
        return submit.submit(
            name,
            dataclasses.asdict(request) | {"stop_pipe": pipe},
            master=invocation.master,
            on_line=on_line,
            on_part=on_part,
            conf=conf,
            archives=invocation.archives,
        )


@contextmanager
def _stop_pipe(stop: threading.Event) -> Iterator[str]:
    """Yield the path of a pipe that gets a byte when `stop` is set, and ends when this process does.

    A signal would end the driver's JVM at once.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-stop-") as folder:
        path = f"{folder}/pipe"
        os.mkfifo(path, 0o600)
        writing = os.open(path, os.O_RDWR)  # both, so that it opens without waiting for the driver

        def write() -> None:
            stop.wait()
            os.write(writing, b".")

        threading.Thread(target=write, name="stop", daemon=True).start()
        yield path


@contextmanager
def _from_the_first_step(on_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Hold back Spark's output while it starts. Show it if the job fails, without its own reason, before the
    first step.
    """
    held: collections.deque[str] = collections.deque(maxlen=100)
    begun = False

    def pass_on(line: str) -> None:
        nonlocal begun
        begun = begun or line.startswith("step: ")
        (on_line if begun else held.append)(line)

    try:
        yield pass_on
    except (submit.ExplainedFailure, KeyboardInterrupt):
        raise
    except BaseException:
        for line in () if begun else held:
            on_line(line)
        raise
