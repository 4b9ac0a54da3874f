"""Choice of kills and their count: SIGKILL at a random moment, counted only if it met a living process."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.trials.faultload.place import Place

KINDS = ("driver", "executor", "worker", "broker", "broker with its disk", "resident loader", "airflow task")
Strike = Callable[[], str | None]
"""Kills something; what it was, or None when there was nothing to kill."""


def kill(pid: int) -> bool:
    """SIGKILL; False when there is no such process any more, or only its entry."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Kills:
    """Counts what was killed; safe between threads."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.done: Counter[str] = Counter()
        self._lock, self._say = threading.Lock(), say

    def note(self, kind: str, what: str) -> None:
        """One more of a kind."""
        with self._lock:
            self.done[kind] += 1
        self._say(f"killed {what}")

    @property
    def total(self) -> int:
        """All of them."""
        with self._lock:
            return self.done.total()


class Saboteur:
    """Strikes once while something runs, at a moment drawn from the time such things take."""

    def __init__(self, place: Place, kill_loader: Strike, kills: Kills, chance: random.Random) -> None:
        self._place, self.kills, self._chance = place, kills, chance
        self._drivers: Callable[[], Mapping[str, int]] = dict
        self._pool = ThreadPoolExecutor(1, "saboteur")
        self._strikes: Mapping[str, Strike] = {
            "driver": self._driver,
            "executor": self._executor,
            "worker": self._worker,
            "broker": self._broker,
            "broker with its disk": self._broker_with_its_disk,
            "resident loader": kill_loader,
        }

    @contextmanager
    def during(
        self, kind: str | None, usual_s: float, drivers: Callable[[], Mapping[str, int]]
    ) -> Iterator[None]:
        """Kill one of `kind` while the block runs; `drivers` are the processes of the block's own driver."""
        if kind is None:
            yield
            return
        self._drivers = drivers
        ended = threading.Event()
        moment = self._chance.uniform(0, usual_s)
        struck = self._pool.submit(self._wait_and_strike, kind, moment, ended)
        try:
            yield
        finally:
            ended.set()
            struck.result()

    def _wait_and_strike(self, kind: str, moment: float, ended: threading.Event) -> None:
        if ended.wait(moment):
            return  # it was faster: a kill now would hit nothing that matters
        what = self._strikes[kind]()
        if what is not None:
            self.kills.note(kind, f"{what} after {moment:.1f} s")

    def _driver(self) -> str | None:
        drivers = dict(self._drivers())
        if not drivers:
            return None
        name = self._chance.choice(sorted(drivers))
        return f"the driver's {name}" if kill(drivers[name]) else None

    def _executor(self) -> str | None:
        jvms, pythons = self._place.spark.executors(), self._place.spark.python_workers()
        if self._chance.random() < 0.5 and pythons:
            return "an executor's Python" if kill(self._chance.choice(pythons)) else None
        return "an executor" if jvms and kill(self._chance.choice(jvms)) else None

    def _worker(self) -> str | None:
        workers: Sequence[int] = self._place.spark.workers
        if not workers:
            return None
        self._place.spark.kill_worker(self._chance.choice(workers))
        time.sleep(self._chance.uniform(0, 1.5))  # for so long the cluster has one worker less
        self._place.spark.restart_workers()
        return "a worker"

    def _broker(self) -> str | None:
        cluster = self._place.site.cluster
        number = self._chance.choice(sorted(cluster.brokers.keys() - self._place.gone))
        if not cluster.brokers[number].process.running:
            return None
        cluster.brokers[number].kill()
        cluster.restart(number)
        return f"broker {number}"

    def _broker_with_its_disk(self) -> str | None:
        """One at a time is what the topics' minimum allows. Its place stays empty for a moment, or until
        the next one is to go or a topic is created; the last may not be replaced at all.
        """
        self._place.replace_brokers()
        cluster = self._place.site.cluster
        number = self._chance.choice(sorted(cluster.brokers))
        cluster.brokers[number].kill()
        shutil.rmtree(cluster.directory(number))
        self._place.gone.add(number)
        if self._chance.random() < 0.5:
            time.sleep(self._chance.uniform(0, 4))  # ZooKeeper forgets it after 2 s
            self._place.replace_brokers()
        return f"broker {number} with its disk"
