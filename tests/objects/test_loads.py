"""Loads into an object store, and their table in a REST catalog: killed, raced, read by others.

SeaweedFS takes names of tables in small letters only, as S3 Tables and Glue do: so are the topics.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.catalog import load_catalog

from millrace_warehouse.publish.catalog import table_identifier
from tests.jobs import kill_at_a_step
from tests.peers.seaweedfs import KEY, REGION, SECRET, SeaweedFS
from tests.remote_warehouse import CATALOG, RemoteWarehouse, at_each_step
from tests.support import Process, wait_until

ROWS = 600
PATIENCE_S = 300
"""For a job to reach a step on a machine that does other things, too."""


def test_loads_the_table_late_rows_and_the_proof(lake: RemoteWarehouse, seaweedfs: SeaweedFS) -> None:
    topic = lake.site.topic("views", 3)
    lake.produce(topic, 2_000)
    first = lake.load(topic)
    assert (first.load, first.rows, first.rejected) == (1, 2_000, 0)
    assert lake.publish(topic)["rows"] == 2_000
    lake.check_table(topic)
    lake.produce(topic, 40)  # of the first hour again: late
    assert lake.load(topic).load == 2
    assert lake.reload(topic, 1).rows == 2_000
    assert lake.publish(topic, hours=[])["rows"] == 2_040
    lake.check_table(topic)
    lake.compact(topic)
    lake.check_table(topic)
    lake.expire(topic)
    lake.check_table(topic)
    # Anybody: pyiceberg's own client of S3, and the same catalog.
    others = {
        "s3.endpoint": seaweedfs.s3,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.region": REGION,
    }
    table = load_catalog(CATALOG, **others).load_table(table_identifier(topic))
    assert table.scan(selected_fields=("_load",)).to_arrow().num_rows == 2_040


@pytest.mark.parametrize("steps", [2, 4, 5], ids=["planned", "prepared", "committed"])
def test_a_driver_killed_at_a_step_and_run_again_loads_every_message_once(
    lake: RemoteWarehouse, steps: int
) -> None:
    topic = lake.site.topic(f"killed-{steps}", 2)
    lake.produce(topic, ROWS)
    assert lake.load(topic).load == 1
    lake.produce(topic, ROWS)
    command = lake.command("load", topic, "--run-id", "killed")
    kill_at_a_step(Process(command), steps=steps, pause_s=0, timeout_s=PATIENCE_S)
    again = lake.load(topic, run_id="killed")
    assert (again.load, again.rows) == (2, ROWS)
    lake.check_loads(topic)


def test_two_drivers_that_race_load_every_message_once(lake: RemoteWarehouse) -> None:
    topic = lake.site.topic("raced", 2)
    for turn in range(1, 4):
        lake.produce(topic, ROWS)
        barrier = threading.Barrier(2)

        def drive(run_id: str, barrier: threading.Barrier = barrier, turn: int = turn) -> int | None:
            barrier.wait(PATIENCE_S)
            return lake.load(topic, run_id=f"{run_id} {turn}").load

        with ThreadPoolExecutor(2) as drivers:
            assert set(drivers.map(drive, ("one", "other"))) == {turn}
    lake.check_loads(topic)


def test_a_store_killed_while_tasks_upload_and_before_the_manifest_a_load_goes_on(
    lake: RemoteWarehouse, seaweedfs: SeaweedFS
) -> None:
    topic = lake.site.topic("store-killed", 3)
    lake.produce(topic, 3 * ROWS)
    watched = lake.storage
    restarts: list[threading.Thread] = []

    def bounce() -> None:
        seaweedfs.kill()
        seaweedfs.start()

    def bounce_while_tasks_upload() -> None:
        wait_until("tasks upload", lambda: watched.files(f"{topic}/rows"), timeout_s=60)
        bounce()

    def begin(step: str) -> None:
        chosen = {"planned": bounce_while_tasks_upload, "prepared": bounce}.get(step)
        if chosen:
            restarts.append(threading.Thread(target=chosen))
            restarts[-1].start()

    with at_each_step(begin):
        result = lake.load(topic, cut_bytes=20_000)
    for restart in restarts:
        restart.join(90)
    assert (result.load, result.rows, result.published) == (1, 3 * ROWS, True)
    assert lake.publish(topic)["rows"] == 3 * ROWS
    lake.check_table(topic)
