"""Whether a broker does its work: what keeps it from it, in a line each."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError

from millrace.broker.broker import Broker

LOOP_TIMEOUT_S = 1.0
FLUSH_TIMEOUT_S = 10.0
"""A flush that takes longer is a disk that hangs: producers wait and consumers see nothing new."""
MAX_LOGS = 10
"""Failed partitions that are named."""


class Health:
    """Asks the loop, the ZooKeeper session, the flush threads and every log; from any thread."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def problems(self) -> list[str]:
        """Everything that is wrong; empty for a healthy broker. Takes a second at the most."""
        return [*self._loop(), *self._zookeeper(), *self._flush(), *self._logs()]

    def _loop(self) -> list[str]:
        try:
            self._broker.mailbox.call(lambda: None).result(LOOP_TIMEOUT_S)
        except (TimeoutError, CancelledError):
            return [f"the broker's loop has not answered within {LOOP_TIMEOUT_S:.0f} s"]
        return []

    def _zookeeper(self) -> list[str]:
        if self._broker.cluster.session.client.connected:
            return []
        return ["not connected to ZooKeeper"]

    def _flush(self) -> list[str]:
        since = self._broker.flushes.since
        seconds = 0.0 if since is None else time.monotonic() - since
        return [f"a flush has taken {seconds:.0f} s so far"] if seconds > FLUSH_TIMEOUT_S else []

    def _logs(self) -> list[str]:
        failed = [f"{topic}-{number}: {why}" for (topic, number), why in self._broker.failed.items()]
        for partition in self._broker.partitions.values():
            if partition.log.refusal is not None:
                failed.append(f"{partition.name}: {partition.log.refusal}")
        rest = len(failed) - MAX_LOGS
        return [*failed[:MAX_LOGS], f"and {rest} partitions more"] if rest > 0 else failed
