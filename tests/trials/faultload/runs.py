"""Loads and publications, run until they are through: by the real commands, or loads in one application.

Every try of a run has the same run id, as a person or Airflow would repeat it. A try may end in any way while
processes are killed; what counts is that a later one succeeds, and what is in the warehouse then.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.errors import MillraceError
from tests.jobs import descendants
from tests.peers.spark_application import ApplicationGone, SparkApplication
from tests.peers.yarn import DRIVER, PYTHON
from tests.support import Process
from tests.trials.faultload.kills import Saboteur
from tests.trials.faultload.place import Place
from tests.trials.faultload.produced import HOURS

TRIES = 15
TIMEOUT_S = 300.0
"""For one try; the step that the tries are in has a limit of its own."""
USUAL_S: Mapping[str, float] = {"application": 4.0, "command": 14.0, "publish": 3.0}
"""Expected time of a run without faults; the real time is learnt on the way."""
CUT_BYTES = 20_000
"""Size limit that splits a partition into several tasks, some of them slower than others."""
ALL_HOURS = [f"2015-05-17T{10 + hour}" for hour in range(HOURS)]


class Failed(Exception):
    """A run did not get through, or something else is wrong; the text is the reason."""


class Application:
    """One driver that runs job after job; started anew whenever it is gone."""

    name = "application"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._running: SparkApplication | None = None
        self.starts = 0

    def run(self, job: str, settings: Mapping[str, Any]) -> Any:
        """The result of one job; MillraceError or ApplicationGone without one."""
        if self._running is None:
            self._running = SparkApplication(
                self._place.spark.master,
                {},
                self._place.folder / "drivers.log",
                environment=self._place.spark_environment,
            )
            self.starts += 1
        try:
            return self._running.run(job, settings, timeout_s=TIMEOUT_S)
        except ApplicationGone:
            self.close()
            raise

    def load(self, topics: Sequence[str], run_id: str) -> None:
        """Load the topics."""
        settings = {"topics": list(topics), "run_id": run_id, "cut_bytes": CUT_BYTES}
        self.run("load", {**settings, **self._place.sources(), "warehouse": str(self._place.warehouse)})

    def drivers(self) -> Mapping[str, int]:
        """Processes that a kill of the driver may hit."""
        running = self._running
        if running is None:
            return {}
        jvm = running.jvm()
        return {"Python": running.pid, **({} if jvm is None else {"JVM": jvm})}

    def close(self) -> None:
        """End the driver."""
        if self._running is not None:
            self._running.close()
            self._running = None


class Commands:
    """Everything by a command of its own: `millrace load`, `millrace publish`."""

    name = "command"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._running: Process | None = None

    def load(self, topics: Sequence[str], run_id: str) -> None:
        """Load the topics."""
        places = [word for key, value in self._place.sources().items() for word in (f"--{key}", value)]
        self._run("load", *topics, *places, *self._place.command_options, *self._into(run_id))

    def publish(self, topic: str, run_id: str) -> None:
        """Publish every hour of a topic."""
        hours = [word for hour in ALL_HOURS for word in ("--hour", hour)]
        self._run("publish", topic, *hours, "--unasked", *self._into(run_id))

    def drivers(self) -> Mapping[str, int]:
        """Processes that a kill of the driver may hit: the command, its JVM, the Python below the JVM."""
        running = self._running
        if running is None or not running.running:
            return {}
        found = {"command": running.pid}
        for pid in descendants(running.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"org.apache.spark.deploy.SparkSubmit" in words:
                found["JVM"] = pid
            elif len(words) > 1 and b"/millrace_spark/jobs/" in words[1]:
                found["Python"] = pid
        if self._place.yarn is not None:
            for name, word in (("JVM on YARN", DRIVER), ("Python on YARN", PYTHON)):
                if pids := self._place.yarn.containers(word):
                    found[name] = pids[0]
        return found

    def close(self) -> None:
        """Nothing runs between commands."""

    def _into(self, run_id: str) -> list[str]:
        return ["--warehouse", str(self._place.warehouse), "--run-id", run_id, "--json"]

    def _run(self, *arguments: str) -> None:
        process = self._running = Process(arguments, env=self._place.spark_environment)
        try:
            code = process.wait(timeout_s=TIMEOUT_S)
        finally:
            process.kill()
            self._running = None
        if code != 0:
            words = process.lines[-1] if process.lines else "no word"
            raise MillraceError(f"exit code {code}: {words[:300]}")


Way = Application | Commands


class Runs:
    """Runs one load or publication after the other, each repeated until it is through."""

    def __init__(self, saboteur: Saboteur, say: Callable[[str], None]) -> None:
        self._saboteur, self._say = saboteur, say
        self._usual_s = dict(USUAL_S)
        """The moment of a kill is drawn from it."""

    def load(self, way: Way, topics: Sequence[str], fault: str | None) -> None:
        """Load the topics, whatever it takes; Failed when it takes too much."""
        run_id = f"load-{uuid.uuid4().hex}"
        self._until_through(way, way.name, "load", fault, lambda: way.load(topics, run_id))

    def publish(self, way: Commands, topic: str, fault: str | None) -> None:
        """Publish every hour of a topic, likewise."""
        run_id = f"publish-{uuid.uuid4().hex}"
        self._until_through(way, "publish", "publish", fault, lambda: way.publish(topic, run_id))

    def _until_through(
        self, way: Way, usual: str, what: str, fault: str | None, attempt: Callable[[], None]
    ) -> None:
        reason = ""
        for number in range(TRIES):
            struck = fault if number == 0 else None
            began = time.monotonic()
            try:
                with self._saboteur.during(struck, self._usual_s[usual], way.drivers):
                    attempt()
            except (MillraceError, ApplicationGone) as error:
                reason = json.dumps(str(error))[1:200]
                self._say(f"{what} by {way.name} has to be repeated: {reason}")
                continue
            if fault is None:
                self._usual_s[usual] = (self._usual_s[usual] + time.monotonic() - began) / 2
            return
        raise Failed(f"{what} by {way.name} is not through after {TRIES} tries: {reason}")
