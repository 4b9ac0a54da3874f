"""The mirror into an Apache Kafka, as one process: the same watching and pulling as inside a broker.

Builds everything in the order of its start. What is written how is kafka_target.py's, which partition copies
what kafka_aggregate.py's.
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

log = logging.getLogger("millrace.mirror.into_kafka")

REFRESH_SECONDS = 1.0
CONNECT_SECONDS = 10.0


def mirror_into_kafka(
    config: KafkaMirrorConfig,
    stop: threading.Event,
    ready: Callable[[], None],
    show: Callable[[MirrorStates, Mapping[str, KafkaTarget]], None],
) -> None:
    """Copy every origin until `stop` is set; Fenced when another process has begun to copy one.

    `show` is given, before anything is copied, what tells of it: the states, and each origin's target.
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
                log.warning("the registry of %s is not read again: %s", config.cluster, error)
        if not fenced.empty():
            raise fenced.get()
    finally:
        # The threads are daemons: what one has not committed is aborted by whoever begins next.
        for one in origins:
            one.stop()
        session.close()
        client.close()
