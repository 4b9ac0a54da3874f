"""A Java service that sends JSON, audited by properties alone: judged by the auditor up to the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace_audit.answer import Window
from tests.audit_world import audit_of_one_origin
from tests.compat.java_interceptor import finish, load_json, start_service
from tests.integration.test_audit import World, published
from tests.support import Process, wait_until

EVENTS = 20_000
BROKEN = [*range(7, EVENTS, 1000)]
"""Events whose JSON ends too early. The only thread numbers its events in their order."""


@pytest.fixture(scope="module")
def world(
    needs_maven: None,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    folder = tmp_path_factory.mktemp("interceptor-audit")
    return audit_of_one_origin(World, start_for_module, zookeeper, folder, ["past", "broken"])


def send(world: World, case: str, tmp_path: Path) -> None:
    """Run the service; its topic is named as the case is."""
    bootstrap = world.clusters["dc1"].bootstrap
    finish(start_service("4.1", case, EVENTS, case, tmp_path / "outcomes", bootstrap_servers=bootstrap))


def window_when_clusters_are_proven(world: World, topic: str) -> Window:
    def is_only_not_loaded() -> bool:
        reasons = world.ask(topic).windows[0].reasons
        return bool(reasons) and all("not loaded yet" in reason for reason in reasons)

    wait_until("both clusters are proven", is_only_not_loaded)
    return world.ask(topic).windows[0]


def test_json_of_a_java_service_is_complete_from_the_producer_to_the_table(
    world: World, tmp_path: Path
) -> None:
    send(world, "past", tmp_path)
    window = window_when_clusters_are_proven(world, "past")
    assert (window.acknowledged, window.failed, window.findings, window.foreign) == (EVENTS, 0, [], {})
    assert window.tiers == {"dc1": EVENTS, "offline": EVENTS, "warehouse": 0}

    result = load_json(world, "past")
    assert (result.rows, result.rejected) == (EVENTS, 0)
    world.await_verdict("past", "complete")
    assert published(world, "past")["hours"]
    world.await_tier("past", "table", EVENTS)
    window = world.await_verdict("past", "complete").windows[0]
    assert window.tiers == dict.fromkeys(("dc1", "offline", "warehouse", "table"), EVENTS)
    assert (window.carried, window.findings, window.foreign) == (0, [], {})
    assert httpx.get(f"{world.url}/v1/rejected-records").json() == []


def test_broken_json_of_a_java_service_is_named_by_sequence_and_its_hour_is_not_published(
    world: World, tmp_path: Path
) -> None:
    send(world, "broken", tmp_path)
    window_when_clusters_are_proven(world, "broken")
    result = load_json(world, "broken")
    assert (result.rows, result.rejected) == (EVENTS - len(BROKEN), len(BROKEN))
    window = world.await_verdict("broken", "incomplete").windows[0]
    (finding,) = window.findings
    assert (finding.kind, finding.tier, finding.service) == ("missing", "warehouse", "checkout")
    assert finding.sequences == [[n, n] for n in BROKEN]
    answer = published(world, "broken")
    (waits,) = answer["waiting"]
    assert not answer["hours"]
    assert (waits["rejected"], waits["verdict"]["verdict"]) == (len(BROKEN), "incomplete")
