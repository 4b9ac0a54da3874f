"""One auditor writes to a database; another one takes over only when the first has ended or stands still."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError

from millrace.errors import MillraceError
from millrace.service.database import open_database
from millrace_audit.auditor import lease as leases
from millrace_audit.auditor import store as stores
from millrace_audit.auditor.lease import LEASE_S, Lease, LeaseHeld, process_of
from millrace_audit.auditor.store import AuditStore, DatabaseRow, LeaseRow, Row
from tests.support import Clock, child
from tests.unit.audit.test_store import as_of_revision_2


class Elsewhere(Lease):
    """The lease as another machine knows it."""

    def __init__(self, host: str, clock: Clock) -> None:
        super().__init__(clock)
        self._host = host


@pytest.fixture
def empty_postgres_url(postgres_url: str) -> str:
    """The run's PostgreSQL, without what another test has left: its lease, for one."""
    open_database(postgres_url, Row.metadata.drop_all).dispose()
    return postgres_url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    found: str = request.getfixturevalue("empty_postgres_url")
    return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


def holder(store: AuditStore) -> str | None:
    with store.reading() as session:
        return session.scalar(select(LeaseRow.host))


def test_the_second_auditor_stands_by_until_the_first_gives_the_lease_up(url: str, clock: Clock) -> None:
    first, second = (AuditStore(url, Elsewhere(host, clock)) for host in ("a", "b"))
    first.renew()
    with pytest.raises(LeaseHeld, match=r"another auditor writes to this database, process .* on a:"):
        second.renew()
    with pytest.raises(LeaseHeld), second.writing() as session:
        session.get_one(DatabaseRow, session.scalar(select(DatabaseRow.name))).name = "changed"
    first.close()
    second.renew()
    assert holder(second) == "b"
    second.close()


def test_a_standby_takes_over_when_nothing_was_renewed_for_the_time_of_the_lease_by_its_own_clock(
    url: str, clock: Clock
) -> None:
    first, second = (AuditStore(url, Elsewhere(host, clock)) for host in ("a", "b"))
    first.renew()
    for _ in range(5):  # renewed again and again
        with pytest.raises(LeaseHeld):
            second.renew()
        clock.now += LEASE_S - 1
        first.renew()
    with pytest.raises(LeaseHeld):
        second.renew()
    clock.now += LEASE_S
    second.renew()
    with pytest.raises(LeaseHeld):  # it stood still, and cannot write any more
        first.renew()
    assert holder(first) == "b"
    first.close()
    assert holder(second) == "b", "whoever has lost the lease gives up nothing"
    second.close()


def test_a_transaction_of_an_auditor_that_has_lost_the_lease_changes_nothing(url: str, clock: Clock) -> None:
    first, second = (AuditStore(url, Elsewhere(host, clock)) for host in ("a", "b"))
    first.renew()
    with pytest.raises(LeaseHeld):
        second.renew()
    clock.now += LEASE_S
    second.renew()
    with first.reading() as session:
        before = session.scalar(select(DatabaseRow.name))
    with pytest.raises(LeaseHeld), first.writing() as session:
        session.add(DatabaseRow(name="by the first"))
    with second.reading() as session:
        assert session.scalars(select(DatabaseRow.name)).all() == [before]
    first.close()
    second.close()


def test_an_auditor_that_stood_still_while_another_came_and_went_reads_again_before_it_writes(
    url: str, clock: Clock
) -> None:
    first, second = (AuditStore(url, Elsewhere(host, clock)) for host in ("a", "b"))
    assert first.renew()
    assert not first.renew()
    with pytest.raises(LeaseHeld):
        second.renew()
    clock.now += LEASE_S
    assert second.renew()
    second.close()  # and gives the lease up
    for _ in range(2):  # by the batch that it had in its hands, and by an operator's decision
        with pytest.raises(LeaseHeld, match="does not write to its database yet"), first.writing():
            pass
    assert first.renew(), "it is told that it was not the holder in between"
    with first.writing():
        pass
    first.close()


def test_an_auditor_that_stands_still_within_a_transaction_keeps_nobody_out_of_postgresql(
    empty_postgres_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ABANDONED_S", 1)
    first, second = (AuditStore(empty_postgres_url, Elsewhere(host, clock)) for host in ("a", "b"))
    first.renew()
    with pytest.raises(LeaseHeld):
        second.renew()
    clock.now += LEASE_S

    def stand_still() -> None:
        with first.writing() as session:
            assert second.renew()
            session.add(DatabaseRow(name="by the first"))

    with pytest.raises(SQLAlchemyError):
        stand_still()
    assert holder(second) == "b"
    first.close()
    second.close()


def test_a_newer_auditor_changes_no_tables_while_an_older_one_holds_the_lease(
    url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_TAKE_OVER_S", 0)
    older = AuditStore(url, Elsewhere("a", clock))
    older.renew()
    with older.writing() as session:
        as_of_revision_2(lambda statement: session.execute(text(statement)))
    newer = Elsewhere("b", clock)
    with pytest.raises(
        MillraceError, match=r"process .* on a: .*of an older Millrace .*: stop the other process, then start"
    ):
        AuditStore(url, newer)
    with older.reading() as session:
        assert session.scalar(text("SELECT version_num FROM auditor_revision")) == "0002"
    clock.now += LEASE_S
    store = AuditStore(url, newer)
    assert holder(store) == "b"
    with store.writing():
        pass
    with pytest.raises(LeaseHeld), older.writing():
        pass
    store.close()
    older.close()


def test_the_lease_of_a_process_of_this_machine_that_has_ended_is_taken_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"

    def killed() -> None:
        AuditStore(url, Lease()).renew()  # and no close

    AuditStore(url).close()
    assert child(killed) == 0
    store = AuditStore(url, Lease())
    store.renew()
    store.close()


def test_a_process_is_known_by_its_boot_number_and_start() -> None:
    mine = process_of(os.getpid())
    assert mine == process_of(os.getpid())
    assert not leases._has_ended(mine)
    boot, pid, started = mine.split("/")
    assert leases._has_ended(f"{boot}/{pid}/{int(started) - 1}"), "another process had the number"
    assert not leases._has_ended(f"another-boot/{pid}/1"), "of another machine nothing is known"
    elsewhere = boot.replace("pid:[", "pid:[1")
    assert elsewhere != boot
    assert not leases._has_ended(f"{elsewhere}/{pid}/1"), "nor of a container whose host has the same name"
