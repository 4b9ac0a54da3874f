"""Upkeep to be killed: `python -m tests.upkeepers WAREHOUSE CATALOG` compacts, forgets snapshots and expires.

Goes on until the file `done` lies in the warehouse. Snapshots are forgotten as other programs do it.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from millrace.errors import MillraceError
from millrace_warehouse.publish.catalog import connect, load_table, table_identifier
from millrace_warehouse.publish.compact import CompactRun, compact_topic
from millrace_warehouse.publish.expire import ExpireRun, expire_topic
from millrace_warehouse.storage import Storage, open_storage
from tests.publishers import TOPIC

GRACE_S = 3.0
"""Longer than any step of a publication that reads a file."""


def upkeep(storage: Storage, catalog: Catalog) -> str:
    """Once around; what was done."""
    compacted = compact_topic(CompactRun(storage=storage, catalog=catalog, quiet_s=0.0, small_files=2), TOPIC)
    table = load_table(catalog, table_identifier(TOPIC))
    if table is not None:
        old = [snapshot.snapshot_id for snapshot in table.snapshots()[:-2]]
        with suppress(CommitFailedException, ValueError):
            table.maintenance.expire_snapshots().by_ids(old).commit()
    run = ExpireRun(storage=storage, catalog=catalog, older_than_s=0.0, reader_grace_s=GRACE_S)
    return f"compacted {len(compacted.hours)}, expired {expire_topic(run, TOPIC).data_files}"


if __name__ == "__main__":
    warehouse = open_storage(sys.argv[1])
    while not Path(sys.argv[1], "done").exists():
        try:
            with connect(warehouse, sys.argv[2]) as opened:
                print(upkeep(warehouse, opened), flush=True)
        except MillraceError as error:
            print(error, flush=True)
