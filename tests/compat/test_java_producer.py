"""A producer in Java, written from docs/audit-protocol.md alone: the audit proves its events, too."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from millrace.zookeeper.embedded import find_java
from tests.audit_world import audit_of_one_origin
from tests.integration.test_audit import World
from tests.peers import maven
from tests.support import REPOSITORY, WAIT_S, Process, start_for_the_test_run, wait_until

POM = Path(maven.__file__).with_name("java-producer.pom.xml")
SOURCE = Path(__file__).with_name("java") / "AuditedProducer.java"
EVENTS, UNREPORTED = 2000, 123


@pytest.fixture(scope="module")
def world(
    needs_maven: None,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> World:
    folder = tmp_path_factory.mktemp("java-audit")
    return audit_of_one_origin(World, start_for_module, zookeeper, folder, ["java", "java-killed"])


def produce(world: World, topic: str, *more: str) -> subprocess.Popen[str]:
    """Java's own launcher compiles the source and runs it."""
    words = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", maven.class_path(POM), str(SOURCE)]
    words += [world.clusters["dc1"].bootstrap, world.registry, str(REPOSITORY / "schemas"), "dc1", topic]
    return start_for_the_test_run(
        [find_java(), *words, str(EVENTS), *more], stdout=subprocess.PIPE, text=True
    )


def test_the_windows_of_a_producer_in_java_are_complete(world: World) -> None:
    with produce(world, "java") as java:
        try:
            assert java.wait(2 * WAIT_S) == 0
        finally:
            java.kill()
    world.await_tier("java", "offline", EVENTS, 2)
    world.load("java")
    windows = world.await_verdict("java", "complete", 2).windows
    assert [(w.acknowledged, w.failed, w.carried, w.findings) for w in windows] == [
        (EVENTS // 2, 0, 0, []),
        (EVENTS // 2, 0, 0, []),
    ]
    assert httpx.get(f"{world.url}/v1/rejected-records").json() == []


def test_the_windows_of_a_killed_one_are_named_with_what_it_reported_and_what_not(world: World) -> None:
    with produce(world, "java-killed", str(UNREPORTED)) as java:
        assert java.stdout is not None
        instance, sent = int(java.stdout.readline()), java.stdout.readline()
        java.kill()
    assert sent == "sent\n"
    world.await_tier("java-killed", "offline", EVENTS + UNREPORTED, 2)
    world.load("java-killed")
    name = f"instance {instance} (shop on java-1 in dc1)"

    def said() -> bool:
        first, second = world.ask("java-killed", 2).windows
        return any(
            reason.startswith(f"{name} reported through sequence {EVENTS // 2 - 1} here")
            and f"{UNREPORTED} events are counted that it never reported" in reason
            for reason in first.reasons
        ) and any(reason.startswith(f"{name} has closed nothing") for reason in second.reasons)

    wait_until("both windows name the instance", said)
    first, second = world.await_verdict("java-killed", "pending", 2).windows
    assert [one.verdict for one in (first, second)] == ["pending", "pending"]
    assert [one.acknowledged for one in (first, second)] == [EVENTS // 2, EVENTS // 2]
    assert [one.findings for one in (first, second)] == [[], []]
    answer = httpx.post(f"{world.url}/v1/instances/{instance}/accept", json={"reason": "host burnt down"})
    assert answer.status_code == 200
    world.await_verdict("java-killed", "complete", 2)
