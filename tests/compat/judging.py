"""Judging a service that sends JSON with record headers by the auditor, from its events up to the table.

The service has sent EVENTS events of one past window, each `{"n": number}` and in the order of their numbers.
"""

from __future__ import annotations

import httpx

from millrace_audit.answer import Window
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.log.formats import MessageFormat
from tests.integration.test_audit import World, published
from tests.support import wait_until
from tests.warehouses import load_here

EVENTS = 20_000
BROKEN = [*range(7, EVENTS, 1000)]
"""Events whose JSON ends too early. The only thread numbers its events in their order."""
SCHEMA = {"type": "record", "name": "Numbered", "fields": [{"name": "n", "type": "long"}]}
"""Schema of the service's JSON."""


def load_json(world: World, topic: str) -> LoadResult:
    """Load the service's messages into the world's warehouse."""
    with SchemaRegistryClient(world.registry) as registry:
        registry.register(topic, SCHEMA)
    place = world.clusters["offline"].bootstrap, world.registry, world.warehouse
    return load_here(*place, topic, subject=topic, messages=MessageFormat("json"))


def window_when_clusters_are_proven(world: World, topic: str) -> Window:
    """Wait until only the load of the events is missing; return their window."""

    def is_only_not_loaded() -> bool:
        reasons = world.ask(topic).windows[0].reasons
        return bool(reasons) and all("not loaded yet" in reason for reason in reasons)

    wait_until("both clusters are proven", is_only_not_loaded)
    return world.ask(topic).windows[0]


def check_complete(world: World, topic: str) -> None:
    """Load and publish the service's events; every tier must have all of them."""
    window = window_when_clusters_are_proven(world, topic)
    assert (window.acknowledged, window.failed, window.findings, window.foreign) == (EVENTS, 0, [], {})
    assert window.tiers == {"dc1": EVENTS, "offline": EVENTS, "warehouse": 0}

    result = load_json(world, topic)
    assert (result.rows, result.rejected) == (EVENTS, 0)
    world.await_verdict(topic, "complete")
    assert published(world, topic)["hours"]
    world.await_tier(topic, "table", EVENTS)
    window = world.await_verdict(topic, "complete").windows[0]
    assert window.tiers == dict.fromkeys(("dc1", "offline", "warehouse", "table"), EVENTS)
    assert (window.carried, window.findings, window.foreign) == (0, [], {})
    assert httpx.get(f"{world.url}/v1/rejected-records").json() == []


def check_broken_is_named(world: World, topic: str) -> None:
    """Load the events, of which BROKEN are no JSON: their hour must be incomplete and not be published."""
    window_when_clusters_are_proven(world, topic)
    result = load_json(world, topic)
    assert (result.rows, result.rejected) == (EVENTS - len(BROKEN), len(BROKEN))
    window = world.await_verdict(topic, "incomplete").windows[0]
    (finding,) = window.findings
    assert (finding.kind, finding.tier, finding.service) == ("missing", "warehouse", "checkout")
    assert finding.sequences == [[n, n] for n in BROKEN]
    answer = published(world, topic)
    (waits,) = answer["waiting"]
    assert not answer["hours"]
    assert (waits["rejected"], waits["verdict"]["verdict"]) == (len(BROKEN), "incomplete")
