"""Traffic that never stops, and the memory of it: which sequences were handed over, and what became of them.

Each service is a thread with one AuditedProducer after the other; a new instance begins every now and then,
as when a service is deployed. What a warehouse may hold is what was handed over; what it must hold in the end
is what was acknowledged.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace_audit.producer import AuditedProducer, DeliveryFailed
from tests.warehouses import EMPTY_EVENT, HOUR_MS

START_MS = 1_431_856_800_000
"""2015-05-17T10:00:00Z."""
HOURS = 4
PAUSE_S = 0.25
BURST = 6
"""Events of one topic at a time, spread over all hours: every load has late rows of each."""
INSTANCE_S = (40.0, 90.0)
CLOSE_TRIES = 10
Instance = tuple[str, int]
"""Topic and instance."""


@dataclass(slots=True)
class Handed:
    """One instance's sequences of one topic."""

    server: str
    count: int = 0
    """Handed over: 0 to count - 1. Raised before an event is sent, so never less than what may be there."""
    acknowledged: set[int] = field(default_factory=set)


class Ledger:
    """Everything that was produced; safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handed: dict[Instance, Handed] = {}

    def hand_over(self, topic: str, instance: int, server: str) -> None:
        """One more event is about to be sent."""
        with self._lock:
            self._handed.setdefault((topic, instance), Handed(server)).count += 1

    def take_back(self, topic: str, instance: int) -> None:
        """The last one was refused and not sent; its number is used again."""
        with self._lock:
            self._handed[topic, instance].count -= 1

    def settle(self, producer: AuditedProducer) -> None:
        """Note what a closed producer knows of its events."""
        with self._lock:
            for each in producer.delivered():
                handed = self._handed[each.topic, producer.instance]
                for first, last in each.acknowledged:
                    handed.acknowledged.update(range(first, last + 1))

    def foreign(self, topic: str, instance: int, server: str, sequences: set[int]) -> set[int]:
        """Those sequences that nobody has handed over."""
        with self._lock:
            handed = self._handed.get((topic, instance))
            if handed is None or handed.server != server:
                return sequences
            return {each for each in sequences if not 0 <= each < handed.count}

    def acknowledged(self, topic: str) -> dict[int, set[int]]:
        """Return the sequences that must be there, by instance."""
        with self._lock:
            return {
                instance: set(handed.acknowledged)
                for (name, instance), handed in self._handed.items()
                if name == topic
            }

    def totals(self) -> tuple[int, int]:
        """Events handed over, and those of them that are acknowledged."""
        with self._lock:
            handed = list(self._handed.values())
        return sum(each.count for each in handed), sum(len(each.acknowledged) for each in handed)


class Traffic:
    """One service that produces to every topic there is; a thread, from `start` to `stop`."""

    def __init__(
        self,
        ledger: Ledger,
        make: Callable[[str], AuditedProducer],
        topics: Sequence[str],
        server: str,
        chance: random.Random,
        say: Callable[[str], None],
    ) -> None:
        """`topics` may grow while it runs."""
        self._ledger, self._make, self._topics = ledger, make, topics
        self._server, self._chance, self._say = server, chance, say
        self._stop = threading.Event()
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"traffic-{server}", daemon=True)

    def start(self) -> Traffic:
        """Begin."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Send no more, and wait until everything has its outcome."""
        self._stop.set()
        self._thread.join(CLOSE_TRIES * 150)
        if self._thread.is_alive():
            self.problem = self.problem or f"traffic of {self._server} does not end"

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._one_instance()
        except Exception as error:  # must not vanish with the thread
            self.problem = f"traffic of {self._server} failed: {error!r}"

    def _one_instance(self) -> None:
        producer = self._make(self._server)
        left = int(self._chance.uniform(*INSTANCE_S) / PAUSE_S)
        while left > 0 and not self._stop.is_set():
            left -= 1
            for topic in list(self._topics):
                for _ in range(self._chance.randint(0, BURST)):
                    self._send(producer, topic)
            self._stop.wait(PAUSE_S)
        self._close(producer)

    def _send(self, producer: AuditedProducer, topic: str) -> None:
        time_ms = START_MS + self._chance.randrange(HOURS * HOUR_MS)
        self._ledger.hand_over(topic, producer.instance, self._server)
        try:
            producer.send(topic, topic, EMPTY_EVENT, time_ms=time_ms)
        except MillraceError as error:  # its hello found no broker: nothing was sent
            self._ledger.take_back(topic, producer.instance)
            self._say(f"producer {self._server}: {error}")
            self._stop.wait(1)

    def _close(self, producer: AuditedProducer) -> None:
        for _ in range(CLOSE_TRIES):
            try:
                producer.close()
                break
            except DeliveryFailed as error:
                self._say(f"producer {self._server}: {error}")
            except MillraceError as error:  # its last report did not get through: closing again sends it
                self._say(f"producer {self._server}: {error}")
        self._ledger.settle(producer)
