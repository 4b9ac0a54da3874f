"""Loads on an HDFS with Kerberos, TLS and encrypted blocks, while NameNodes fail over and tokens end."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from millrace_warehouse.commands import execute
from millrace_warehouse.requests import Erase
from tests.hadoop.conftest import RENEW_S, USER, environment, identity
from tests.peers.hdfs import Hdfs
from tests.peers.kdc import Kdc
from tests.remote_warehouse import CATALOG, RemoteWarehouse, at_each_step, nothing
from tests.support import run_millrace, wait_until

ROWS = 600


def test_everything_that_a_warehouse_can_do_it_does_with_kerberos(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("Secured", 2)
    for load in (1, 2, 3):
        warehouse.produce(topic, ROWS)
        result = warehouse.load(topic)
        assert (result.load, result.rows, result.rejected) == (load, ROWS, 0)
    assert warehouse.publish(topic)["rows"] == 3 * ROWS
    warehouse.check_table(topic)
    assert warehouse.reload(topic, 1).rows == ROWS
    warehouse.publish(topic, hours=[])
    warehouse.compact(topic)
    warehouse.check_table(topic)
    warehouse.expire(topic)
    warehouse.check_table(topic)
    request = Erase(
        topic=topic, warehouse=warehouse.uri, where="header.sequence = 7", reason="a test", catalog=CATALOG
    )
    erased = execute.erase(request, nothing)
    assert erased["rows"] == 3
    report = warehouse.verify(topic)
    assert report.problems == []
    assert warehouse.rows(topic).total() == 3 * ROWS - 3


def test_a_command_with_a_ticket_and_no_keytab_loads_and_its_processes_have_none(
    warehouse: RemoteWarehouse, kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    topic = warehouse.site.topic("ByTicket", 2)
    warehouse.produce(topic, ROWS)
    kdc.ticket(keytab, USER, tmp_path / "cache")
    with environment(identity(None, tmp_path / "cache")):
        loaded = run_millrace(*warehouse.command("load", topic))
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    (result,) = json.loads(loaded.stdout)
    assert result["rows"] == ROWS
    warehouse.check_loads(topic)


@pytest.mark.parametrize("step", ["planned", "written", "prepared"])
def test_namenodes_that_fail_over_at_a_step_do_not_end_a_load(
    warehouse: RemoteWarehouse, hdfs: Hdfs, step: str
) -> None:
    topic = warehouse.site.topic(f"FailOver-{step}", 2)
    warehouse.produce(topic, ROWS)
    turns: list[threading.Thread] = []

    def fail_over(reached: str) -> None:
        if reached == step and not turns:
            turns.append(threading.Thread(target=hdfs.fail_over))
            turns[0].start()

    with at_each_step(fail_over):
        result = warehouse.load(topic)
    turns[0].join(90)
    assert (result.load, result.rows, result.published) == (1, ROWS, True)
    hdfs.start()
    warehouse.check_loads(topic)


def test_namenodes_that_fail_over_while_tasks_upload_take_the_same_token(
    warehouse: RemoteWarehouse, hdfs: Hdfs
) -> None:
    topic = warehouse.site.topic("FailOver-uploads", 2)
    warehouse.produce(topic, 3 * ROWS)
    watched = warehouse.storage

    def fail_over() -> None:
        wait_until("tasks upload", lambda: watched.files(f"{topic}/rows"), timeout_s=60)
        hdfs.fail_over()

    failing = threading.Thread(target=fail_over)
    failing.start()
    assert warehouse.load(topic, cut_bytes=20_000).rows == 3 * ROWS
    failing.join(90)
    assert warehouse.publish(topic)["rows"] == 3 * ROWS
    hdfs.start()
    warehouse.check_table(topic)


def test_a_load_that_takes_longer_than_its_token_lives_has_it_renewed(warehouse: RemoteWarehouse) -> None:
    topic = warehouse.site.topic("Long", 2)
    warehouse.produce(topic, ROWS)

    def linger(step: str) -> None:
        if step in ("planned", "written"):
            time.sleep(1.5 * RENEW_S)

    with at_each_step(linger):
        assert warehouse.load(topic).rows == ROWS
    warehouse.check_loads(topic)


def test_a_process_with_nothing_but_the_token_file_of_yarn_loads(
    warehouse: RemoteWarehouse, hdfs: Hdfs, kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    topic = warehouse.site.topic("TokenFile", 2)
    warehouse.produce(topic, ROWS)
    tokens = tmp_path / "container_tokens"
    kdc.ticket(keytab, USER, tmp_path / "cache")
    cache = {"KRB5CCNAME": str(tmp_path / "cache")}
    hdfs.tool("DelegationTokenFetcher", "--renewer", USER, str(tokens), env=cache)
    nothing_else = identity(None, tmp_path / "none")
    with environment({**nothing_else, "HADOOP_TOKEN_FILE_LOCATION": str(tokens)}):
        loaded = run_millrace(*warehouse.command("load", topic), "--engine", "local")
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    warehouse.check_loads(topic)
