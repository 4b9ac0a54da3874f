"""Keys and tokens: found in no log, page, event log, command line, message or repr while a load runs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage.hdfs import HdfsStorage
from tests.brokers import free_port
from tests.canary import Watch, files_with
from tests.hadoop.conftest import secrets_of, storage_at
from tests.remote_warehouse import RemoteWarehouse
from tests.support import run_millrace


def test_no_key_and_no_token_leaves_its_place_while_a_load_runs(
    warehouse: RemoteWarehouse, keytab: Path, tmp_path: Path
) -> None:
    secrets = secrets_of(keytab)
    storage = storage_at(warehouse.uri)
    assert storage.names("") == []
    assert secrets.within(storage._client.token_for_tasks().encode()) == ["a token"], (
        "the search finds a token"
    )
    assert secrets.within(keytab.read_bytes()) == ["the key"]

    topic = warehouse.site.topic("Canary", 2)
    warehouse.produce(topic, 2_000)
    events, local = tmp_path / "events", tmp_path / "spark-local"
    events.mkdir()
    local.mkdir()
    ui = free_port()
    conf = {
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
        "spark.local.dir": str(local),
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    command = [*warehouse.command("load", topic), "--engine", "spark", *options]
    with Watch(secrets, tmp_path, {}, [f"http://127.0.0.1:{ui}"]) as watch:
        loaded = run_millrace(*command, env={"TMPDIR": str(tmp_path), "MILLRACE_VERBOSE": "1"})
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert watch.failure is None
    assert not watch.sightings
    assert watch.seen["environment"]
    assert watch.seen["environment/"] or watch.seen["executors/"] or watch.seen["/"], watch.seen
    assert not secrets.within((loaded.stdout + loaded.stderr).encode())
    assert any(path.stat().st_size for path in events.rglob("*") if path.is_file())
    assert files_with(secrets, tmp_path) == {}
    warehouse.check_loads(topic)


def test_no_log_line_of_the_libraries_and_no_message_has_a_token(
    storage: HdfsStorage,
    keytab: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    secrets = secrets_of(keytab)
    monkeypatch.setenv(
        "KRB5CCNAME", str(tmp_path / "cache")
    )  # a new client, whose first request has no token
    with caplog.at_level(logging.DEBUG):
        assert storage.create("a", b"1")
        assert storage.read("a") == b"1"
        nowhere = tuple("localhost:9" for _ in storage.where.addresses)
        token = storage._client.token_for_tasks()
        lost = replace(storage.where, token=token, addresses=nowhere, patience_s=0.1)
        with pytest.raises(MillraceError) as error:
            HdfsStorage(storage.root, lost).read("a")
    said = [record.getMessage() for record in caplog.records]
    assert any("op=CREATE" not in line and "HTTP Request" in line for line in said), "httpx is heard"
    assert not [line for line in said if secrets.within(line.encode()) or token[40:80] in line]
    assert not secrets.within(f"{error.value}{lost!r}{HdfsStorage(storage.root, lost)!r}".encode())
