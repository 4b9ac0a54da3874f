"""Problems that keep a broker from its work, in a line each."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError

from millrace_broker.partitions.broker import Broker

LOOP_TIMEOUT_S = 1.0
FLUSH_TIMEOUT_S = 10.0
"""Time of a flush after which the disk counts as hanging: then producers wait and consumers see
nothing new."""
MAX_LOGS = 10
"""Most failed partitions that are named."""


def problems(broker: Broker) -> list[str]:
    """Return all problems that keep the broker from its work; empty for a healthy broker. Takes at most a
    second.

    The loop, the ZooKeeper session, the flush threads and every log are checked. From any thread.
    """
    problems = []
    try:
        broker.mailbox.call(lambda: None).result(LOOP_TIMEOUT_S)
    except (TimeoutError, CancelledError):
        problems.append(f"the broker's loop has not answered within {LOOP_TIMEOUT_S:.0f} s")
    if not broker.cluster.session.client.connected:
        problems.append("not connected to ZooKeeper")
    since = broker.flushes.since
    seconds = 0.0 if since is None else time.monotonic() - since
    if seconds > FLUSH_TIMEOUT_S:
        problems.append(f"a flush has taken {seconds:.0f} s so far")
    return problems + _failed_logs(broker)


def _failed_logs(broker: Broker) -> list[str]:
    failed = [f"{topic}-{number}: {why}" for (topic, number), why in broker.failed.items()]
    for partition in broker.partitions.values():
        if partition.log.refusal is not None:
            failed.append(f"{partition.name}: {partition.log.refusal}")
    rest = len(failed) - MAX_LOGS
    return [*failed[:MAX_LOGS], f"and {rest} partitions more"] if rest > 0 else failed
