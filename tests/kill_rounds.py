"""Rounds of SIGKILL among the programs of one warehouse; for a test.

`python -m tests.kill_rounds WAREHOUSE CATALOG ROUNDS`: three publishers, two loaders, a compactor, an expirer
and an eraser work on one topic. A round kills one of them at a random moment, starts another in its place and
looks at the table as a reader does: no row is there twice, and none is gone that was there before and that
nobody erases. Every tenth round, and the last, kills all of them at once, ends the erasures that were begun,
and holds history and table against the log: each row that was not erased once in both, none that was, and
nothing for `verify` to say. Prints one line, what was killed and what was done.

Everything is forked from one process that has imported all and opened nothing: imports take longer than all
the rest.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.erase.erasing import erase_topic
from millrace_warehouse.history.erasures import read_done, recorded
from millrace_warehouse.history.layout import Topic, load_numbers, newest_load, read_checked
from millrace_warehouse.history.manifest import Publication
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, reload_topic
from millrace_warehouse.publish.catalog import connect, load_table, table_identifier
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.expire import expire_topic
from millrace_warehouse.publish.gate import NoAuditor
from millrace_warehouse.publish.hours_table import hours_identifier
from millrace_warehouse.publish.publisher import publish_topic
from millrace_warehouse.publish.table import PATH
from millrace_warehouse.requests import Compact, Erase, Expire, Publish
from millrace_warehouse.storage import Storage, open_storage
from millrace_warehouse.verify import VerifyRun, verify
from tests.support import Process
from tests.unit.warehouse.memory_log import HOUR, START, MemoryLog, load_run

TOPIC = "page_view"
"""There are catalogs that take no capital letters."""
HOURS = [f"2015-05-17T{hour}" for hour in range(10, 16)]
PARTITIONS, BATCH = 2, 5
EVENTS = PARTITIONS * BATCH
"""That each round adds to the log."""
CHECK_EVERY = 10
MOST_ERASED = 20
"""Erasures that are recorded: each load and each check looks at all of them."""
ERROR = "error: "
GRACE_S = 10.0
"""Longer than any step of a program that reads a file, and than a look at the table."""
ROUND_S = 60.0
"""More than a round takes on a machine that does other things, too."""


@dataclass(frozen=True)
class Site:
    """Settings that the forked processes share."""

    warehouse: str
    catalog: str
    log: MemoryLog
    ends: list[dict[int, int]]
    """Rounds begun -> where each partition ends then."""
    begun: mmap.mmap
    """Rounds begun, in the memory of all."""
    notes: Path
    """File in which the processes write a line for each thing done."""
    seen: Path
    """The rows that somebody has seen in the table."""

    @property
    def rounds(self) -> int:
        return int.from_bytes(self.begun[:8], "big")

    def begin_round(self) -> None:
        self.begun[:8] = (self.rounds + 1).to_bytes(8, "big")

    def grown_log(self) -> MemoryLog:
        for partition, end in self.ends[self.rounds].items():
            self.log.partitions[partition].high_watermark = end
        return self.log

    def note(self, what: str, times: int = 1) -> None:
        with self.notes.open("a") as file:
            file.write(f"{what}\n" * times)

    def noted(self) -> Counter[str]:
        return Counter(self.notes.read_text().splitlines() if self.notes.exists() else [])

    @property
    def done(self) -> str:
        """Actions done so far, each with its count."""
        done = sorted(self.noted().items())
        return ", ".join(f"{times} {what}" for what, times in done if not what.startswith(ERROR))

    def print_errors(self) -> None:
        for what, times in self.noted().items():
            if what.startswith(ERROR):
                print(f"{times} times {what}", flush=True)

    @contextmanager
    def opened(self) -> Iterator[tuple[Storage, Catalog]]:
        storage = open_storage(self.warehouse)
        with connect(storage, self.catalog) as catalog:
            yield storage, catalog


Step = Callable[[Site], None]
Workers = Mapping[str, Step]


def load(site: Site, name: str = "loader") -> None:
    """Load what is new, and read a load again now and then. A program that is begun anew has the old plan."""
    storage, log = open_storage(site.warehouse), site.grown_log()
    newest = newest_load(Topic(storage, TOPIC))
    run_id = f"{name} {newest.load if newest else 0} {log.partitions[0].high_watermark}"
    if load_topic(load_run(log, storage, run_id), TOPIC).published:
        site.note("loads")
    if name == "loader" and random.random() < 0.1:
        context = load_run(log, storage, f"again {random.random()}").context
        again = [random.choice(load_numbers(Topic(storage, TOPIC))[-20:])]
        reload_topic(ReloadRun(context=context, reason="a test"), TOPIC, again)
        site.note("editions")


def publish(site: Site, hours: int = 2) -> None:
    """Publish some hours at random, and what has come late for those that are published."""
    with site.opened() as (storage, catalog):
        context = Context(storage=storage, catalog=catalog)
        request = Publish(topics=[TOPIC], warehouse=storage.root, hours=random.sample(HOURS, hours))
        if publish_topic(context, request, TOPIC, NoAuditor()).published:
            site.note("publications")


def compact(site: Site) -> None:
    with site.opened() as (storage, catalog):
        context = Context(storage=storage, catalog=catalog)
        request = Compact(topics=[TOPIC], warehouse=storage.root, quiet_s=0.0, small_files=2)
        site.note("compacted hours", len(compact_topic(context, request, TOPIC).hours))


def expire(site: Site) -> None:
    """Forget all snapshots but two, as other programs do it, and delete what nobody needs then."""
    with site.opened() as (storage, catalog):
        if (table := load_table(catalog, table_identifier(TOPIC))) is None:
            return
        old = [snapshot.snapshot_id for snapshot in table.snapshots()[:-2]]
        with suppress(Exception):  # whatever a catalog says to two that commit at once
            table.maintenance.expire_snapshots().by_ids(old).commit()
        request = Expire(topic=TOPIC, warehouse=storage.root, older_than_s=0.0, reader_grace_s=GRACE_S)
        expired = expire_topic(Context(storage=storage, catalog=catalog), request)
        site.note("expired files", expired.data_files + expired.compacted_files)


def erased(storage: Storage) -> dict[str, int]:
    """Every erasure that was recorded, and the sequence that it takes."""
    return {each.id: int(each.id.rpartition("-")[2]) for each in recorded(Topic(storage, TOPIC))}


def erase(site: Site, sequence: int | None = None) -> None:
    """Erase one row, or go on with an erasure that was begun."""
    with site.opened() as (storage, catalog):
        ids = erased(storage)
        begun = [number for id_, number in ids.items() if read_done(Topic(storage, TOPIC), id_) is None]
        most = len(ids) >= MOST_ERASED
        if sequence is None and (begun or most):
            sequence = random.choice(begun or [*ids.values()])
        number = random.randrange(EVENTS * site.rounds) if sequence is None else sequence
        request = Erase(
            topic=TOPIC,
            warehouse=storage.root,
            where=f"header.sequence = {number}",
            reason="a test",
            id=f"sequence-{number}",
        )
        context = Context(storage=storage, catalog=catalog)
        result = erase_topic(context, request, NoAuditor(), lambda: None)
        if not result.message.startswith("nothing"):
            site.note("erasures")


WORKERS: Workers = {
    "publisher 1": publish,
    "publisher 2": publish,
    "publisher 3": publish,
    "loader 1": load,
    "loader 2": load,
    "compactor": compact,
    "expirer": expire,
    "eraser": erase,
}


def sequences(table: Table) -> list[int]:
    """Return the sequences of all rows in the table, sorted."""
    header = table.scan(selected_fields=("header",)).to_arrow()["header"].combine_chunks()
    return sorted(header.field("sequence").to_pylist())


def look(site: Site) -> None:
    """A reader's look at one snapshot while the others work."""
    with site.opened() as (storage, catalog):
        if (table := load_table(catalog, table_identifier(TOPIC))) is None or PATH not in table.properties:
            return
        try:
            rows = sequences(table)
        except FileNotFoundError:  # an erasure leaves no query its files
            site.note("queries without their files")
            return
        stated = read_checked(storage, Publication, table.properties[PATH]).rows
    once = set(rows)
    twice = [row for row, times in Counter(rows).items() if times > 1]
    assert not twice, f"rows that are there twice: {twice[:20]}"
    assert len(rows) == stated, f"{len(rows)} rows, the publication states {stated}"
    assert once <= set(range(EVENTS * site.rounds)), "rows that nobody has sent"
    before = set(map(int, site.seen.read_text().split())) if site.seen.exists() else set()
    with site.opened() as (storage, _):
        before -= {*erased(storage).values()}  # recorded before a row of it goes
    assert before <= once, f"rows that are gone: {sorted(before - once)[:20]}"
    site.seen.write_text(" ".join(map(str, rows)))


def check(site: Site) -> None:
    """Each row once in history and in the table, once the next load and publication are through."""
    load(site, "checker")
    with site.opened() as (storage, _):
        ids = erased(storage)
    for number in ids.values():
        erase(site, number)
    publish(site, len(HOURS))
    look(site)
    sent = EVENTS * site.rounds
    with site.opened() as (storage, catalog):
        (report,) = verify(VerifyRun(storage=storage, catalog=catalog, rows=True), TOPIC)
        table = catalog.load_table(table_identifier(TOPIC))
        hours = catalog.load_table(hours_identifier(TOPIC)).scan().to_arrow().to_pylist()
        assert report.problems == [], report.problems
        left = sorted({*range(sent)} - {*ids.values()})
        assert sequences(table) == left, "the table has not every row once"
        assert (report.rows, report.published) == (len(left), len(left)), (
            report.rows,
            report.published,
            left,
        )
        assert sum(row["added"] - row["removed"] for row in hours) == len(left), "the hours do not add up"
    site.note("checks")


def fork(work: Callable[[], None]) -> int:
    """The pid of a process that does the work; it ends with 1 when that fails."""
    if (pid := os.fork()) == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return pid


def in_a_process(site: Site, step: Step) -> None:
    """AssertionError when the step fails; why is on standard error."""
    code = os.waitstatus_to_exitcode(os.waitpid(fork(lambda: step(site)), 0)[1])
    assert code == 0, f"the {step.__name__} in round {site.rounds} has failed"


def work_on(site: Site, work: Step, parent: int) -> None:
    """Do the same again and again, until the process is killed or the one that forked it has ended."""
    while os.getppid() == parent:
        try:
            work(site)
        except MillraceError as error:  # races that were lost, a table that is not there yet
            site.note(f"{ERROR}{error}")
        time.sleep(random.uniform(0, 0.1))


class Rounds:
    """The processes, and who kills them."""

    def __init__(self, site: Site, workers: Workers, look: Step, check: Step) -> None:
        self._site, self._workers, self._look, self._check = site, workers, look, check
        self._pids: dict[str, int] = {}
        self.killed: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        """AssertionError when a look or a check fails, or a process ends by itself."""
        try:
            for number in range(1, rounds + 1):
                self._site.begin_round()
                for name in self._workers.keys() - self._pids.keys():
                    self._start(name)
                time.sleep(random.uniform(0.05, 1.0))
                self._kill(random.choice(sorted(self._pids)))
                in_a_process(self._site, self._look)
                if number % CHECK_EVERY == 0 or number == rounds:
                    self._kill(*self._pids)
                    in_a_process(self._site, self._check)
        finally:
            self._kill(*self._pids)

    def _start(self, name: str) -> None:
        parent = os.getpid()
        self._pids[name] = fork(lambda: work_on(self._site, self._workers[name], parent))

    def _kill(self, *names: str) -> None:
        for name in names:
            os.kill(self._pids[name], signal.SIGKILL)
        for name in names:
            code = os.waitstatus_to_exitcode(os.waitpid(self._pids.pop(name), 0)[1])
            assert code == -signal.SIGKILL, f"the {name} has ended with {code}"
            self.killed[name.partition(" ")[0]] += 1


@contextmanager
def made_site(warehouse: str, catalog: str, rounds: int) -> Iterator[Site]:
    """The log of so many rounds, none of which has begun, and what the processes share."""
    log, ends = MemoryLog(PARTITIONS, topic=TOPIC), [dict.fromkeys(range(PARTITIONS), 0)]
    for _ in range(rounds):
        for partition in range(PARTITIONS):
            hour = random.randrange(len(HOURS))
            log.append_events(partition, [START + hour * HOUR + n for n in range(BATCH)])
        ends.append({number: one.high_watermark for number, one in log.partitions.items()})
    with tempfile.TemporaryDirectory() as folder, mmap.mmap(-1, 8) as begun:
        yield Site(warehouse, catalog, log, ends, begun, Path(folder, "notes"), Path(folder, "seen"))


def main(
    warehouse: str,
    catalog: str,
    rounds: int,
    workers: Workers = WORKERS,
    look: Step = look,
    check: Step = check,
) -> None:
    with made_site(warehouse, catalog, rounds) as site:
        killing = Rounds(site, workers, look, check)
        try:
            killing.run(rounds)
        finally:
            site.print_errors()
        kills = ", ".join(f"{times} {name}s" for name, times in sorted(killing.killed.items()))
        print(f"{rounds} rounds, {killing.killed.total()} kills ({kills}): {site.done}", flush=True)


def kill_rounds(warehouse: str, catalog: str, rounds: int, module: str = "tests.kill_rounds") -> str:
    """The last line of so many rounds; AssertionError with all that was said when one of them has failed."""
    process = Process([warehouse, catalog, str(rounds)], module=module)
    code = process.wait(timeout_s=3 * ROUND_S + rounds * ROUND_S)
    assert code == 0, process.output
    print(process.output)
    return process.lines[-1]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
