"""Publishers to be killed: `python -m tests.publishers WAREHOUSE CATALOG LOADS` publishes until all is in.

Beside it what a test needs to start some of them, to kill them, and to look at what they have left.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping

from millrace.errors import MillraceError
from millrace_warehouse.history.manifest import UNASKED, Verdict
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.publisher import PublishRun, publish_topic
from millrace_warehouse.storage import open_storage
from tests.loaded import load, offsets, read_again
from tests.support import WAIT_S, Process

TOPIC = "page_view"  # there are catalogs that take no capital letters
HOURS = [f"2015-05-17T{hour:02d}" for hour in range(24)]
ROWS = 3


def publish_all(warehouse: str, catalog_name: str, loads: int) -> None:
    """Publish random hours, and what comes late for them, until every hour of every load is in."""
    storage = open_storage(warehouse)
    deadline = time.monotonic() + 4 * WAIT_S
    while True:
        hours = random.sample(HOURS, 2)
        try:
            with connect(storage, catalog_name) as catalog:
                run = PublishRun(
                    storage=storage,
                    catalog=catalog,
                    run_id="kill",
                    verdict_of=lambda topic, hour: Verdict(verdict=UNASKED),
                    hours=hours,
                )
                result = publish_topic(run, TOPIC)
        except MillraceError as error:  # 20 lost races in a row, or a catalog that had to be recovered
            print(error, flush=True)
            if time.monotonic() > deadline:
                raise
            continue
        newest = result.publication
        if newest is not None and newest.loads.load == loads and not newest.unpublished:
            return


def killed_publishers(warehouse: str, catalog_name: str, env: Mapping[str, str], kills: int) -> int:
    """Let three publishers publish while loads and editions come, and kill one so often; the loads made."""
    storage = open_storage(warehouse)
    loads = 4 + kills
    rng = random.Random(kills)

    def start() -> Process:
        return Process([warehouse, catalog_name, str(loads)], env=env, module="tests.publishers")

    load(storage, TOPIC, dict.fromkeys(HOURS[:6], ROWS))
    publishers = [start() for _ in range(3)]
    try:
        for number in range(2, loads + 1):
            load(storage, TOPIC, {rng.choice(HOURS): ROWS})
            if number % 5 == 0:
                read_again(storage, TOPIC, number, {rng.choice(HOURS): ROWS})
            if number > 4:
                time.sleep(rng.uniform(0.2, 2.0))
                victim = rng.randrange(3)
                if publishers[victim].running:
                    publishers[victim].kill()
                    publishers[victim] = start()
        deadline = time.monotonic() + 4 * WAIT_S
        for publisher in publishers:
            publisher.wait(timeout_s=max(1.0, deadline - time.monotonic()))
    finally:
        for publisher in publishers:
            if publisher.running:
                publisher.kill()
    return loads


def check(warehouse: str, catalog_name: str, loads: int) -> None:
    """Every row of every load is in the table once, and the table of hours adds up to them."""
    publish_all(warehouse, catalog_name, loads)  # an edition may have come behind the last publication
    storage = open_storage(warehouse)
    with connect(storage, catalog_name) as catalog:
        table = catalog.load_table(table_identifier(TOPIC))
        rows = ROWS * 6 + ROWS * (loads - 1)
        assert offsets(table) == list(range(rows))
        hours = catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().to_pylist()
        assert sum(row["added"] - row["removed"] for row in hours) == rows
        numbers = sorted({row["publication"] for row in hours})
        assert numbers[-1] == int(table.properties["millrace.publication"])


if __name__ == "__main__":
    publish_all(sys.argv[1], sys.argv[2], int(sys.argv[3]))
