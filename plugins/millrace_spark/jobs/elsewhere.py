"""A job whose driver runs on a cluster. It is submitted once, and any command of the run can wait for it.

A command claims the run, submits a driver and waits. The driver works only while the run is its own. A
command that is killed leaves its driver running: the same command with the same run id waits for that
driver, on any machine. A command that is asked to stop (SIGTERM, Ctrl-C) ends its driver. The claim is
released once the answer was read. Depends on no particular job.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from millrace.errors import ConfigError, MillraceError
from millrace.security.client import VARIABLE
from millrace_spark.jobs.drivers import UNKNOWN, Driver, DriverFiles, DriverState, SentJob
from millrace_spark.jobs.standalone import Master
from millrace_spark.jobs.submit import DEFAULT_TIMEOUT, DEPLOY_MODE, SAY_AFTER_S, TIMEOUT, OnLine, result_in
from millrace_spark.jobs.yarn import Yarn
from millrace_warehouse.storage.hadoop_settings import CA_VARIABLE

POLL_S, LATER_POLL_S, LATER_S = 1.0, 5.0, 60.0
"""Seconds between two questions for a driver at first, and once the wait has taken LATER_S."""
PATIENCE_S = 300.0
"""Longest time without an answer from the cluster while a driver is waited for."""
UNKNOWN_S = 30.0
"""Seconds for which a driver must be unknown to its cluster before that is believed."""
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_INHERITED = (VARIABLE, CA_VARIABLE, "MILLRACE_SUBJECTS", "HADOOP_USER_NAME", "AWS_", "GOOGLE_", "AZURE_")
"""Prefixes of the variables that a driver inherits."""


def submit(
    job: str,
    settings: Mapping[str, Any],
    *,
    master: str,
    on_line: OnLine,
    conf: Mapping[str, str],
    archives: Sequence[str] = (),
) -> Any:
    """Run a job like `submit.submit`, but with the driver on the cluster. If the run already has a driver,
    wait for it.
    """
    run = _DriverRun(job, settings, _cluster(master, conf, archives), on_line, _timeout_s(conf))
    return run.result({key: conf[key] for key in conf if key != DEPLOY_MODE})


def _cluster(master: str, conf: Mapping[str, str], archives: Sequence[str]) -> Master | Yarn:
    if master == "yarn":
        return Yarn(archives)
    if not master.startswith("spark://"):
        raise ConfigError(
            f"{DEPLOY_MODE}=cluster is for --master yarn or spark://HOST:PORT, not for {master}: leave it"
            " out, then the driver runs where the command runs"
        )
    if archives:
        raise ConfigError(
            f"--archives does not go with {DEPLOY_MODE}=cluster on {master}, whose driver would not have it:"
            " install Millrace on every machine of the cluster, under the same path"
        )
    return Master(master, conf)


def _timeout_s(conf: Mapping[str, str]) -> float:
    text = conf.get(TIMEOUT, DEFAULT_TIMEOUT)
    if (time_ := re.fullmatch(r"(\d+)(ms|s|m|min|h|d)?", text.strip().lower())) is None:
        raise ConfigError(f"{TIMEOUT}={text} is not a time like 90s, 10m or 1h")
    return int(time_[1]) * _SECONDS[time_[2] or "s"]


class _DriverRun:
    def __init__(
        self, job: str, settings: Mapping[str, Any], cluster: Master | Yarn, on_line: OnLine, timeout_s: float
    ) -> None:
        """`timeout_s` limits the wait for the driver's start."""
        self._job, self._settings, self._cluster = job, settings, cluster
        self._on_line, self._timeout_s = on_line, timeout_s
        self._files = DriverFiles(settings)
        asked = [job, {key: settings[key] for key in sorted(settings) if key != "registry"}]
        self._asked = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
        self._run_id = f"--run-id {settings['run_id']}"

    def result(self, conf: Mapping[str, str]) -> Any:
        """Wait for the run's driver, or for a new one, and return its result.

        Raise ExplainedFailure with the driver's own line, or MillraceError without an answer.
        """
        driver = self._files.claimed()
        try:
            if driver is None or not self._is_left(driver):
                driver = Driver(attempt=uuid.uuid4().hex[:12], asked=self._asked)
                self._begin(driver, conf)
            state = self._ended(driver)
        except MillraceError:
            raise
        except BaseException:  # asked to stop
            if driver is not None:
                self._end(driver)
            raise
        answer, name = self._files.answer(driver), self._files.id_of(driver)
        self._say(f"driver {name} has ended as {state.word}: its output is {state.output}")
        if answer is not None or state.word != UNKNOWN:
            self._files.release(driver)
        if answer is None:
            raise MillraceError(
                f"driver {name} ended as {state.word} without an answer{state.reason}: see its output"
                f" {state.output}, and run again with {self._run_id} to go on"
            )
        return result_in(answer)

    def _is_left(self, driver: Driver) -> bool:
        """Return True for a driver that an earlier command has left and that this command may wait for.

        Otherwise end the driver.
        """
        if driver.asked == self._asked:
            state = self._state(driver)
            if not state.ended or "result" in (self._files.answer(driver) or ()):
                name = self._files.id_of(driver)
                self._say(f"an earlier command has left driver {name} ({state.word}); waiting for it")
                return True
        self._cluster.kill(self._files.id_of(driver))
        self._files.release(driver)
        return False

    def _begin(self, driver: Driver, conf: Mapping[str, str]) -> None:
        """Claim the run and submit its driver.

        Raise MillraceError if another command of this run was first, or if the cluster takes no driver.
        """
        self._files.sweep()
        if not self._files.claim(driver):
            raise MillraceError(
                f"run {self._settings['run_id']} was begun by another command at this moment: run again to"
                " wait for it"
            )
        sent = SentJob(
            job=self._job,
            settings=self._settings,
            conf=conf,
            environment={key: os.environ[key] for key in os.environ if key.startswith(_INHERITED)},
            driver=driver,
        )
        try:
            name = self._cluster.submit(sent)
        except MillraceError:
            with suppress(MillraceError):
                self._cluster.kill(driver.tag)  # YARN may have accepted it all the same
            self._files.release(driver)
            raise
        if name is not None:
            with suppress(MillraceError):  # the driver notes it, too
                self._files.give_id(driver, name)
        self._say(f"driver {name or driver.tag} is submitted; {self._run_id} waits for it again")

    def _end(self, driver: Driver) -> None:
        with suppress(PermissionError):
            os.setsid()  # Airflow kills a job's process group soon after SIGTERM
        try:
            self._cluster.kill(self._files.id_of(driver))
            self._files.release(driver)
        except MillraceError as error:
            self._say(f"the driver may still run: {error}")

    def _ended(self, driver: Driver) -> DriverState:
        """Wait for the driver's end. Raise MillraceError, and end it, if it has not started in time."""
        began = heard = started = time.monotonic()
        said = False
        while True:
            try:
                state = self._state(driver)
            except MillraceError as error:
                if time.monotonic() - heard > PATIENCE_S:
                    raise MillraceError(
                        f"{error}; the driver may still run: run again with {self._run_id} to wait for it"
                    ) from None
            else:
                heard = time.monotonic()
                if state.ended:
                    return state
                started = started if state.waiting else heard
                if heard - started >= self._timeout_s:
                    self._give_up(driver, state)
                if heard - started >= SAY_AFTER_S and not said:
                    said = True
                    self._say(
                        f"the driver has not started for {SAY_AFTER_S:.0f} s ({state.word}){state.reason};"
                        f" waiting for it, at most {self._timeout_s:.0f} s (--conf {TIMEOUT}=TIME)"
                    )
            time.sleep(POLL_S if time.monotonic() - began < LATER_S else LATER_POLL_S)

    def _give_up(self, driver: Driver, state: DriverState) -> NoReturn:
        self._cluster.kill(self._files.id_of(driver))
        self._files.release(driver)
        raise MillraceError(
            f"the cluster has not started the driver within {self._timeout_s:.0f} s"
            f" ({state.word}){state.reason}: check that one of its machines has the cores and the memory for"
            f" it, or let it wait longer with --conf {TIMEOUT}=TIME; {self._run_id} goes on with the run"
        )

    def _state(self, driver: Driver) -> DriverState:
        """Return a driver's state. UNKNOWN means that the cluster does not know it for UNKNOWN_S.

        The driver may not be submitted yet, or its id not noted. Its answer needs no state.
        """
        began = time.monotonic()
        while True:
            state = self._cluster.state(self._files.id_of(driver))
            waited = time.monotonic() - began > UNKNOWN_S
            if state.word != UNKNOWN or waited or self._files.answer(driver) is not None:
                return state
            time.sleep(POLL_S)

    def _say(self, text: str) -> None:
        self._on_line(f"step: {self._job}: {text}")
