"""Publishers and upkeep at once, each killed at random: every row is there once, and all of it is proven."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.loaded import load, offsets, read_again
from tests.publishers import HOURS, ROWS, TOPIC, publish_all
from tests.support import ROUNDS, WAIT_S, Process


@pytest.mark.soak
def test_each_row_is_there_once_after_compactions_and_expiries_that_were_killed(tmp_path: Path) -> None:
    warehouse, loads = tmp_path / "w", 6 + 4 * ROUNDS
    warehouse.mkdir()
    storage, rng = open_storage(str(warehouse)), random.Random(loads)

    def start(module: str) -> Process:
        arguments = [str(warehouse), "", str(loads)]
        return Process(arguments, module=f"tests.{module}")

    load(storage, TOPIC, dict.fromkeys(HOURS[:6], ROWS))
    modules = ["publishers", "publishers", "upkeepers", "upkeepers"]
    running = [start(module) for module in modules]
    try:
        for number in range(2, loads + 1):
            load(storage, TOPIC, {rng.choice(HOURS[:8]): ROWS})
            if number % 4 == 0:
                read_again(storage, TOPIC, number, {rng.choice(HOURS): ROWS})
            time.sleep(rng.uniform(0.5, 2.0))
            victim = rng.randrange(4)
            if running[victim].running:
                running[victim].kill()
                running[victim] = start(modules[victim])
        deadline = time.monotonic() + 4 * WAIT_S
        for publisher in running[:2]:
            publisher.wait(timeout_s=max(1.0, deadline - time.monotonic()))
        (warehouse / "done").touch()
        for upkeeper in running[2:]:
            upkeeper.wait(timeout_s=WAIT_S)
    finally:
        for process in running:
            if process.running:
                process.kill()
    (warehouse / "done").unlink()
    publish_all(str(warehouse), "", loads)  # an edition may have come behind the last publication
    said = [line for process in running[2:] for line in process.lines]
    assert any("compacted" in line and "compacted 0" not in line for line in said), said
    with connect(storage) as catalog:
        rows = ROWS * (5 + loads)
        assert offsets(catalog.load_table(table_identifier(TOPIC))) == list(range(rows))
        (report,) = verify(VerifyRun(storage=storage, catalog=catalog, rows=True), TOPIC)
        assert (report.problems, report.published) == ([], rows)
