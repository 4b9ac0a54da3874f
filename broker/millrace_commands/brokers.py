"""`millrace brokers`: list the brokers of a cluster, and move everything off one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping

import click

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_records, say
from millrace.records.topic_partition import TopicPartition
from millrace.zookeeper.topic_state import Replicas
from millrace_broker.coordination.placement import drained
from millrace_commands.broker_admin import broker_directories, broker_racks, count_moving, move_replicas
from millrace_commands.topics import TIMEOUT_S, bootstrap_option

_LOOK_AGAIN_S = 0.5


@click.group(cls=CommandGroup)
def brokers() -> None:
    """List brokers and what they store, and move all replicas off a broker.

    Example: millrace brokers list --bootstrap 127.0.0.1:9092
    """


@brokers.command("list")
@json_option()
@bootstrap_option
def list_(as_json: bool, bootstrap: str) -> None:
    """List live brokers: rack, log directory, partitions led, stored and under-replicated.

    A broker without the setting `rack` is listed with the host that it advertises.

    Example: millrace brokers list --json
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        racks, topics = broker_racks(client), client.topics().values()
        directories = broker_directories(client, racks)
    led = Counter(leader for topic in topics for leader in topic.partitions.values())
    copies = [each for topic in topics for each in topic.copies.values()]
    stored = Counter(broker for each in copies for broker in each.replicas)
    lacking = Counter(
        broker for each in copies for broker in each.replicas if len(each.isr) < len(each.replicas)
    )
    records = [
        {
            "broker": broker,
            "rack": rack,
            "directory": directories[broker],
            "led": led[broker],
            "stored": stored[broker],
            "under_replicated": lacking[broker],
        }
        for broker, rack in sorted(racks.items())
    ]
    print_records(records, as_json=as_json, none="no brokers")


@brokers.command()
@click.argument("broker", type=click.IntRange(0))
@bootstrap_option
def drain(broker: int, bootstrap: str) -> None:
    """Move every replica off BROKER to the other brokers, and wait until it stores none.

    Each partition keeps its number of replicas. New partitions still go to BROKER as long as it runs. The
    command may be stopped: moves that it has begun go on, and the next call continues with the rest.

    Example: millrace brokers drain 3
    """
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        stored_on = {one for replicas in _placed(client).values() for one in replicas}
        if broker not in stored_on and broker not in broker_racks(client):
            raise MillraceError(
                f"there is no broker {broker}, and nothing is stored on it: see `millrace brokers list"
                f" --bootstrap {bootstrap}`"
            )
        _wait_for_moves(client, _placed(client))  # replicas of present moves will still be removed
        placed, racks = _placed(client), broker_racks(client)
        plan = dict(drained(placed, broker, racks))
        lost = [each for each in plan if broker not in racks and placed[each] == (broker,)]
        for each in lost:
            del plan[each]  # no broker can copy it
        move_replicas(client, plan)
        _wait_for_moves(client, plan)
        stored = [each for each, replicas in _placed(client).items() if broker in replicas]
        if still := [f"{t}-{n}" for t, n in stored if (t, n) not in lost]:
            raise MillraceError(
                f"broker {broker} still has {still[0]}, which it got during the moves: run the command again"
            )
        if lost:
            names = ", ".join(f"{t}-{n}" for t, n in lost)
            raise MillraceError(
                f"{len(plan)} partitions have moved; broker {broker} is not alive and has the only replica of"
                f" {names}: start the broker with its disk or, if the disk is lost, create these topics again"
            )
    say(f"broker {broker} stores nothing any more; {len(plan)} partitions have moved")


def _wait_for_moves(client: ClusterClient, partitions: Collection[TopicPartition]) -> None:
    shown = 0
    while (left := count_moving(client, partitions)) > 0:
        if left != shown:
            say(f"{left} of {len(partitions)} partitions are on their way", err=True)
        shown = left
        time.sleep(_LOOK_AGAIN_S)


def _placed(client: ClusterClient) -> Mapping[TopicPartition, Replicas]:
    return {
        (name, number): copies.replicas
        for name, topic in client.topics().items()
        for number, copies in topic.copies.items()
    }
