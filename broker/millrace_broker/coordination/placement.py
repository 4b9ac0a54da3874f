"""Placement of the replicas of new partitions on brokers, and the load of each broker.

Pure: values in, values out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

from millrace.errors import MillraceError
from millrace.records.topic_partition import TopicPartition
from millrace.zookeeper.topic_state import Replicas, TopicState


@dataclass(frozen=True, slots=True)
class Load:
    """Number of partitions of all topics that each broker leads first, and of replicas that it stores."""

    leads: Counter[int] = field(default_factory=Counter)
    stores: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, placed: Iterable[Replicas]) -> Load:
        """Return the load by the replicas of all partitions."""
        placed = list(placed)
        return cls(_firsts(placed), Counter(chain.from_iterable(placed)))

    def changed(self, before: Iterable[TopicState | None], after: Iterable[TopicState | None]) -> Load:
        """Return the load once the topics `before` have become `after`. None: a topic that does not exist."""
        gone, come = Load.of(_replicas(before)), Load.of(_replicas(after))
        return Load(self.leads + come.leads - gone.leads, self.stores + come.stores - gone.stores)


def place(
    count: int, replicas: int, racks: Mapping[int, str], here: Collection[Replicas], load: Load
) -> list[Replicas]:
    """Return the replicas of `count` new partitions of a topic, on brokers of `racks`, which has at least
    `replicas`.

    The first replica goes to the broker that leads the fewest partitions of the topic, then the fewest in
    all, so that a new broker comes first. Each further replica goes to another broker, in the rack with the
    fewest replicas of the partition. Of several brokers, it is the broker that follows this leader least
    often, so that all brokers share the work of a dead broker; then the broker that stores the fewest
    replicas; then the next in order. `here` are the replicas of the topic's partitions; `load` is that of all
    topics.
    """
    leads_here, leads = _firsts(here), load.leads.copy()
    stores_here, stores = Counter(chain.from_iterable(here)), load.stores.copy()
    follows = Counter((first, other) for first, *others in here for other in others)
    racks = dict(sorted(racks.items()))

    def lead() -> int:
        return min(racks, key=lambda broker: (leads_here[broker], leads[broker], broker))

    def follow(first: int, chosen: Collection[int]) -> int:
        used = Counter(racks[broker] for broker in chosen)

        def order(broker: int) -> tuple[int, ...]:
            stored = (stores_here[broker], stores[broker])
            return used[racks[broker]], follows[first, broker], *stored, broker < first, broker

        return min((broker for broker in racks if broker not in chosen), key=order)

    placed = []
    for _ in range(count):
        chosen = [first := lead()]
        leads_here[first] += 1
        leads[first] += 1
        while len(chosen) < replicas:
            chosen.append(other := follow(first, chosen))
            follows[first, other] += 1
        stores_here.update(chosen)
        stores.update(chosen)
        placed.append(tuple(chosen))
    return placed


def drained(
    placed: Mapping[TopicPartition, Replicas], leaving: int, racks: Mapping[int, str]
) -> dict[TopicPartition, Replicas]:
    """Return the partitions with a replica on `leaving`, each with another broker of `racks` in its place.

    That broker is in the rack with the fewest replicas of the partition; of several brokers, it is the one
    that stores the fewest replicas. Raise MillraceError when a partition has a replica on each broker
    already.
    """
    racks = {broker: rack for broker, rack in sorted(racks.items()) if broker != leaving}
    stores = Counter(chain.from_iterable(placed.values()))
    plan = {}
    for (topic, number), replicas in sorted(placed.items()):
        if leaving not in replicas:
            continue
        used = Counter(racks.get(broker) for broker in replicas)
        free = [
            (used[rack], stores[broker], broker) for broker, rack in racks.items() if broker not in replicas
        ]
        if not free:
            raise MillraceError(
                f"no other broker is alive to take {topic}-{number} from broker {leaving}: start one"
            )
        *_, taking = min(free)
        stores[taking] += 1
        plan[topic, number] = tuple(taking if broker == leaving else broker for broker in replicas)
    return plan


def _firsts(placed: Iterable[Replicas]) -> Counter[int]:
    return Counter(replicas[0] for replicas in placed)


def _replicas(topics: Iterable[TopicState | None]) -> list[Replicas]:
    return [state.replicas for topic in topics if topic is not None for state in topic.partitions.values()]
