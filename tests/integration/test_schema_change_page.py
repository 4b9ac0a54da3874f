"""docs/schema-change.md as it stands: each command is run in order, and ends as the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from millrace_warehouse.history.layout import Topic, newest_load, read_load
from millrace_warehouse.storage import open_storage
from tests.support import REPOSITORY, START_S, Process
from tests.warehouses import TestSite

Start = Callable[..., Process]
PAGE = (REPOSITORY / "docs" / "schema-change.md").read_text()


@pytest.mark.slow
def test_a_change_goes_from_a_pull_request_to_the_table_as_the_page_says(
    zookeeper: str, start: Start, tmp_path: Path
) -> None:
    site = TestSite.start(start, f"change-{uuid4().hex[:6]}", tmp_path, zookeeper)
    there = {"http://127.0.0.1:8081": site.registry, "127.0.0.1:9392": site.cluster.bootstrap}
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    said = dict[str, str]()
    for ends, commands in re.findall(r"^```(fails)?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        for address, real in there.items():
            commands = commands.replace(address, real)
        exports = "\n".join(re.findall(r"^export .*", PAGE, re.MULTILINE))
        for address, real in there.items():
            exports = exports.replace(address, real)
        done = subprocess.run(
            ["bash", "-euc", f"{exports}\n{commands}"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=2 * START_S,
        )  # fmt: skip
        output = said[commands.strip().splitlines()[0]] = done.stdout + done.stderr
        assert (done.returncode != 0) == bool(ends), f"{commands}\n{output}"
    refused = [
        output for commands, output in said.items() if commands.startswith(("millrace schemas", "python"))
    ]
    assert "amount: string cannot read int" in refused[0]
    assert re.search(r"topic orders: 3 retained messages of\s+schema id \d+ could not be\s+read", refused[1])
    assert "incompatible" in refused[2]
    assert "+ currency: string" in said["git checkout -q schemas/orders.avsc"]
    assert "currency" in said[next(reversed(said))], "the load before the promotion names the field"
    storage = open_storage(str(folder / "warehouse"))
    newest = newest_load(Topic(storage, "orders"))
    assert newest is not None
    assert newest.load == 3
    rows = [
        row
        for load in (1, 2, 3)
        for file in read_load(Topic(storage, "orders"), load).files
        for row in pq.read_table(folder / "warehouse" / "orders" / file.path).to_pylist()
    ]
    rows.sort(key=lambda row: row["id"])
    assert [(row["id"], row["amount"], row.get("currency")) for row in rows] == [
        (number, 10 * number, "NOK" if number > 6 else None) for number in range(1, 10)
    ]
