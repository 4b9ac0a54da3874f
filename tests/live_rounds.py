"""Two resident loaders, a publisher and a compactor, killed at random; an observer looks all the time.

`python -m tests.live_rounds WAREHOUSE CATALOG KILLS`: each kill is a round as in `tests.kill_rounds`, for a
topic whose table has branch `live`. In each look of the observer, and after each kill, the branch shows the
first rows of each partition, each once and without a hole, and all rows of `main`, as `main` was when the
branch was committed. After every ten kills both branches show every row, and `verify` has nothing to say.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import ancestors_of

from millrace.errors import is_bug
from millrace.records import iter_records
from millrace_warehouse.commands.following import LiveBranch
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.load.resident import SEAL_S, Resident
from millrace_warehouse.publish.branch_commit import LIVE, head_of
from millrace_warehouse.publish.catalog import load_table, table_identifier
from millrace_warehouse.publish.live import SHOWN
from tests import kill_rounds
from tests.kill_rounds import ERROR, TOPIC, Site, Workers, compact, publish
from tests.unit.warehouse.memory_log import MemoryLog, load_run

KILLS = 5
"""Kills of a round: a round then takes some seconds."""
TURNS, TURN_S = 40, 0.1
"""Turns of a loader before it stops, and the longest pause between two."""
TAIL_S = 1.5
"""Age at which a tail becomes a load."""
LEASE_S = 0.5
"""Shorter than many a turn on a busy machine, so that loaders take the tail from each other."""
LOOKS = 20
"""Looks of the observer with one connection to the catalog."""


class _Branch(LiveBranch):
    """The branch of a loader that ends when it meets a bug. The real one goes on without the branch."""

    def _note(self, error: Exception) -> None:
        if is_bug(error):
            raise error
        super()._note(error)


def reside(site: Site) -> None:
    """Read on for some turns and show what was read; then make a load of the rest."""
    with site.opened() as (storage, catalog):
        branch = _Branch(Topic(storage, TOPIC), lambda: catalog, LEASE_S)
        run = load_run(site.grown_log(), storage, f"resident {os.getpid()}")
        clock = lambda: time.monotonic() * SEAL_S / TAIL_S  # noqa: E731
        loader = Resident(run, TOPIC, branch, clock=clock)
        for _ in range(TURNS):
            site.grown_log()
            site.note("loads", loader.turn() is not None)
            if loader.tail_rows:
                site.note("turns with a tail")
            if branch.trouble is not None:
                site.note(f"{ERROR}{branch.trouble}")
            time.sleep(random.uniform(0, TURN_S))
        site.note("loads", loader.stop() is not None)


@cache
def _offsets(log: MemoryLog) -> Mapping[int, Sequence[int]]:
    """Return the offsets of all messages of each partition, in order."""
    return {
        number: [
            record.offset
            for header in partition.batches()
            for record in iter_records(
                header, partition.log[header.base_offset : header.base_offset + header.size]
            )
        ]
        for number, partition in log.partitions.items()
    }


def _rows(table: Table, branch: str) -> dict[int, list[int]]:
    """Return the offsets of a branch's rows, by partition, sorted."""
    scan = table.scan(selected_fields=("_topic_partition", "_offset")).use_ref(branch)
    found: dict[int, list[int]] = {}
    for row in scan.to_arrow().to_pylist():
        found.setdefault(row["_topic_partition"], []).append(row["_offset"])
    return {partition: sorted(offsets) for partition, offsets in found.items()}


def _check_main_is_included(table: Table) -> None:
    """Check that the branch was made from `main` as it was when the branch was committed."""
    live, main = (table.metadata.snapshot_by_name(branch) for branch in (LIVE, MAIN_BRANCH))
    assert live is not None
    assert live.summary is not None
    line = ancestors_of(main, table.metadata)
    before = next(each for each in line if (each.sequence_number or 0) < (live.sequence_number or 0))
    assert json.loads(live.summary[SHOWN] or "")["main"] == before.snapshot_id, "the branch has an old `main`"


def _look(site: Site, table: Table) -> int:
    """Check both branches of a table as a reader sees them. Return the number of rows in the branch."""
    shown, proven = _rows(table, LIVE), _rows(table, MAIN_BRANCH)
    for partition, offsets in _offsets(site.log).items():
        there, published = shown.get(partition, []), proven.get(partition, [])
        assert there == [*offsets[: len(there)]], f"partition {partition} shows {there}"
        assert len({*published}) == len(published), f"main has rows of partition {partition} twice"
        missing = sorted({*published} - {*there})
        assert not missing, f"partition {partition}: main has {missing}, the branch lacks these rows"
    _check_main_is_included(table)
    return sum(map(len, shown.values()))


def observe(site: Site, looks: int = LOOKS) -> None:
    """Look at the branches several times."""
    most = 0
    with site.opened() as (_, catalog):
        for _ in range(looks):
            table = load_table(catalog, table_identifier(TOPIC))
            if table is None or LIVE not in table.metadata.refs:
                continue
            try:
                rows = _look(site, table)
            except FileNotFoundError:  # the tail of a loader that another one has overtaken
                now = load_table(catalog, table_identifier(TOPIC))
                assert now is not None
                assert head_of(now, LIVE) != head_of(table, LIVE), "the branch names files that are gone"
                site.note("looks without their files")
                continue
            site.note("looks")
            site.note("looks with fewer rows than the one before", rows < most)
            most = rows


def look(site: Site) -> None:
    """Look at the branches once."""
    observe(site, 1)


def check(site: Site) -> None:
    """Check that both branches have every row after the next load and publication."""
    kill_rounds.check(site)
    with site.opened() as (_, catalog):
        table = catalog.load_table(table_identifier(TOPIC))
        sent = kill_rounds.EVENTS * site.rounds
        assert _look(site, table) == sent, "the branch does not show every row"


WORKERS: Workers = {
    "resident 1": reside,
    "resident 2": reside,
    "publisher": publish,
    "compactor": compact,
    "observer": observe,
}


def live_rounds(warehouse: str, catalog: str, rounds: int) -> str:
    """The last line of so many rounds of KILLS each; AssertionError with all that was said when one has
    failed.
    """
    return kill_rounds.kill_rounds(warehouse, catalog, KILLS * rounds, module="tests.live_rounds")


if __name__ == "__main__":
    kill_rounds.main(sys.argv[1], sys.argv[2], int(sys.argv[3]), WORKERS, look, check)
