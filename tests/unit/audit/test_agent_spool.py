"""The agent's spool: what was taken is there after every end of the process, whole, and no more than fits."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import MillraceError
from millrace_agent.spool import Chunk, Event, FilePosition, Form, Spool, SpooledInstance, SpoolFull
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.fingerprints import strong_fingerprint
from millrace_audit.reports.messages import FOR_EVER
from millrace_audit.reports.outcome import Outcome

START = 1_431_856_800_000
PLENTY = 1 << 30


def event(n: int, topic: str = "t", time: int = START) -> Event:
    return Event(topic, 1, time, None, b"%d" % n)


@pytest.fixture
def open_spool(tmp_path: Path) -> Iterator[Callable[..., Spool]]:
    opened: list[Spool] = []

    def make(folder: Path = tmp_path / "spool", limit: int = PLENTY) -> Spool:
        opened.append(Spool(folder, limit))
        return opened[-1]

    yield make
    for spool in opened:
        spool.close()


def bodies(spool: Spool, topic: str = "t", **options: Any) -> list[bytes]:
    found = spool.waiting(topic, **{"most": 1000, "most_bytes": PLENTY, **options})
    return [one.body for _, one in found]


def ids(spool: Spool, topic: str = "t") -> list[int]:
    return [number for number, _ in spool.waiting(topic, most=1000, most_bytes=PLENTY)]


def test_what_was_taken_is_there_after_a_start_in_order(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    for n in range(5):
        spool.take([event(2 * n), event(2 * n + 1)]).result()
    spool.take([event(0, "other")]).result()
    size = spool.bytes
    spool.close()
    again = open_spool()
    assert bodies(again) == [b"%d" % n for n in range(10)]
    assert (again.events, again.bytes) == (11, size)
    assert again.take_news() == {"t", "other"}
    assert again.take_news() == set()


def test_requests_that_do_not_fit_are_refused_whole_and_fit_once_there_is_room(
    open_spool: Callable[..., Spool],
) -> None:
    size = event(0).size
    spool = open_spool(limit=3 * size)
    spool.take([event(0), event(1)]).result()
    with pytest.raises(SpoolFull, match="nothing was taken, send the events again later"):
        spool.take([event(2), event(3)]).result()
    assert bodies(spool) == [b"0", b"1"]
    spool.take([event(4)]).result()
    one = SpooledInstance(1, "c", "s", "v")
    spool.announce(one, "t")
    first, *rest = ids(spool)
    spool.hand_over(Chunk("t", 1, 0, [first, *rest]))
    spool.settle(one, "t", {first: event(0)}, {})
    spool.take([event(5)]).result()
    assert bodies(spool) == [b"1", b"4", b"5"]
    assert spool.bytes == 3 * size


def test_a_batch_of_which_one_event_cannot_be_stored_leaves_nothing(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    spool.take([event(0)]).result()
    with pytest.raises(OverflowError):
        spool.take([event(1), event(2, time=1 << 70)]).result()
    spool.take([event(3)]).result()
    assert bodies(spool) == [b"0", b"3"]
    assert (spool.events, spool.bytes, spool.open_from) == (2, 2 * event(0).size, START)


def test_those_that_wait_at_once_share_a_commit(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    entered, leave = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        leave.wait(10)

    held = spool._change(hold)
    assert entered.wait(10)
    futures: list[Future[None]] = [spool.take([event(n)]) for n in range(50)]
    leave.set()
    held.result()
    before = spool.committed_groups
    for future in futures:
        future.result()
    assert spool.committed_groups == before + 1


def test_a_request_that_was_given_up_before_its_turn_leaves_nothing(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    entered, leave = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        entered.set()
        leave.wait(10)

    held = spool._change(hold)
    assert entered.wait(10)
    assert spool.take([event(0)]).cancel()
    leave.set()
    held.result()
    spool.take([event(1)]).result()
    assert bodies(spool) == [b"1"]


def test_one_process_at_a_time_has_the_folder(open_spool: Callable[..., Spool], tmp_path: Path) -> None:
    open_spool()
    with pytest.raises(MillraceError, match=r"another agent uses .*: stop it, or give each its own --spool"):
        Spool(tmp_path / "spool", PLENTY)


def test_values_that_were_taken_are_there_after_a_start_and_nothing_differs_from_an_empty_value(
    open_spool: Callable[..., Spool],
) -> None:
    spool = open_spool()
    events = [
        event(0),
        Event.of_value("t", START, None, b'{"order": 1}'),
        Event.of_value("t", START, b"k", b""),
        Event.of_value("t", START, b"k", None),
    ]
    spool.take(events).result()
    size = spool.bytes
    spool.close()
    again = open_spool()
    assert [one for _, one in again.waiting("t", most=9, most_bytes=PLENTY)] == events
    assert [one.form for one in events] == [Form.FIELDS, Form.VALUE, Form.VALUE, Form.TOMBSTONE]
    assert again.bytes == size


def make_older(folder: Path, version: int) -> None:
    """Change the database of a spool into the form that an earlier version wrote."""
    with closing(sqlite3.connect(folder / "spool.db")) as database:
        database.execute("alter table files drop column written_ns")
        database.execute("alter table files add column device integer not null default 1")
        if version < 4:
            database.execute("alter table events drop column form")
        if version < 3:
            for column in ("strong", "failed_strong"):
                database.execute(f"alter table untold drop column {column}")
        if version < 2:
            database.execute("drop table spool")
        database.execute(f"pragma user_version = {version}")


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_spool_of_an_earlier_version_goes_on_with_what_waits(
    open_spool: Callable[..., Spool], tmp_path: Path, version: int
) -> None:
    spool = open_spool()
    spool.take([event(0), event(1)]).result()
    one = SpooledInstance(spool.next_instance, "c", "s", "v")
    spool.announce(one, "t")
    chunk = Chunk("t", one.instance, 0, ids(spool)[:1])
    spool.hand_over(chunk)
    spool.take([], FilePosition("/log", 1, 5, b"tail", 2)).result()
    spool.close()
    make_older(tmp_path / "spool", version)
    again = open_spool()
    again.take([Event.of_value("t", START, None, b"{}")]).result()
    for spool in (again, open_spool(copied(tmp_path / "spool", tmp_path / "once more"))):
        found = [waiting for _, waiting in spool.waiting("t", most=9, most_bytes=PLENTY)]
        assert found == [event(0), event(1), Event.of_value("t", START, None, b"{}")]
        assert (spool.left_chunks(), [left.instance for left in spool.left_instances()]) == (
            [chunk],
            [one.instance],
        )
        assert spool.audit_offset is None
        assert spool.file_position("/log") == FilePosition("/log", 1, 5, b"tail", FOR_EVER)


def test_every_first_hello_gives_the_next_process_another_instance(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    first = spool.next_instance
    spool.announce(one := SpooledInstance(first, "c", "s", "v"), "t")
    spool.close()
    spool = open_spool()
    second = spool.next_instance
    assert second != first
    spool.announce(one, "another topic")
    spool.close()
    assert open_spool().next_instance == second


def test_an_adopted_spool_keeps_what_waits_and_forgets_who_has_sent(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    spool.take([event(0)]).result()
    first = spool.next_instance
    spool.announce(SpooledInstance(first, "c", "s", "v"), "t")
    spool.hand_over(Chunk("t", first, 0, ids(spool)))
    spool.adopt()
    spool.close()
    again = open_spool()
    assert (bodies(again), again.left_chunks(), again.left_instances()) == ([b"0"], [], [])
    assert again.next_instance != first


def test_events_are_read_by_number_and_size_and_the_first_however_large(
    open_spool: Callable[..., Spool],
) -> None:
    spool = open_spool()
    spool.take([event(n) for n in range(10)]).result()
    assert bodies(spool, most=3) == [b"0", b"1", b"2"]
    assert bodies(spool, most_bytes=2 * event(0).size) == [b"0", b"1"]
    assert bodies(spool, most_bytes=1) == [b"0"]
    numbers = ids(spool)
    assert bodies(spool, behind=numbers[6]) == [b"7", b"8", b"9"]
    assert bodies(spool, ids=[numbers[8], numbers[3]]) == [b"3", b"8"]


def test_the_oldest_window_that_waits_is_open_from_before_the_event_is_on_the_disk(
    open_spool: Callable[..., Spool],
) -> None:
    spool = open_spool()
    assert spool.open_from == FOR_EVER
    spool.take([event(0, time=START + WINDOW_MS), event(1, time=START + 5)]).result()
    assert spool.open_from == START
    one = SpooledInstance(1, "c", "s", "v")
    spool.announce(one, "t")
    late, early = ids(spool)
    spool.hand_over(Chunk("t", 1, 0, [late, early]))
    spool.settle(one, "t", {early: event(1, time=START + 5)}, {})
    assert spool.open_from == START + WINDOW_MS
    spool.close()
    assert open_spool().open_from == START + WINDOW_MS


def test_a_clock_stands_while_a_request_arrives(open_spool: Callable[..., Spool]) -> None:
    spool = open_spool()
    with spool.arriving():
        first = spool.arrived_by
        with spool.arriving():
            assert spool.arrived_by == first
    assert spool.arrived_by >= first


# The property: wherever the newest bytes of the database are cut off, the state is that after the last change
# whose bytes are all there.

Step = tuple[str, int]
steps = st.lists(
    st.tuples(st.sampled_from(["take", "settle", "report", "file"]), st.integers(1, 4)), max_size=12
)


def state(spool: Spool) -> Any:
    """All that a later process knows."""
    instances = [
        (one.instance, one.number, one.key, one.report, one.ended, one.hellos, sorted_outcomes(one))
        for one in spool.left_instances()
    ]
    return (
        spool.waiting("t", most=1000, most_bytes=PLENTY),
        spool.left_chunks(),
        instances,
        spool.file_position("/log"),
        spool.events,
        spool.bytes,
    )


def sorted_outcomes(one: SpooledInstance) -> Any:
    return sorted(
        (key, o.acknowledged.pairs(), o.failed.pairs(), o.fingerprint, o.failed_fingerprint)
        for key, o in one.unreported.items()
    )


class Story:
    """An instance's life with a spool; `note` is called after each change."""

    def __init__(self, spool: Spool, note: Callable[[], None]) -> None:
        self.spool, self.note, self.sequence, self.events = spool, note, 0, 0
        self.one = SpooledInstance(7, "dc1", "web", "shop")
        spool.announce(self.one, "t")
        note()

    def take(self, count: int) -> None:
        numbers = range(self.events + 1, self.events + count)
        values = [Event.of_value("t", START, b"k", b"%d" % n if n % 2 else None) for n in numbers]
        taken = [event(self.events), *values]
        self.spool.take(taken).result()
        self.events += count

    def settle(self, count: int) -> None:
        found = self.spool.waiting("t", most=count, most_bytes=PLENTY)
        if not found:
            return
        self.spool.hand_over(Chunk("t", 7, self.sequence, [number for number, _ in found]))
        self.note()
        outcome = Outcome()
        for place, _ in enumerate(found):
            digest = strong_fingerprint(b"x") if count == 4 else 1 << 63
            outcome.add(self.sequence + place, digest, failed=place == 0 and count > 2)
        gone = dict(found[1:] if count > 2 else found)
        self.spool.settle(self.one, "t", gone, {("t", START): outcome})
        self.sequence += len(found)

    def report(self, count: int) -> None:
        self.spool.report(
            self.one, b"report %d" % count, list(self.one.unreported), b"k" * 16, rest={}, ended=False
        )

    def file(self, count: int) -> None:
        self.spool.take([event(self.events)], FilePosition("/log", 1, self.events, b"tail", 2)).result()
        self.events += 1


def copied(folder: Path, to: Path, cut: int | None = None) -> Path:
    """The database's files as a power cut leaves them, the write-ahead log cut at a byte."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in ("spool.db", "spool.db-wal"):
        if (folder / name).exists():
            data = (folder / name).read_bytes()
            (to / name).write_bytes(data[:cut] if name.endswith("-wal") else data)
    return to


@settings(max_examples=5)
@given(steps)
def test_every_cut_of_the_file_leaves_the_state_after_the_changes_that_are_whole(
    tmp_path_factory: pytest.TempPathFactory, story: list[Step]
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    spool = Spool(folder / "spool", PLENTY)
    wal = folder / "spool" / "spool.db-wal"
    states, sizes = [], []

    def note() -> None:
        left = Spool(copied(folder / "spool", folder / "now"), PLENTY)
        states.append(state(left))
        left.close()
        sizes.append(wal.stat().st_size)

    try:
        note()
        told = Story(spool, note)
        for name, count in story:
            getattr(told, name)(count)
            note()
        frames = range(32, sizes[-1] + 1, 24 + 4096)
        cuts = sorted({end + by for end in frames for by in (-1, 0, 24, 2000) if end + by <= sizes[-1]} | {0})
        for cut in [*cuts[:: max(1, len(cuts) // 40)], sizes[-1]]:
            left = Spool(copied(folder / "spool", folder / "cut", cut), PLENTY)
            found = state(left)
            left.close()
            whole = max((number for number, size in enumerate(sizes) if size <= cut), default=0)
            assert found == states[whole], f"cut at {cut} of {sizes}"
    finally:
        spool.close()
