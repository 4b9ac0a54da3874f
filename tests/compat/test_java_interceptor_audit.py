"""A Java service that sends JSON, audited by properties alone: judged by the auditor up to the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.audit_world import audit_of_one_origin
from tests.compat.java_interceptor import finish, start_service
from tests.compat.judging import EVENTS, check_broken_is_named, check_complete
from tests.integration.test_audit import World
from tests.support import Process


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


def test_json_of_a_java_service_is_complete_from_the_producer_to_the_table(
    world: World, tmp_path: Path
) -> None:
    send(world, "past", tmp_path)
    check_complete(world, "past")


def test_broken_json_of_a_java_service_is_named_by_sequence_and_its_hour_is_not_published(
    world: World, tmp_path: Path
) -> None:
    send(world, "broken", tmp_path)
    check_broken_is_named(world, "broken")
