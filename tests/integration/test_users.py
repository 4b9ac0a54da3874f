"""The registry of users in ZooKeeper: members follow each other, and what is unreadable changes nothing."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace.zookeeper.session import Session
from millrace_broker.coordination import users as users_module
from millrace_broker.coordination import watching
from millrace_broker.coordination.users import Users
from millrace_broker.security.scram import Credentials, make_credential
from tests.lost_answers import lose_one_answer
from tests.support import WAIT_S, wait_until

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
CREDENTIAL = make_credential(SHA_256, "x", 4096)
OTHER = make_credential(SHA_512, "y", 4096)


@pytest.fixture
def session(zookeeper: str) -> Iterator[Session]:
    connected = Session.connect(zookeeper)
    yield connected
    connected.close()


@pytest.fixture
def cluster() -> str:
    return f"users-{uuid.uuid4().hex[:8]}"


def test_a_member_follows_what_another_writes(session: Session, cluster: str) -> None:
    writer, reader = Users(session, cluster), Users(session, cluster)
    assert writer.secret == reader.secret
    changes: list[list[str]] = []
    reader.watch(lambda: changes.append(reader.names))
    for name in ("alice", "b/o b%", "ö"):
        writer.put(name, SHA_256, CREDENTIAL)
    wait_until("all are there", lambda: reader.names == ["alice", "b/o b%", "ö"])
    writer.put("alice", SHA_512, OTHER)
    wait_until("both ways", lambda: reader.credentials("alice") == {SHA_256: CREDENTIAL, SHA_512: OTHER})
    writer.put("alice", SHA_256, None)
    wait_until("one way", lambda: reader.credentials("alice") == {SHA_512: OTHER})
    writer.put("alice", SHA_512, None)
    writer.delete("ö")
    wait_until("one is left", lambda: changes and changes[-1] == ["b/o b%"])


def test_a_user_whose_deletion_meets_a_slow_reading_of_another_thread_stays_deleted(
    session: Session, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, other = Users(session, cluster), Users(session, cluster)
    for name in ("alice", "bob"):
        users.put(name, SHA_256, CREDENTIAL)
    users.watch(lambda: None)
    has_read, decode = threading.Event(), users_module._decoded

    def decode_slowly(data: bytes) -> Credentials:
        if threading.current_thread() is writer and not has_read.is_set():
            has_read.set()
            with suppress(AssertionError):
                wait_until("another thread has read on", lambda: "bob" not in users.names, timeout_s=2)
        return decode(data)

    monkeypatch.setattr(users_module, "_decoded", decode_slowly)
    writer = threading.Thread(target=lambda: users.put("carol", SHA_256, CREDENTIAL))
    writer.start()
    assert has_read.wait(WAIT_S)
    other.delete("bob")
    writer.join()
    wait_until("bob is deleted", lambda: users.names == ["alice", "carol"], timeout_s=5)


def test_a_deletion_whose_answer_was_lost_is_one_deletion(
    session: Session, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = Users(session, cluster)
    users.put("alice", SHA_256, CREDENTIAL)
    lose_one_answer(session.client, "delete_async", monkeypatch)
    users.delete("alice")
    assert users.names == []


def test_who_is_not_there_cannot_be_forgotten(session: Session, cluster: str) -> None:
    users = Users(session, cluster)
    users.put("alice", SHA_256, CREDENTIAL)
    with pytest.raises(LookupError, match="user alice has no SCRAM-SHA-512"):
        users.put("alice", SHA_512, None)
    with pytest.raises(LookupError, match="there is no user bob"):
        users.delete("bob")
    for name in ("", " a", "a\n", "a" * 250):
        with pytest.raises(ConfigError, match="a user's name has"):
            users.put(name, SHA_256, CREDENTIAL)


def test_what_cannot_be_read_leaves_the_users_as_they_were(
    session: Session, cluster: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watching, "RETRY_S", 0.05)
    users = Users(session, cluster)
    users.put("alice", SHA_256, CREDENTIAL)
    users.put("bob", SHA_256, CREDENTIAL)
    users.watch(lambda: None)
    session.call(session.client.set_async, f"/{cluster}/security/users/alice", b'{"SCRAM-SHA-256": {}}')
    wait_until("it says so", lambda: "cannot read user alice" in caplog.text)
    users.put("carol", SHA_256, CREDENTIAL)
    assert users.names == ["alice", "bob", "carol"]
    assert users.credentials("alice") == {SHA_256: CREDENTIAL}
    with pytest.raises(MillraceError, match=r"cannot read user alice in ZooKeeper: .*; delete"):
        Users(session, cluster)
    wiped = session.client.transaction()  # all at once, as a ZooKeeper that has lost its disk
    for name in ("alice", "bob", "carol"):
        wiped.delete(f"/{cluster}/security/users/{name}")
    wiped.delete(f"/{cluster}/security/users")
    wiped.commit()
    wait_until("it says so", lambda: f"has lost /{cluster}/security/users" in caplog.text)
    assert users.names == ["alice", "bob", "carol"]
