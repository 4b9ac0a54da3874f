"""Topics of several replicas that are deleted as soon as they are there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.brokers import TestCluster
from tests.support import ROUNDS, Process, wait_until


def test_a_topic_that_is_deleted_while_its_replicas_begin_to_copy_is_no_error(
    start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, "deleted-topics", tmp_path, zookeeper).start_brokers(1, 2, 3)
    rng, admin = random.Random(1), AdminClient({"bootstrap.servers": cluster.bootstrap})
    for number in range(40 * ROUNDS):
        name = f"short-{number}"
        admin.create_topics([NewTopic(name, 1, 3)])[name].result(30)
        time.sleep(rng.choice([0, rng.uniform(0, 0.05)]))
        admin.delete_topics([name])[name].result(30)

    def is_empty(broker_id: int) -> bool:
        return not [path for path in cluster.directory(broker_id).iterdir() if path.name.startswith("short-")]

    for broker_id, broker in cluster.brokers.items():
        wait_until(f"broker {broker_id} has no logs of them", partial(is_empty, broker_id))
        assert " ERROR " not in broker.process.output
