"""Drivers that run on a cluster: their states, the jobs that are sent to them, and their files.

A run's commands and drivers agree through files of the warehouse:

    .drivers/<run id>.claim      the attempt that may work; created exclusively
             <attempt>.driver    the cluster's id of its driver; created exclusively
             <attempt>.answer    its driver's answer
"""

from __future__ import annotations

import base64
import dataclasses
import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import decode, encode
from millrace_warehouse.history.plan import name_of_run
from millrace_warehouse.storage import Storage, open_storage

DRIVERS = ".drivers"
"""The folder of drivers in the warehouse. No topic's name begins with a dot."""
KEEP_S = 7 * 24 * 3600.0
"""Seconds for which a driver's files stay: any command may still wait for its answer."""
UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class DriverState:
    """A driver's state, as its cluster reports it."""

    word: str
    """The cluster's name of the state, or UNKNOWN for an unknown driver."""
    ended: bool = False
    """True also for an unknown driver."""
    waiting: bool = False
    """True while the cluster has no place for the driver yet."""
    output: str = ""
    """Place of the driver's output, in words."""
    reason: str = ""
    """The cluster's own explanation, in parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One attempt to run a job on a cluster."""

    attempt: str
    asked: str
    """Hash of the job and its settings, without URLs that may hold passwords."""

    @property
    def tag(self) -> str:
        """The driver's id on YARN. A master gives its drivers ids of its own."""
        return f"millrace-{self.attempt}"

    def path(self, kind: str) -> str:
        return f"{DRIVERS}/{self.attempt}.{kind}"


class DriverFiles:
    """The files of a run's drivers."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._storage: Storage = open_storage(settings["warehouse"])
        self._claim = f"{DRIVERS}/{name_of_run(settings['run_id'])}.claim"

    def claim(self, driver: Driver) -> bool:
        """Return True if the run is this driver's now, False if it is another's."""
        return self._storage.create(self._claim, encode(driver))

    def claimed(self) -> Driver | None:
        """Return the driver whose run it is."""
        text = self._read(self._claim)
        return decode(Driver, text, self._claim) if text else None

    def release(self, driver: Driver) -> None:
        """Let another driver claim the run, if it is this driver's. The answer stays."""
        if self.claimed() == driver:
            self._storage.delete(self._claim)
        self._storage.delete(driver.path("driver"))

    def give_id(self, driver: Driver, id_: str) -> bool:
        """Note the cluster's id of the driver. Return False if it has another id."""
        return self._storage.create(driver.path("driver"), id_.encode())

    def id_of(self, driver: Driver) -> str:
        """Return the cluster's id of the driver, or its tag while no id is noted."""
        return self._read(driver.path("driver")).decode() or driver.tag

    def answer(self, driver: Driver) -> Any:
        """Return the driver's answer, or None without one."""
        return json.loads(self._read(driver.path("answer")) or "null")

    def sweep(self) -> None:
        """Delete old files of all runs."""
        for file in self._storage.files(DRIVERS):
            if time.time() - file.modified > KEEP_S:
                self._storage.delete(f"{DRIVERS}/{file.path}")

    def _read(self, path: str) -> bytes:
        try:
            return self._storage.read(path)
        except FileNotFoundError:
            return b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentJob:
    """A job on its way to its driver. It may contain passwords."""

    job: str
    settings: Mapping[str, Any]
    conf: Mapping[str, str]
    environment: Mapping[str, str] = field(repr=False)
    """Variables of the command that the driver needs."""
    driver: Driver

    @classmethod
    def unpacked(cls, text: str) -> SentJob:
        fields = json.loads(zlib.decompress(base64.b64decode(text)))
        return cls(**fields | {"driver": Driver(**fields["driver"])})

    def packed(self) -> str:
        """Pack the job for an environment variable. Unpacked, a year of hours would be too long."""
        return base64.b64encode(zlib.compress(json.dumps(dataclasses.asdict(self)).encode())).decode()

    def begin(self, id_: str) -> None:
        """Note the id of this driver. Raise MillraceError if its run is another driver's."""
        files = DriverFiles(self.settings)
        # In this order: a command that takes the run away afterwards finds the id, and ends this driver.
        if not files.give_id(self.driver, id_) or files.claimed() != self.driver:
            raise MillraceError(
                f"run {self.settings['run_id']} is another driver's by now, or was stopped: driver {id_} ends"
            )

    def reply(self, line: str) -> None:
        """Write the answer for the waiting command."""
        open_storage(self.settings["warehouse"]).create(self.driver.path("answer"), line.encode())
