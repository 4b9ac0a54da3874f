"""A program that commits on a branch of its own: arguments are warehouse, catalog and pause in seconds."""

from __future__ import annotations

import sys
import time

from pyiceberg.catalog import Catalog

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.publish.publishing import TOPIC, table_of

BRANCH = "experiment"


def commit_on_branch(catalog: Catalog, topic: str = TOPIC) -> None:
    """Commit no rows on the branch, which begins where main is."""
    table = table_of(catalog, topic)
    head = table.current_snapshot()
    assert head is not None
    if BRANCH not in table.metadata.refs:
        table.manage_snapshots().create_branch(head.snapshot_id, BRANCH).commit()
    with table.transaction() as change, change.update_snapshot(branch=BRANCH).fast_append():
        pass


if __name__ == "__main__":
    with connect(open_storage(sys.argv[1]), sys.argv[2]) as catalog:
        while True:
            commit_on_branch(catalog)
            print("committed", flush=True)
            time.sleep(float(sys.argv[3]))
