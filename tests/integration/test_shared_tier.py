"""Two readers that share a cluster, with real processes: the hour is exact when either of them is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from millrace.zookeeper.session import Session
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.turns import Seat
from tests.audit_world import audit_of_one_origin
from tests.integration.test_audit import Trickster, World
from tests.page_view import EVENT, PAGE_VIEW, START
from tests.support import Process, wait_until

EVENTS = 2000
LOST = 1207
"""Number of the event that a cluster loses."""
TIERS = ("dc1", "offline")


@pytest.fixture(scope="module")
def world(
    zookeeper: str, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> World:
    topics = [f"{name}-{which}" for name in ("kept", "lost") for which in ("holder", "other")]
    folder: Path = tmp_path_factory.mktemp("shared")
    return audit_of_one_origin(World, start_for_module, zookeeper, folder, topics)


def holder_of(world: World, tier: str) -> int | None:
    """Return the process that holds a tier."""
    cluster = world.clusters[tier].name if tier == "offline" else tier
    with closing(Session.connect(world.zookeeper)) as session:
        found = session.get(Seat(cluster, tier).holder)
    return None if found is None else int(json.loads(found[0])["pid"])


def send(producer: AuditedProducer, topic: str, first: int, last: int) -> None:
    for n in range(first, last):
        producer.send(topic, PAGE_VIEW, EVENT, time_ms=START + n)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["holder", "other"])
def test_an_hour_is_exact_although_one_of_two_readers_is_killed_in_its_middle(
    world: World, which: str
) -> None:
    kept, lost = f"kept-{which}", f"lost-{which}"
    pairs = {tier: [world.readers[tier]] for tier in TIERS}
    for tier, pair in pairs.items():
        world.start_reader(tier)
        pair.append(world.readers[tier])
    for pair in pairs.values():
        wait_until("they share", lambda pair=pair: all("is shared by 2 readers" in r.output for r in pair))  # type: ignore[misc]
    with world.producer("dc1") as producer, world.producer("dc1") as robbed:
        send(producer, kept, 0, EVENTS // 2)
        send(robbed, lost, 0, EVENTS // 2)
        world.await_tier(kept, "offline", 1)
        for tier, pair in pairs.items():
            doomed = next(r for r in pair if (r.pid == holder_of(world, tier)) == (which == "holder"))
            doomed.kill()
            (world.readers[tier],) = (r for r in pair if r is not doomed)
        robbed._producer = Robber(robbed._producer)  # type: ignore[assignment]
        send(producer, kept, EVENTS // 2, EVENTS)
        send(robbed, lost, EVENTS // 2, EVENTS)
    world.await_tier(kept, "offline", EVENTS)
    world.await_tier(lost, "offline", EVENTS - 1)
    for topic in (kept, lost):
        world.load(topic)
    (whole,) = world.await_verdict(kept, "complete").windows
    assert (whole.acknowledged, whole.tiers["dc1"], whole.tiers["offline"]) == (EVENTS, EVENTS, EVENTS)
    (window,) = world.await_verdict(lost, "incomplete").windows
    assert [(f.kind, f.tier, f.instance, f.sequences) for f in window.findings] == [
        ("missing", "dc1", robbed.instance, [[LOST, LOST]])
    ]


class Robber(Trickster):
    """A client library that does not send the event with number LOST, without an error."""

    def __init__(self, producer: object) -> None:
        super().__init__(producer, b"", None)
        self._number = EVENTS // 2 - 1

    def produce(self, topic: str, value: bytes, *others: object) -> None:
        self._number += 1
        if self._number != LOST:
            super().produce(topic, value, *others)
