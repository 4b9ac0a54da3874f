"""Cases of brokers' log directories and of ZooKeeper, in a datacenter whose producers go on all the time.

Producers and a reader note what they were promised: `tests.integration.faults.ledger`. A promise that is not
kept is a lost message.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer

from millrace.zookeeper.topic_state import NO_LEADER
from millrace_broker.coordination.cluster import Cluster
from tests.brokers import read_partition
from tests.integration.faults.traffic import WAITING, run, run_until_stored
from tests.integration.test_replication import PARTITIONS, Traffic
from tests.support import WAIT_S, wait_until
from tests.trials.faultaudit.row import HOME
from tests.trials.faultrestore.scene import Copy, Lost, Scene, Wrong

NUMBERED, ALONE = "numbered", "alone"
MORE = 200
"""Messages of each producer between two steps."""
YOUNG_S = 2.0
"""A copy that lacks less than the writes of the last second is not noticed: docs/guarantees.md."""
ELECTED_S = 5.0
"""Longer than a broker takes that leads alone though it must not."""


def a_directory_of_three_put_back_at_rest_starts_first_and_leads_nothing(scene: Scene) -> None:
    place = scene.place
    with numbered(scene, replicas=3, minimum=2) as traffic:
        place.stop(f"{HOME}-2")
        copy = scene.copy(place.clusters[HOME].directory(2))
        place.restart(f"{HOME}-2")
        traffic.until_in_sync()
        run_until_stored(traffic.producers, MORE)
        place.stop(f"{HOME}-1", f"{HOME}-3", f"{HOME}-2")
        copy.put_back()
        place.restart(f"{HOME}-2")
        run(traffic.producers, ELECTED_S)
        place.restart(f"{HOME}-1", f"{HOME}-3")
        run_until_stored(traffic.producers, MORE)
    scene.check_named(f"{HOME}-2", "log directory .* was put back")


def a_leaders_directory_of_three_put_back_at_once_under_traffic_loses_nothing(scene: Scene) -> None:
    _put_back_at_once(scene, replicas=3, minimum=2)


def a_leaders_directory_of_two_put_back_at_once_under_traffic_loses_nothing(scene: Scene) -> None:
    _put_back_at_once(scene, replicas=2, minimum=1)


def a_partition_whose_only_directory_is_put_back_waits_for_an_operator(scene: Scene) -> None:
    place, cluster = scene.place, scene.place.clusters[HOME]
    with cluster.client() as client:
        client.create_topic(ALONE, 1, replicas=1)
        leader = client.topic(ALONE).partitions[0]
    _send(scene, "before")
    copy = scene.copy(cluster.directory(leader))
    _send(scene, "lost with its only disk")
    time.sleep(YOUNG_S)
    place.kill(f"{HOME}-{leader}")
    copy.put_back()
    place.restart(f"{HOME}-{leader}")
    time.sleep(ELECTED_S)
    with cluster.client() as client:
        if client.topic(ALONE).partitions[0] != NO_LEADER:
            raise Wrong(
                f"broker {leader} leads with a log that lacks acknowledged messages, and nobody said so"
            )
    scene.check_named(f"{HOME}-{leader}", "wait for an operator")
    with Cluster.connect(place.zookeeper_of(HOME), HOME, create=False) as known:
        before = known.topics[ALONE].partitions[0].leader_epoch
        elect = ("topics", "elect", "--unclean", f"{ALONE}-0", "--replica", str(leader))
        place.millrace(*elect, "--reason", "no newer copy", "--bootstrap", cluster.bootstrap)
        wait_until("it leads", lambda: known.topics[ALONE].partitions[0].leader == leader)
        assert known.topics[ALONE].partitions[0].leader_epoch > before, "readers cannot notice the cut"
    _send(scene, "behind")
    with cluster.client() as client:
        assert read_partition(client, ALONE, 0).values == [b"before", b"behind"]


def a_zookeeper_put_back_at_rest_lets_no_replica_lead_that_was_away_since(scene: Scene) -> None:
    place = scene.place
    with numbered(scene, replicas=3, minimum=2) as traffic:
        copy = _copy_of_zookeeper(scene)
        place.stop(f"{HOME}-3")
        go_on_without(traffic, 3)
        place.stop(f"{HOME}-1", f"{HOME}-2", f"{HOME}-zookeeper")
        copy.put_back()
        place.restart(f"{HOME}-zookeeper", f"{HOME}-3")
        run(traffic.producers, ELECTED_S)
        place.restart(f"{HOME}-1", f"{HOME}-2")
        run_until_stored(traffic.producers, MORE)
    scene.check_named(f"{HOME}-1", "ZooKeeper at .* was put back")


def a_zookeeper_put_back_at_once_under_running_brokers_loses_nothing(scene: Scene) -> None:
    place = scene.place
    with numbered(scene, replicas=3, minimum=2) as traffic:
        copy = _copy_of_zookeeper(scene)
        place.kill(f"{HOME}-3")
        go_on_without(traffic, 3)
        place.kill(f"{HOME}-zookeeper")
        copy.put_back()
        place.start(f"{HOME}-zookeeper")
        place.restart(f"{HOME}-3")
        run_until_stored(traffic.producers, MORE)
    scene.check_named(f"{HOME}-1", "ZooKeeper at .* was put back")


def _put_back_at_once(scene: Scene, replicas: int, minimum: int) -> None:
    place = scene.place
    with numbered(scene, replicas, minimum) as traffic:
        leader = traffic.leader()
        copy = scene.copy(place.clusters[HOME].directory(leader))
        run_until_stored(traffic.producers, MORE)
        run(traffic.producers, YOUNG_S)
        place.kill(f"{HOME}-{leader}")
        copy.put_back()
        place.start(f"{HOME}-{leader}")
        run_until_stored(traffic.producers, MORE)
        place.ready(f"{HOME}-{leader}")
    scene.check_named(f"{HOME}-{leader}", "log directory .* was put back")


def _copy_of_zookeeper(scene: Scene) -> Copy:
    return scene.copy(scene.place.folder / f"{HOME}-zookeeper")


@contextmanager
def numbered(scene: Scene, replicas: int, minimum: int) -> Iterator[Traffic]:
    """Producers with acks=all and a reader, and audited traffic around what the block does.

    Behind the block every replica must be in sync, every promise kept, and the audited windows complete.
    """
    place, stage = scene.place, scene.stage
    with Cluster.connect(place.zookeeper_of(HOME), HOME, create=False) as cluster:
        traffic = Traffic(place.clusters[HOME], cluster, NUMBERED, replicas, minimum)
        with traffic.reader, scene.watched() as watch:
            run_until_stored(traffic.producers, MORE)
            stage.begin(batches=2)
            yield traffic
            for producer in traffic.producers:
                producer.finish()
            traffic.until_in_sync()
            _check_kept(traffic)
            stage.go_on(2)
            stage.end()
            stage.load()
            scene.await_complete()
        watch.check_no_alarm()


def go_on_without(traffic: Traffic, broker: int) -> None:
    """Until the broker is in sync nowhere, and more is acknowledged that it does not have."""
    run_until_stored(traffic.producers, MORE)
    wait_until(
        f"broker {broker} is in sync nowhere",
        lambda: all(broker not in traffic.state(partition).isr for partition in range(PARTITIONS)),
    )
    run_until_stored(traffic.producers, 2 * WAITING)


def _check_kept(traffic: Traffic) -> None:
    """Lost unless every promise is kept, and every message is there once and in order."""
    try:
        traffic.check("at the end", whole=True)
    except AssertionError as error:
        raise Lost(str(error)) from error


def _send(scene: Scene, value: str) -> None:
    """One message, acknowledged by the only replica."""
    producer = Producer({"bootstrap.servers": scene.place.clusters[HOME].bootstrap, "acks": "all"})
    producer.produce(ALONE, value, partition=0)
    assert producer.flush(WAIT_S) == 0
