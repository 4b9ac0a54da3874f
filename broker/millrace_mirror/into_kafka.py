"""The mirror into an Apache Kafka, as one process: the same watching and pulling as inside a broker.

This module creates all parts in the order of their start. kafka_target.py writes to Kafka, kafka_aggregate.py
registers which partition is a copy of which.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from millrace.client.cluster_client import ClusterClient
from millrace.config import KafkaMirrorConfig
from millrace.errors import MillraceError
from millrace.zookeeper.session import Session
from millrace_mirror.embedded import CopiedOrigin
from millrace_mirror.kafka_aggregate import MIRROR_ID, KafkaAggregate
from millrace_mirror.kafka_target import Fenced, KafkaTarget
from millrace_mirror.states import MirrorStates

logger = logging.getLogger("millrace.mirror.into_kafka")

REFRESH_SECONDS = 1.0
CONNECT_SECONDS = 10.0


def mirror_into_kafka(
    config: KafkaMirrorConfig,
    stop: threading.Event,
    ready: Callable[[], None],
    show: Callable[[MirrorStates, Mapping[str, KafkaTarget]], None],
) -> None:
    """Copy every origin until `stop` is set. Raise Fenced when another process has begun to copy one.

    `show` is called before copying begins, with the states and each origin's target, for metrics.
    """
    session = Session.connect(config.zookeeper, identity=config.zookeeper_identity)
    client = ClusterClient(config.bootstrap, client_id="millrace-mirror", timeout_s=CONNECT_SECONDS)
    fenced: queue.SimpleQueue[Fenced] = queue.SimpleQueue()
    states = MirrorStates()
    origins, targets = [], dict[str, KafkaTarget]()
    try:
        aggregate = KafkaAggregate(session, config.cluster, client)
        for name, origin in config.mirror.items():
            targets[name] = KafkaTarget(name, aggregate, config.bootstrap, fenced.put)
            origins.append(CopiedOrigin(name, origin, MIRROR_ID, aggregate, targets[name], states))
        show(states, targets)
        for one in origins:
            one.start()
        ready()
        while fenced.empty() and not stop.wait(REFRESH_SECONDS):
            try:
                aggregate.refresh()
            except MillraceError as error:
                logger.warning("the registry of %s could not be read again: %s", config.cluster, error)
        if not fenced.empty():
            raise fenced.get()
    finally:
        # The threads are daemons: the next process aborts transactions that they have not committed.
        for one in origins:
            one.stop()
        session.close()
        client.close()
