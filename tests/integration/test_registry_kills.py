"""SIGKILL among two registries and their database while two processes register: no id twice, none lost."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from millrace_registry.client import SchemaRegistryClient
from millrace_registry.transfer import read_registry
from tests import postgres
from tests.brokers import free_port
from tests.registering import sized
from tests.support import ROUNDS, WAIT_S, Process, wait_until

Start = Callable[..., Process]
AT_LEAST = 10
"""Acknowledgements that each process sees between two kills."""


@contextmanager
def database(kind: str, folder: Path) -> Iterator[tuple[str, postgres.Server | None]]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/registry.db", None
    else:
        with postgres.server() as server:
            yield server.url, server


@contextmanager
def processes(*each: Process) -> Iterator[tuple[Process, ...]]:
    try:
        yield each
    finally:
        for process in each:
            process.kill()


def acknowledged(writer: Process) -> list[tuple[str, int, int]]:
    """(subject, size, id) of every registration that a process has seen acknowledged."""
    rows = [line.split() for line in list(writer.lines)]
    assert all(len(row) == 3 for row in rows), writer.output[-2000:]
    return [(subject, int(size), int(schema_id)) for subject, size, schema_id in rows]


def check_ids(rows: Sequence[tuple[str, int, int]]) -> None:
    """Each acknowledged id means one schema, and each schema has one id."""
    sizes = {size: schema_id for _, size, schema_id in rows}
    assert len(set(sizes.values())) == len(sizes), "an id was given to two schemas"
    assert all(sizes[size] == schema_id for _, size, schema_id in rows), "a schema has two ids"


def check_newest(url: str, rows: Sequence[tuple[str, int, int]]) -> None:
    """The newest of what was acknowledged is there."""
    with SchemaRegistryClient(url) as registry:
        for subject, size, schema_id in rows[-2 * AT_LEAST :]:
            found = registry.lookup(subject, sized(size))
            assert found is not None, f"{subject} has lost size {size}, id {schema_id}"
            assert found.schema_id == schema_id
            assert registry.schema(schema_id) == sized(size)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_id_is_given_twice_and_none_is_lost_whatever_is_killed(
    kind: str, start: Start, tmp_path: Path
) -> None:
    if kind == "postgresql" and not postgres.installed():
        pytest.skip("PostgreSQL is not installed")
    chance = random.Random(0)
    with database(kind, tmp_path) as (database_url, server):
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]

        def serve(address: str) -> Process:
            registry = start("registry", "--listen", address, "--database-url", database_url)
            registry.ready()
            return registry

        registries = {address: serve(address) for address in addresses}
        urls = [f"http://{address}" for address in addresses]
        httpx.put(f"{urls[0]}/config", json={"compatibility": "NONE"}, timeout=WAIT_S).raise_for_status()
        with processes(
            *(Process([str(number), *urls], module="tests.registering") for number in (1, 2))
        ) as writers:

            def go_on() -> None:
                """Wait until each process has seen more registrations acknowledged."""
                for writer in writers:
                    goal = len(writer.lines) + AT_LEAST
                    wait_until("registrations", lambda w=writer, g=goal: len(w.lines) >= g)  # type: ignore[misc]

            for number in range(max(ROUNDS, 3)):
                go_on()
                time.sleep(chance.uniform(0, 0.05))  # anywhere in a registration
                # The database in every third round, alone or together with a registry that is starting again.
                if server is not None and number % 3 == 2:
                    server.kill()
                victims = addresses if number % 6 == 5 else [chance.choice(addresses)]
                for address in victims if server is None or number % 3 != 2 or number % 6 == 5 else []:
                    registries[address].kill()
                if server is not None and number % 3 == 2:
                    server.start()
                for address in addresses:
                    if not registries[address].running:
                        registries[address] = serve(address)
                go_on()
                check_ids([row for writer in writers for row in acknowledged(writer)])
                for writer in writers:
                    check_newest(urls[number % 2], acknowledged(writer))
        rows = [row for writer in writers for row in acknowledged(writer)]
        check_ids(rows)
        with SchemaRegistryClient(urls[1]) as registry:
            held = {(v.subject, json.loads(v.schema)["size"]): v.id for v in read_registry(registry).versions}
        lost = [row for row in rows if held.get(row[:2]) != row[2]]
        assert not lost, f"{len(lost)} of {len(rows)} acknowledged registrations are gone: {lost[:5]}"
        assert len(set(held.values())) == len({size for _, size in held}), "an id means two schemas"
        counted = {subject: {size for s, size, _ in rows if s == subject} for subject, _, _ in rows}
        with SchemaRegistryClient(urls[0]) as registry:
            for subject, known in counted.items():
                versions = registry.versions(subject)
                assert versions == list(range(1, len(versions) + 1)), "a version's number is missing"
                # Each process may have registered one more, whose answer it did not live to print.
                assert len(known) <= len(versions) <= len(known) + 2
