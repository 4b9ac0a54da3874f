"""The mirror inside a broker: a puller for every topic of every origin it is told to copy.

The 2011 paper's embedded consumers. The broker hands in how to append; nothing here knows the broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from millrace.cluster import Cluster
from millrace.config import OriginConfig
from millrace.mirror.puller import MirrorTarget, TopicPuller
from millrace.mirror.states import MirrorStates

STOP_SECONDS = 2.0


class Mirror:
    """Every puller of one broker, each in a thread of its own: one that waits holds up no other."""

    def __init__(
        self, origins: Mapping[str, OriginConfig], broker_id: int, cluster: Cluster, target: MirrorTarget
    ) -> None:
        self.states = MirrorStates()
        self._pullers = [
            TopicPuller(name, origin, topic, broker_id, cluster, target, self.states, pulls=pulls)
            for name, origin in origins.items()
            for topics, pulls in ((origin.topics, True), (origin.batch_topics, False))
            for topic in topics
        ]
        self._threads: list[threading.Thread] = []
        cluster.on_change(self._wake)

    def start(self) -> None:
        """Begin to copy; call it once the broker can take appends."""
        for puller in self._pullers:
            # Daemons: an origin that does not answer must not keep a stopped broker alive.
            thread = threading.Thread(target=puller.run, name=f"mirror {puller.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop copying; a thread that waits for an origin is left behind, it appends nothing any more."""
        for puller in self._pullers:
            puller.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _wake(self) -> None:
        for puller in self._pullers:
            puller.wake()
