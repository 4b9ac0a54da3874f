"""The auditor's database: transactions, other databases, refusals."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, select, text, update

from millrace.errors import MillraceError
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.migrations.versions import r0006_names
from millrace_audit.auditor.records import ledger
from millrace_audit.auditor.records.decisions import due_decisions
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.store import (
    AuditStore,
    IncidentWindowRow,
    LoadRow,
    ProducerRow,
    Row,
    TopicRow,
    WindowRow,
)
from millrace_audit.reports.counts import SequenceCounts
from millrace_audit.reports.messages import RejectedMessages
from tests.unit.audit.story import NOW, OPTIONS, SAID, TOPIC, Story, W, found


def test_what_was_applied_before_an_error_is_not_kept_in_half() -> None:
    story = Story(AuditStore("sqlite://"))
    story.hello()

    def fail_halfway() -> None:
        with story.store.writing() as session:
            ledger.apply(session, story.place((SAID, "dc1")), story.partitions[SAID, "dc1"], NOW)
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        fail_halfway()
    with story.store.reading() as session:
        assert answers.topics(session, OPTIONS) == []


def test_a_reader_sees_one_state_while_a_writer_commits(tmp_path: Path) -> None:
    store = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    story = Story(store)
    story.whole()
    with store.reading() as session:
        assert answers.topics(session, OPTIONS) == []
        story.apply()
        assert answers.topics(session, OPTIONS) == [], "as it was when the reader began"
    with store.reading() as session:
        assert len(answers.topics(session, OPTIONS)) == 1
    store.close()


def test_a_password_is_not_in_the_error() -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/none", "mysql://me:secret@x/y"):
        with pytest.raises(MillraceError) as caught:
            AuditStore(url)
        assert "secret" not in str(caught.value)
        assert "127.0.0.1" in str(caught.value) or "mysql" in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense", "nosuch://x", "sqlite:////nowhere/at/all.db"])
def test_a_database_that_will_not_do_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(MillraceError) as caught:
        AuditStore(url)
    assert "\n" not in str(caught.value)


def test_a_database_of_another_millrace_is_refused_in_one_sentence(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    AuditStore(url).close()
    with closing(sqlite3.connect(tmp_path / "audit.db")) as database:
        database.execute("ALTER TABLE tiers DROP COLUMN turn")
    with pytest.raises(MillraceError, match=r"its table tiers differs.*--database-url of an empty one"):
        AuditStore(url)


REVISION_1_LACKS = (
    "TABLE auditor_revision",
    "COLUMN tiers numbered_turn",
    "TABLE lease",
    "TABLE held_open",
    "TABLE load_part",
    "TABLE load_hour",
    "TABLE rejected",
    "TABLE warehouse_state",
    "TABLE decision",
    "TABLE changed",
    "TABLE database",
    "TABLE incident_windows",
    "TABLE incidents",
    "COLUMN audit_positions epoch",
    "COLUMN audit_positions shift",
    "COLUMN coverage unplaced",
    "COLUMN loads whole",
    "COLUMN loads retold",
    "COLUMN producers held_open",
    "COLUMN producers first_at",
    "COLUMN topics unkeyed_from",
)


def test_a_database_of_a_newer_millrace_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    with closing(sqlite3.connect(tmp_path / "audit.db")) as database, database:
        database.execute("UPDATE auditor_revision SET version_num = '9999'")
    with pytest.raises(MillraceError, match=r"of a newer Millrace, of revision 9999; this one knows \d{4}:"):
        AuditStore(url)


def test_two_auditors_that_open_an_old_database_at_once_change_its_tables_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    AuditStore(url).close()
    with closing(sqlite3.connect(tmp_path / "audit.db")) as database, database:
        as_of_revision_1(database.execute)
    with ThreadPoolExecutor(2) as pool:
        for store in pool.map(AuditStore, [url, url]):
            store.close()


def as_of_revision_7(execute: Callable[[str], object]) -> None:
    execute("ALTER TABLE load_hour DROP COLUMN uncounted")
    for column in ("noted", "recounted_after"):
        execute(f"ALTER TABLE uncounted DROP COLUMN {column}")
    execute("DROP INDEX hours")
    for table in ("windows", "incident_windows"):
        execute(f"ALTER TABLE {table} DROP COLUMN events")
    execute('CREATE INDEX hours ON windows (topic, "window", verdict, is_changed)')
    execute("UPDATE auditor_revision SET version_num = '0007'")


def as_of_revision_5(execute: Callable[[str], object]) -> None:
    as_of_revision_7(execute)
    for table, names in r0006_names.COLUMNS.items():
        for old, new in names.items():
            execute(f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
    for old, new in r0006_names.TABLES.items():
        execute(f"ALTER TABLE {new} RENAME TO {old}")
    execute("ALTER TABLE warehouse_state DROP COLUMN live_through")
    execute("UPDATE auditor_revision SET version_num = '0005'")


def as_of_revision_1(execute: Callable[[str], object]) -> None:
    as_of_revision_5(execute)
    for lack in REVISION_1_LACKS:
        match lack.split():
            case "TABLE", table:
                execute(f"DROP TABLE {table}")
            case "COLUMN", table, column:
                execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    execute("ALTER TABLE producers ADD COLUMN accepted TEXT")
    execute("ALTER TABLE producers ADD COLUMN disowned BOOLEAN DEFAULT FALSE NOT NULL")
    execute("DROP INDEX open_by_time")
    execute("CREATE INDEX open_windows ON windows (settled, topic)")


def as_of_revision_2(execute: Callable[[str], object]) -> None:
    """Change a database to revision 0002, with decisions about instances 2 and 3 and about load 2."""
    as_of_revision_5(execute)
    for table in ("decision", "incident_windows", "incidents"):
        execute(f"DROP TABLE {table}")
    execute("ALTER TABLE producers DROP COLUMN first_at")
    execute("ALTER TABLE tiers DROP COLUMN numbered_turn")
    execute("ALTER TABLE producers ADD COLUMN accepted TEXT")
    execute("ALTER TABLE producers ADD COLUMN disowned BOOLEAN DEFAULT FALSE NOT NULL")
    execute("UPDATE producers SET accepted = 'its rack is gone' WHERE announced AND instance = 2")
    execute("UPDATE producers SET accepted = 'not ours', disowned = TRUE, done = TRUE WHERE instance = 3")
    execute(
        "CREATE TABLE acceptance (number INTEGER PRIMARY KEY, time BIGINT, topic VARCHAR(249), load BIGINT,"
        " edition BIGINT, who TEXT, reason TEXT)"
    )
    execute(f"INSERT INTO acceptance VALUES (1, {NOW}, '{TOPIC}', 2, 1, 'me', 'a test page')")
    execute("UPDATE auditor_revision SET version_num = '0002'")


def empty(store: AuditStore) -> None:
    with store.writing() as session:
        for table in reversed(Row.metadata.sorted_tables):
            session.execute(delete(table))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    return str(request.getfixturevalue("postgres_url"))


def test_a_database_without_a_revision_is_brought_to_the_newest_and_keeps_its_verdicts(url: str) -> None:
    store = AuditStore(url)
    empty(store)
    story = Story(store)
    story.whole()
    story.apply()
    with store.writing() as session:
        as_of_revision_1(lambda statement: session.execute(text(statement)))
    store.close()
    store = AuditStore(url)
    story = Story(store)
    assert story.verdict() == "complete"
    with store.reading() as session:
        (load,) = session.scalars(select(LoadRow)).all()
        assert not load.whole, "nobody knows which hours it holds"
        assert session.get_one(TopicRow, TOPIC).unkeyed_from > NOW
    story.state(0)
    assert story.apply().verdict() == "unknown"
    assert "load 1 was counted, in hours that are not known, and is gone" in story.window()["reasons"][0]
    empty(store)
    store.close()


def test_an_older_database_learns_the_number_of_events_of_its_windows_and_incidents(url: str) -> None:
    store = AuditStore(url)
    empty(store)
    story = Story(store)
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 6)))
    story.beats()
    story.apply()
    with store.writing() as session:
        as_of_revision_7(lambda statement: session.execute(text(statement)))
    store.close()
    store = AuditStore(url)
    story.store = store
    with store.reading() as session:
        assert session.scalars(select(WindowRow.events)).all() == [10]
        assert {*session.scalars(select(IncidentWindowRow.events))} == {0}
    story.settle()
    with store.reading() as session:
        assert {*session.scalars(select(IncidentWindowRow.events))} == {3}
        (incident,) = incidents.find(session, story.options, is_open=True)
    assert incident.events == {TOPIC: 3}
    empty(store)
    store.close()


def test_acceptances_of_an_older_database_stay_in_force_and_are_written_to_the_audit_topic_once(
    url: str,
) -> None:
    store = AuditStore(url)
    empty(store)
    story = Story(store)
    story.whole()
    for instance in (2, 3):
        story.hello(instance)
    story.report(0, instance=2, closed=W)
    story.report(0, (0, 9), instance=3)
    story.load(SequenceCounts(), rejected=[RejectedMessages(W, W, 3, 0, "no value")])
    story.beats(NOW + 6000)
    assert story.apply().verdict() == "incomplete"
    with store.writing() as session:
        session.execute(update(WindowRow).values(is_final=False, is_changed=True))
        as_of_revision_2(lambda statement: session.execute(text(statement)))
    store.close()
    store = AuditStore(url)
    story.store = store
    story.settle()
    reasons = " ".join(story.window()["reasons"])
    assert story.verdict() == "carried", reasons
    for reason in ("accepted: its rack is gone", "do not count: not ours", "accepted: a test page"):
        assert reason in reasons
    with store.reading() as session:
        decisions = due_decisions(session, NOW)
        for row in session.scalars(select(ProducerRow)):
            assert row.first_at == row.heard_at, "its first hello was not later"
    assert sorted((each.kind, each.instance, each.load) for each in decisions) == [
        ("accept", 2, 0),
        ("accept-rejected", None, 2),
        ("disown", 3, 0),
    ]
    for decision in decisions:
        story.decide(decision)
    story.apply()
    with store.reading() as session:
        assert due_decisions(session, NOW) == []
    empty(store)
    store.close()
