"""A job whose driver runs on a standalone cluster. It is submitted once, and any command of the run can wait
for it.

The warehouse holds the run's driver, under the run's name, and the driver's answer:

    .drivers/<run id>/driver.json       the driver; created exclusively
                      <attempt>.json    its answer

A command that is killed leaves its driver running. The same command with the same run id waits for that
driver, on any machine. A command that is asked to stop (SIGTERM, Ctrl-C) ends its driver. Both files are
deleted once the answer was read. Depends on no particular job.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import sys
import time
import uuid
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import millrace_spark
from millrace.errors import ConfigError, MillraceError
from millrace.security.client import VARIABLE
from millrace_spark.jobs.standalone import DriverState, Master
from millrace_spark.jobs.submit import DEPLOY_MODE, FAST_START, ExplainedFailure, OnLine
from millrace_warehouse.history.manifest import decode, encode
from millrace_warehouse.history.plan import name_of_run
from millrace_warehouse.storage import Storage, open_storage

SENT = "MILLRACE_SENT_JOB"
"""Environment variable with a driver's job, which may contain passwords."""
DRIVERS = ".drivers"
"""The folder of drivers in the warehouse. No topic's name begins with a dot."""
KEEP_S = 7 * 24 * 3600.0
"""Seconds for which a driver's files stay if no command asks for them."""
POLL_S = 1.0
PATIENCE_S = 300.0
"""Longest time without an answer from the master while a driver is waited for."""
_INHERITED = (VARIABLE, "MILLRACE_SUBJECTS", "HADOOP_USER_NAME", "AWS_", "GOOGLE_", "AZURE_")
"""Prefixes of the variables that a driver inherits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver of a run."""

    driver: str
    """The master's id of the driver."""
    attempt: str
    asked: str
    """Hash of the job and its settings, without URLs that may hold passwords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A driver's job, as its environment holds it."""

    settings: Mapping[str, Any]
    conf: Mapping[str, str]
    answer: str
    """Path of the driver's answer in the warehouse of `settings`."""

    @classmethod
    def take(cls) -> SentJob:
        """Remove this process's job from the environment, which child processes inherit. Return it."""
        return cls(**json.loads(zlib.decompress(base64.b64decode(os.environ.pop(SENT)))))

    def packed(self) -> str:
        """Pack the job for the environment variable. Unpacked, a year of hours would be too long."""
        return base64.b64encode(zlib.compress(json.dumps(dataclasses.asdict(self)).encode())).decode()

    def reply(self, line: str) -> None:
        """Write the answer for the waiting command."""
        open_storage(self.settings["warehouse"]).create(self.answer, line.encode())


def submit(
    job: str, settings: Mapping[str, Any], *, master: str, on_line: OnLine, conf: Mapping[str, str]
) -> Any:
    """Run a job like `submit.submit`, but with the driver on the cluster. If the run already has a driver,
    wait for it.
    """
    if not master.startswith("spark://"):
        raise ConfigError(
            f"{DEPLOY_MODE}=cluster is for --master spark://HOST:PORT, not for {master}: leave it out,"
            " then the driver runs where the command runs"
        )
    run = _DriverRun(job, settings, Master(master, conf), on_line)
    driver = run.resume() or run.begin({key: conf[key] for key in conf if key != DEPLOY_MODE})
    return run.wait(driver)


class _DriverRun:
    def __init__(self, job: str, settings: Mapping[str, Any], master: Master, on_line: OnLine) -> None:
        self._job, self._settings, self._master = job, settings, master
        self._on_line = on_line
        self._storage: Storage = open_storage(settings["warehouse"])
        self._folder = f"{DRIVERS}/{name_of_run(settings['run_id'])}"
        asked = [job, {key: settings[key] for key in sorted(settings) if key != "registry"}]
        self._asked = hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def resume(self) -> Driver | None:
        """Return the driver of an earlier command of this run, if it still runs or has succeeded."""
        path = f"{self._folder}/driver.json"
        try:
            left = decode(Driver, self._storage.read(path), path)
        except FileNotFoundError:
            return None
        state = self._master.state(left.driver)
        runs = not (state.ended or state.unknown)
        if left.asked == self._asked and (runs or "result" in (self._answer(left) or ())):
            self._say(f"an earlier command has left driver {left.driver} ({state.word}); waiting for it")
            return left
        if runs:  # it has other work, for which no command waits any more
            self._master.kill(left.driver)
        self._storage.delete(self._folder)
        return None

    def begin(self, conf: Mapping[str, str]) -> Driver:
        """Submit a driver and store its id. Raise MillraceError if another command of this run was first."""
        _sweep(self._storage)
        attempt = uuid.uuid4().hex[:12]
        sent = SentJob(settings=self._settings, conf=conf, answer=f"{self._folder}/{attempt}.json")
        name = self._master.submit(
            f"millrace {self._job}",
            [str(Path(millrace_spark.__path__[0], "jobs", "script.py")), self._job],
            {"spark.driver.extraJavaOptions": FAST_START} | _driver_settings(conf),
            _environment(conf) | {SENT: sent.packed()},
        )
        driver = Driver(driver=name, attempt=attempt, asked=self._asked)
        try:
            is_first = self._storage.create(f"{self._folder}/driver.json", encode(driver))
        except BaseException:  # also a request to stop: no command would find the driver again
            self._master.kill(name)
            raise
        if not is_first:
            self._master.kill(name)
            raise MillraceError(
                f"run {self._settings['run_id']} was begun by another command at this moment: run again to"
                " wait for it"
            )
        self._say(f"driver {name} is submitted; --run-id {self._settings['run_id']} waits for it again")
        return driver

    def wait(self, driver: Driver) -> Any:
        """Return the driver's result.

        Raise ExplainedFailure with the driver's own line, or MillraceError when it left no answer.
        """
        try:
            state = self._ended(driver)
        except MillraceError as error:
            raise MillraceError(
                f"{error}; driver {driver.driver} may still run: run again with --run-id"
                f" {self._settings['run_id']} to wait for it"
            ) from None
        except BaseException:  # asked to stop
            with suppress(MillraceError):
                self._master.kill(driver.driver)
                self._storage.delete(self._folder)
            raise
        place = f"driver {driver.driver} on {state.worker or 'a worker'}"
        self._say(f"{place} has ended as {state.word}: its output is on that worker's page")
        answer = self._answer(driver)
        self._storage.delete(self._folder)
        if answer is None:
            raise MillraceError(
                f"{place} ended as {state.word} without an answer: see its output on that worker's page"
            )
        if "error" in answer:
            raise (MillraceError if answer.get("unforeseen") else ExplainedFailure)(answer["error"])
        return answer["result"]

    def _ended(self, driver: Driver) -> DriverState:
        heard = time.monotonic()
        while True:
            try:
                state = self._master.state(driver.driver)
            except MillraceError:
                if time.monotonic() - heard > PATIENCE_S:
                    raise
            else:
                heard = time.monotonic()
                if state.ended or state.unknown:
                    return state
            time.sleep(POLL_S)

    def _say(self, text: str) -> None:
        self._on_line(f"step: {self._job}: {text}")

    def _answer(self, driver: Driver) -> Any:
        try:
            return json.loads(self._storage.read(f"{self._folder}/{driver.attempt}.json"))
        except FileNotFoundError:
            return None


def _driver_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a JVM needs at its start. The worker puts them on its command line."""
    return {key: value for key, value in conf.items() if key.startswith("spark.driver.")}


def _environment(conf: Mapping[str, str]) -> dict[str, str]:
    travel = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
    python = {"PYSPARK_PYTHON": conf.get("spark.pyspark.python", sys.executable)}
    return {**travel, **python, "PYSPARK_DRIVER_PYTHON": sys.executable}


def _sweep(storage: Storage) -> None:
    """Delete files of drivers that no command has asked for since."""
    for file in storage.files(DRIVERS):
        if time.time() - file.modified > KEEP_S:
            storage.delete(f"{DRIVERS}/{file.path}")
