"""Windows without any fault while everything is killed: no verdict may ever be `incomplete`.

There are two topics, one with audit headers in values and one with record headers. Of each, one producer in
each datacenter goes through the windows in order and closes them; loads run all the time. SIGKILL comes to
brokers, readers, mirror, auditor, registry, ZooKeeper and loads at random moments, some at once; whatever is
killed is started again. A watcher asks the auditor all the time. In the end every window is complete, with as
many messages as were acknowledged.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import cycle, islice, product

from millrace.errors import MillraceError
from millrace_audit.answer import Verdict, Window, utc
from millrace_audit.client import completeness
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.ranges import size
from tests.support import Process, wait_until
from tests.trials.faultaudit.place import LOAD_S, ORIGINS, PAGE_VIEW, WITHOUT_HEADER, Place
from tests.trials.faultaudit.stage import EVENT, START

TOPICS = {"clean": PAGE_VIEW, "clean-record-header": WITHOUT_HEADER}
"""Each topic with its schema."""
EVENTS = 5
"""In each window of a topic and datacenter."""
OF_AN_INSTANCE = 40
"""Windows that one producer instance goes through, as when a service is deployed now and then."""
PACE_S = 0.5
"""For each window: everything is killed several times in a thousand."""
RETRY_S = 0.5
ALIVE_S, AWAY_S = (1.0, 5.0), (0.0, 2.0)
"""Between two rounds of kills, and before what was killed is started again."""
LOAD = "a load"
SETTLED_S = 600.0


class FalseAlarm(Exception):
    """A window in which nothing is wrong is not, or no longer, on its way to be complete."""


class _Ended(Exception):
    """The run has ended before its traffic."""


class CleanWindows:
    """One run."""

    def __init__(self, place: Place, windows: int, chance: random.Random, say: Callable[[str], None]) -> None:
        self._place, self._windows, self._chance, self._say = place, windows, chance, say
        self._stop = threading.Event()
        self._acknowledged: Counter[str] = Counter()
        self._through = dict.fromkeys(product(ORIGINS, TOPICS), 0)
        self._load: Process | None = None
        self._problems: list[str] = []
        self.kills: Counter[str] = Counter()
        self.alarms: dict[tuple[str, datetime], str] = {}
        """Topic and start of a window -> what was said of it when it was incomplete."""

    def run(self) -> int:
        """Return the number of windows complete in the end; raise FalseAlarm unless all of them are."""
        with self._threads(*(self._traffic(*where) for where in self._through), self._watch, self._loads):
            while not all(through == self._windows for through in self._through.values()):
                self._kill_some()
                if self._problems:
                    raise FalseAlarm(self._problems[0])
            self._say("all is sent: no more kills")
        if self._problems:
            raise FalseAlarm(self._problems[0])
        for topic in TOPICS:
            self._place.load(topic)
        with suppress(AssertionError):
            wait_until("every window is complete", self._is_complete, timeout_s=SETTLED_S)
        found = [window for _, window in self._ask()]
        open_ones = [window for window in found if window.verdict != Verdict.COMPLETE]
        if open_ones:
            raise FalseAlarm(f"{len(open_ones)} windows are not complete, the first: {open_ones[0]}")
        counted, sent = sum(window.acknowledged for window in found), sum(self._acknowledged.values())
        if counted != sent:
            raise FalseAlarm(f"{sent} messages were acknowledged, the windows have {counted}")
        return len(found)

    @contextmanager
    def _threads(self, *work: Callable[[], None]) -> Iterator[None]:
        """All of these at work until the block ends, however it ends; what ends one of them is a problem."""

        def guarded(each: Callable[[], None]) -> None:
            try:
                with suppress(_Ended):
                    each()
            except Exception as error:
                self._problems.append(f"{each.__name__}: {error!r}")

        threads = [threading.Thread(target=guarded, args=[each], daemon=True) for each in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            if self._load is not None:
                self._load.kill()  # it may wait for what is not started again
            for thread in threads:
                thread.join()

    # Traffic and loads

    def _traffic(self, cluster: str, topic: str) -> Callable[[], None]:
        def traffic() -> None:
            windows = iter(range(self._windows))
            while some := list(islice(windows, OF_AN_INSTANCE)):
                self._one_instance(cluster, topic, some)

        return traffic

    def _one_instance(self, cluster: str, topic: str, windows: Sequence[int]) -> None:
        producer = self._place.producer(cluster, config={}, report_interval_s=0.5)
        for window in windows:
            start = START + window * WINDOW_MS
            for number in range(EVENTS):
                self._send(producer, topic, start + number * WINDOW_MS // EVENTS)
            producer.closed_through(start + WINDOW_MS)
            self._through[cluster, topic] = window
            time.sleep(PACE_S)
        self._again(producer.close)
        (delivered,) = producer.delivered()
        self._acknowledged[cluster] += size(delivered.acknowledged)
        self._through[cluster, topic] = windows[-1] + 1

    def _send(self, producer: AuditedProducer, topic: str, time_ms: int) -> None:
        event = {**EVENT, "url": "/"}
        self._again(lambda: producer.send(topic, None, event, time_ms=time_ms))

    def _again(self, what: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                what()
                return
            except MillraceError as error:  # somebody is away: nothing was sent, or it is sent again
                self._say(f"producer: {error}")
                time.sleep(RETRY_S)
        raise _Ended

    def _loads(self) -> None:
        for topic in cycle(TOPICS):
            if self._stop.is_set():
                return
            self._load = self._place.start_load(topic)
            code = self._load.wait(timeout_s=LOAD_S)
            if code > 0:  # brokers or registry were away
                self._say(f"load: {self._load.lines[-1:]}")

    # Kills

    def _kill_some(self) -> None:
        time.sleep(self._chance.uniform(*ALIVE_S))
        everything = [*self._place.names, LOAD]
        in_turn = sorted(everything, key=lambda name: (self.kills[name], self._chance.random()))
        victims = in_turn[: self._chance.choice((1, 1, 2, 3))]
        for name in victims:
            if name == LOAD and self._load is not None:
                self._load.kill()
            elif name != LOAD:
                self._place.kill(name)
            self.kills[name] += 1
        time.sleep(self._chance.uniform(*AWAY_S))
        for name in sorted(set(victims) - {LOAD}, key=everything.index):
            self._place.restart(name)
        for name in self._place.names:
            process = self._place.processes[name]
            if not process.running:
                self._problems.append(f"{name} has ended by itself:\n{process.output[-2000:]}")
        self._say(f"killed {', '.join(victims)}; sent {min(self._through.values())} of {self._windows}")

    # Verdicts

    def _watch(self) -> None:
        while not self._stop.is_set():
            with suppress(MillraceError):  # it is killed at the moment
                for topic, window in self._ask():
                    if window.verdict == Verdict.INCOMPLETE:
                        self.alarms.setdefault((topic, window.start), str(window))
            self._stop.wait(RETRY_S)

    def _ask(self) -> Iterator[tuple[str, Window]]:
        """Each window with its topic."""
        end = utc(START + self._windows * WINDOW_MS)
        for topic in TOPICS:
            for window in completeness(self._place.auditor_url, topic, utc(START), end).windows:
                yield topic, window

    def _is_complete(self) -> bool:
        with suppress(MillraceError):
            return all(window.verdict == Verdict.COMPLETE for _, window in self._ask())
        return False
