"""A registry whose database came back from an older copy hands out no id that is in use."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from tests import postgres
from tests.brokers import free_port
from tests.support import WAIT_S, Process

Start = Callable[..., Process]


def sized(number: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": number}


class SQLite:
    """A database in a file."""

    def __init__(self, folder: Path) -> None:
        self._file, self._copy = folder / "registry.db", folder / "copy.db"
        self.url = f"sqlite:///{self._file}"

    def copy(self) -> None:
        shutil.copyfile(self._file, self._copy)

    def restore(self) -> None:
        for name in ("registry.db-wal", "registry.db-shm"):
            self._file.with_name(name).unlink(missing_ok=True)
        shutil.copyfile(self._copy, self._file)


class PostgreSQL:
    """A database of a server; the copy is another one there."""

    def __init__(self, server: postgres.Server) -> None:
        self._admin = server.url.replace("/postgres", "/template1")
        self._run("CREATE DATABASE registry")
        self.url = server.url.replace("/postgres", "/registry")

    def copy(self) -> None:
        self._run("CREATE DATABASE copy TEMPLATE registry")

    def restore(self) -> None:
        self._run("DROP DATABASE registry")
        self._run("CREATE DATABASE registry TEMPLATE copy")

    def _run(self, statement: str) -> None:
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SQLite | PostgreSQL]:
    if request.param == "sqlite":
        yield SQLite(tmp_path)
    elif not postgres.installed():
        pytest.skip("PostgreSQL is not installed")
    else:
        with postgres.server() as server:
            yield PostgreSQL(server)


class World:
    """Two registries on one database, and a ZooKeeper of their own that may be away."""

    def __init__(self, start: Start, database: SQLite | PostgreSQL, folder: Path) -> None:
        self._start, self.database = start, database
        self._data, self._port = str(folder / "zookeeper"), free_port()
        self.zookeeper = self.start_zookeeper()
        self.registries: list[Process] = []
        self.urls: list[str] = []

    def start_zookeeper(self) -> Process:
        process = self._start("zookeeper", "--port", str(self._port), "--data-dir", self._data)
        process.ready()
        return process

    def start_registries(self) -> None:
        words = ("--listen", "127.0.0.1:0", "--database-url", self.database.url)
        at = ("--zookeeper", f"127.0.0.1:{self._port}")
        self.registries = [self._start("registry", *words, *at) for _ in range(2)]
        self.urls = [f"http://{registry.ready()}" for registry in self.registries]

    def stop_registries(self) -> None:
        for registry in self.registries:
            registry.stop()

    def register(self, size: int, registry: int = 0) -> int:
        with SchemaRegistryClient(self.urls[registry]) as client:
            return client.register(f"s{size}", sized(size))

    @property
    def output(self) -> str:
        return "\n".join(registry.output for registry in self.registries)


@pytest.fixture
def world(start: Start, database: SQLite | PostgreSQL, tmp_path: Path) -> World:
    return World(start, database, tmp_path)


@pytest.mark.slow
def test_ids_that_an_older_copy_does_not_know_are_not_handed_out_again(world: World) -> None:
    world.start_registries()
    assert [world.register(size, size % 2) for size in (1, 2, 3)] == [1, 2, 3]
    world.stop_registries()
    world.database.copy()
    world.start_registries()
    assert [world.register(size, size % 2) for size in (4, 5)] == [4, 5]
    assert "older copy" not in world.output
    world.stop_registries()

    world.database.restore()
    world.start_registries()
    for registry in world.registries:
        assert "ids from 4 to 5 were assigned" in registry.output
    with SchemaRegistryClient(world.urls[0]) as client, pytest.raises(UnknownSchema):
        client.schema(4)
    assert world.register(6) == 6
    assert world.register(4, 1) == 7  # its producer registers it again
    with SchemaRegistryClient(world.urls[1]) as client:
        assert [client.schema(number) for number in (3, 6, 7)] == [sized(3), sized(6), sized(4)]


@pytest.mark.slow
def test_an_imported_id_counts_and_a_schema_comes_back_under_its_own(world: World) -> None:
    world.start_registries()
    world.register(1)
    url = world.urls[0]

    def import_(size: int, schema_id: int) -> None:
        mode = f"{url}/mode/imported"
        httpx.put(mode, json={"mode": "IMPORT"}, timeout=WAIT_S).raise_for_status()
        body = {"schema": str(sized(size)).replace("'", '"'), "id": schema_id, "version": schema_id}
        answer = httpx.post(f"{url}/subjects/imported/versions", json=body, timeout=WAIT_S)
        assert answer.status_code == 200, answer.text

    world.stop_registries()
    world.database.copy()
    world.start_registries()
    url = world.urls[0]
    import_(40, 40)
    world.stop_registries()
    world.database.restore()
    world.start_registries()
    url = world.urls[0]
    assert world.register(2) == 41
    import_(40, 40)
    with SchemaRegistryClient(world.urls[1]) as client:
        assert client.schema(40) == sized(40)


@pytest.mark.slow
def test_without_zookeeper_schemas_are_read_and_no_new_id_is_handed_out(world: World) -> None:
    world.start_registries()
    assert world.register(1) == 1
    world.zookeeper.kill()
    assert world.register(1, 1) == 1  # it is there
    body = {"schema": str(sized(2)).replace("'", '"')}
    answer = httpx.post(f"{world.urls[0]}/subjects/s2/versions", json=body, timeout=WAIT_S)
    assert answer.status_code == 500
    assert "no id is handed out" in answer.json()["message"]
    world.start_zookeeper()
    assert world.register(2) == 2
