"""Consumer groups in a real ZooKeeper: kinds, offsets, fences, coordinators, members and owners."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from millrace.errors import (
    GroupNotEmpty,
    InconsistentGroupKind,
    InvalidGroup,
    NotCoordinator,
    RequestTimedOut,
    UnknownGroup,
)
from millrace.zookeeper.session import Session
from millrace_broker.coordination.groups import (
    CommittedOffset,
    ConsumerRegistry,
    Fence,
    GroupKind,
    NotOwner,
    StreamsMember,
    node_name,
)
from tests.consuming import Proxy
from tests.support import WAIT_S, wait_until

ID = UUID(int=7)
MEMBER = StreamsMember(topics={"clicks": 2}, host="here")
LONG_AFTER_MS = 1e15
STRANGE = ("a/b", ".", "..", "grüße 你好", "%2F", "\x00\n", "x" * 500)


def at(offset: int, metadata: str = "") -> CommittedOffset:
    return CommittedOffset(offset=offset, metadata=metadata, time_ms=1, topic_id=ID)


class Life:
    """One process's session and registry."""

    def __init__(self, zookeeper: str, cluster: str) -> None:
        self.zookeeper, self.cluster = zookeeper, cluster
        self.session = Session.connect(zookeeper, timeout_ms=2000)
        self.registry = ConsumerRegistry(self.session, cluster)

    def node_of(self, group: str) -> str:
        """The node in ZooKeeper below which a group's nodes lie."""
        return f"/{self.cluster}/consumers/{node_name(group)}"

    def lose_session(self) -> None:
        """Have the server end the session, as if it had expired, and wait for the next one."""
        before = self.session.id
        thief = KazooClient(hosts=self.zookeeper, client_id=self.session.client.client_id)
        thief.start()
        thief.stop()
        thief.close()
        wait_until(
            "a new session", lambda: self.session.id not in (0, before) and self.session.client.connected
        )


@pytest.fixture
def lives(zookeeper: str) -> Iterator[tuple[Life, Life]]:
    """Two processes that work on the groups of one cluster."""
    cluster = f"groups-{uuid.uuid4().hex[:8]}"
    found = Life(zookeeper, cluster), Life(zookeeper, cluster)
    found[0].session.client.ensure_path(f"/{cluster}")
    yield found
    for life in found:
        life.session.close()


@pytest.fixture
def registry(lives: tuple[Life, Life]) -> ConsumerRegistry:
    return lives[0].registry


def test_a_group_may_have_any_name_and_is_of_one_kind(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    assert ours.groups() == {}
    for name in STRANGE:
        ours.claim(name, GroupKind.CLASSIC)
        others.claim(name, GroupKind.CLASSIC)
        ours.commit(name, {("clicks", 0): at(5, "ö")})
    assert others.groups() == dict.fromkeys(STRANGE, GroupKind.CLASSIC)
    assert all(others.offsets(name) == {("clicks", 0): at(5, "ö")} for name in STRANGE)
    with pytest.raises(InconsistentGroupKind, match="of kind classic"):
        others.claim("a/b", GroupKind.STREAMS)
    with pytest.raises(InconsistentGroupKind, match="of kind classic"):
        others.register("a/b", "c1", MEMBER)
    with pytest.raises(InvalidGroup):
        ours.claim("", GroupKind.CLASSIC)
    for name in STRANGE:
        ours.delete_group(name)
    assert others.groups() == {}


def test_groups_claimed_at_once_have_one_kind(lives: tuple[Life, Life]) -> None:
    won: list[GroupKind] = []

    def claim(registry: ConsumerRegistry, kind: GroupKind) -> None:
        try:
            registry.claim("raced", kind)
        except InconsistentGroupKind:
            return
        won.append(kind)

    kinds = list(GroupKind) * 4
    threads = [threading.Thread(target=claim, args=(lives[i % 2].registry, k)) for i, k in enumerate(kinds)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(won) == 4
    assert set(won) == {lives[0].registry.kind("raced")}


def test_offsets_are_created_changed_read_and_forgotten(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.CLASSIC)
    ours.commit("g", {("clicks", 0): at(1), ("views", 3): at(2)})
    others.commit("g", {("clicks", 0): at(10), ("clicks", 1): at(11)})  # one that is there, one that is not
    ours.commit("g", {("clicks", 1): at(12)})  # created by the other
    everything = {("clicks", 0): at(10), ("clicks", 1): at(12), ("views", 3): at(2)}
    assert others.offsets("g") == everything
    assert ours.offsets("g", [("clicks", 1), ("clicks", 9), ("nothing", 0)]) == {("clicks", 1): at(12)}
    assert ours.offsets("unknown") == {}
    assert ours.committed({"g": ["clicks", "nothing"]}) == {"g": {("clicks", 0), ("clicks", 1)}}
    assert ours.committed({"unknown": ["clicks"]}) == {}
    lives[1].session.client.delete(f"{lives[0].node_of('g')}/offsets/clicks/1")
    ours.commit("g", {("clicks", 1): at(13)})  # gone, though it was there when last seen
    assert others.offsets("g") == {**everything, ("clicks", 1): at(13)}
    with pytest.raises(UnknownGroup):
        ours.commit("unknown", {("clicks", 0): at(1)})


def test_offsets_expire_with_the_group_that_has_no_others(registry: ConsumerRegistry) -> None:
    for name in ("unused", "coordinated"):
        registry.claim(name, GroupKind.CLASSIC)
        registry.commit(name, {("clicks", 0): at(1), ("views", 3): at(2)})
    registry.coordinate("coordinated", 1)
    read = registry.register("read", "c1", MEMBER)
    registry.commit("read", {("clicks", 0): at(1)})
    names = ["unused", "coordinated", "read", "nobody's"]
    assert registry.expire_offsets(names, 0.0) == {}
    assert registry.expire_offsets(names, LONG_AFTER_MS) == {"unused": 2}
    assert registry.names() == {"coordinated", "read"}
    assert len(registry.offsets("coordinated")) == 2, "it may have members"
    assert registry.offsets("read"), "it has a consumer"
    registry.unregister("read", read)
    assert registry.expire_offsets(names, LONG_AFTER_MS) == {"read": 1}


def test_only_offsets_that_are_over_expire(lives: tuple[Life, Life]) -> None:
    registry = lives[0].registry
    registry.claim("g", GroupKind.CLASSIC)
    registry.commit("g", {("clicks", 0): at(1)})
    first = _written_ms(lives[0], "g", "clicks/0")
    while _written_ms(lives[0], "g", "views/3") <= first:  # ZooKeeper's clock shows milliseconds
        registry.commit("g", {("views", 3): at(2)})
    assert registry.expire_offsets(["g"], first + 1) == {"g": 1}
    assert registry.offsets("g") == {("views", 3): at(2)}


def test_offsets_of_a_group_whose_members_have_just_left_are_kept(lives: tuple[Life, Life]) -> None:
    registry = lives[0].registry
    registry.claim("g", GroupKind.CLASSIC)
    registry.commit("g", {("clicks", 0): at(1)})
    committed = _written_ms(lives[0], "g", "clicks/0")
    registry.keep_offsets(["g"])
    while _written_ms(lives[0], "g") <= committed:
        registry.keep_offsets(["g"])
    assert registry.expire_offsets(["g"], committed + 1) == {}
    assert registry.expire_offsets(["g"], LONG_AFTER_MS) == {"g": 1}


def test_offsets_of_a_group_that_is_taken_over_meanwhile_do_not_expire(
    lives: tuple[Life, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.CLASSIC)
    ours.commit("g", {("clicks", 0): at(1)})
    client = lives[0].session.client
    transaction = client.transaction

    def taken_over_before() -> Any:
        fence = others.coordinate("g", 1)
        others.resign("g", fence)
        return transaction()

    monkeypatch.setattr(client, "transaction", taken_over_before)
    assert ours.expire_offsets(["g"], LONG_AFTER_MS) == {}
    assert ours.offsets("g") == {("clicks", 0): at(1)}


def _written_ms(life: Life, group: str, offset: str = "") -> int:
    """The time at which an offset's node, or the one of all offsets, was written last; 0 for none."""
    found = life.session.get(f"{life.node_of(group)}/offsets/{offset}".rstrip("/"))
    return 0 if found is None else int(found[1].mtime)


def test_what_is_too_large_for_one_transaction_is_written_in_several(registry: ConsumerRegistry) -> None:
    group, topic = "g" * 500, "t" * 240
    fence = registry.register(group, "c1", MEMBER)
    large = {(topic, number): at(number, "\u00e4" * 4096) for number in range(50)}
    registry.commit(group, large, fence=fence)
    assert registry.offsets(group) == large
    streams = {(topic, number): "c1-0" for number in range(1300)}
    assert registry.own(group, streams, fence)
    assert registry.own(group, streams, fence), "a try whose answer was lost"
    registry.disown(group, streams, fence)
    registry.unregister(group, fence)
    registry.rewind(group, large)
    registry.delete_group(group)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction holds ten changes or so."""
    monkeypatch.setattr("millrace_broker.coordination.groups.MAX_PART_BYTES", 2000)


@pytest.mark.usefixtures("small_parts")
def test_many_offsets_are_committed_and_deleted(registry: ConsumerRegistry) -> None:
    registry.claim("g", GroupKind.CLASSIC)
    many = {("clicks", number): at(number) for number in range(40)}
    registry.commit("g", many)
    assert registry.offsets("g") == many
    fence = registry.coordinate("g", 1)
    registry.delete_group("g", fence=fence)
    assert registry.groups() == {}


@pytest.mark.usefixtures("small_parts")
def test_of_many_partitions_too_none_is_owned_when_one_has_an_owner(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    fences = ours.register("g", "c1", MEMBER), others.register("g", "c2", MEMBER)
    streams = {("clicks", number): "c1-0" for number in range(40)}
    assert others.own("g", {("clicks", 39): "c2-0"}, fences[1])
    assert not ours.own("g", streams, fences[0])
    ours.disown("g", streams, fences[0])
    assert others.owners("g") == {("clicks", 39): "c2-0"}, "of others nothing is given up"


def test_a_commit_is_all_or_nothing(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.CLASSIC)
    stale = ours.coordinate("g", 1)
    ours.resign("g", stale)
    others.coordinate("g", 2)
    with pytest.raises(NotCoordinator):
        ours.commit("g", {("clicks", number): at(1) for number in range(3)}, fence=stale)
    assert others.offsets("g") == {}


def test_one_broker_coordinates_and_the_other_is_told_which(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    with pytest.raises(UnknownGroup):
        ours.coordinate("g", 1)
    ours.claim("g", GroupKind.CLASSIC)
    assert others.coordinator("g") is None
    fence = ours.coordinate("g", 1)
    assert ours.coordinate("g", 1) == fence, "asking twice changes nothing"
    with pytest.raises(NotCoordinator, match="broker 1"):
        others.coordinate("g", 2)
    assert others.coordinator("g") == 1
    assert others.coordinators(["g"]) == others.coordinators(["g", "unknown"]) == {"g": 1}
    assert others.coordinators([*(f"made up {n}" for n in range(100)), "g"]) == {"g": 1}
    ours.commit("g", {("clicks", 0): at(1)}, fence=fence)
    ours.resign("g", fence)
    ours.resign("g", fence)
    others.coordinate("g", 2)
    ours.resign("g", fence)  # too late: it must not end the other's turn
    with pytest.raises(NotCoordinator, match="broker 2"):
        ours.coordinate("g", 1)


def test_a_coordinator_that_comes_back_is_fenced(lives: tuple[Life, Life]) -> None:
    ours, others = lives
    ours.registry.claim("g", GroupKind.CLASSIC)
    fence = ours.registry.coordinate("g", 1)
    ours.lose_session()
    with pytest.raises(NotCoordinator):  # before anybody else is it
        ours.registry.commit("g", {("clicks", 0): at(1)}, fence=fence)
    others.registry.coordinate("g", 2)
    with pytest.raises(NotCoordinator):
        ours.registry.commit("g", {("clicks", 0): at(2)}, fence=fence)
    with pytest.raises(NotCoordinator):
        ours.registry.delete_group("g", fence=fence)
    assert others.registry.offsets("g") == {}


def test_a_coordinator_of_a_second_turn_does_not_revive_the_fence_of_the_first(
    lives: tuple[Life, Life],
) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.CLASSIC)
    first = ours.coordinate("g", 1)
    ours.resign("g", first)
    between = others.coordinate("g", 2)
    others.resign("g", between)
    second = ours.coordinate("g", 1)
    assert not second.follows(first)
    with pytest.raises(NotCoordinator):
        ours.commit("g", {("clicks", 0): at(1)}, fence=first)
    ours.commit("g", {("clicks", 0): at(2)}, fence=second)


def test_a_coordinator_of_a_group_that_was_deleted_and_made_anew_is_fenced(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.CLASSIC)
    former = ours.coordinate("g", 1)
    lives[0].lose_session()
    others.delete_group("g", fence=others.coordinate("g", 2))
    others.claim("g", GroupKind.CLASSIC)
    others.commit("g", {("clicks", 0): at(9)}, fence=others.coordinate("g", 2))
    with pytest.raises(NotCoordinator):
        ours.commit("g", {("clicks", 0): at(1)}, fence=former)
    with pytest.raises(NotCoordinator):
        ours.delete_group("g", fence=former)
    assert others.offsets("g") == {("clicks", 0): at(9)}


def test_a_coordinator_of_a_group_that_was_made_anew_does_not_follow_the_one_of_the_former(
    registry: ConsumerRegistry,
) -> None:
    registry.claim("g", GroupKind.CLASSIC)
    former = registry.coordinate("g", 1)
    registry.delete_group("g", fence=former)
    registry.claim("g", GroupKind.CLASSIC)
    assert not registry.coordinate("g", 1).follows(former)
    with pytest.raises(NotCoordinator):
        registry.commit("g", {("clicks", 0): at(1)}, fence=former)


def test_a_coordinator_of_a_version_without_tenures_is_waited_for(lives: tuple[Life, Life]) -> None:
    ours = lives[0].registry
    ours.claim("g", GroupKind.CLASSIC)
    path = lives[1].node_of("g")
    before = lives[1].session.client
    with before.transaction() as change:  # what such a version does
        change.create(f"{path}/coordinator", b"2", ephemeral=True)
        change.set_data(path, before.get(path)[0])
    with pytest.raises(NotCoordinator, match="broker 2"):
        ours.coordinate("g", 1)
    before.delete(f"{path}/coordinator")
    fence = ours.coordinate("g", 1)
    ours.commit("g", {("clicks", 0): at(1)}, fence=fence)
    ours.resign("g", fence)
    assert set(before.get_children(path)) == {"ids", "offsets", "owners"}, "and nothing is in its way"


def test_a_restarted_broker_takes_over_what_its_earlier_life_coordinated(lives: tuple[Life, Life]) -> None:
    killed, restarted = (life.registry for life in lives)
    killed.claim("g", GroupKind.CLASSIC)
    former = killed.coordinate("g", 1)
    fence = restarted.coordinate("g", 1)  # the session of the life before is not waited for
    assert fence.follows(former)
    with pytest.raises(NotCoordinator):
        killed.commit("g", {("clicks", 0): at(1)}, fence=former)
    restarted.commit("g", {("clicks", 0): at(2)}, fence=fence)


def test_brokers_that_race_for_a_group_make_one_coordinator(lives: tuple[Life, Life]) -> None:
    lives[0].registry.claim("g", GroupKind.CLASSIC)
    outcomes: dict[int, Fence | NotCoordinator] = {}

    def run(broker: int) -> None:
        try:
            outcomes[broker] = lives[broker - 1].registry.coordinate("g", broker)
        except NotCoordinator as error:
            outcomes[broker] = error

    threads = [threading.Thread(target=run, args=(broker,)) for broker in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    winner = lives[0].registry.coordinator("g")
    assert winner in (1, 2)
    assert isinstance(outcomes[winner], Fence)
    assert f"broker {winner}" in str(outcomes[3 - winner])


def test_members_come_and_go_and_watchers_are_told(lives: tuple[Life, Life]) -> None:
    ours, others = lives
    fence = ours.registry.register("g", "c/1", MEMBER)
    told = threading.Event()
    assert others.registry.members("g", lambda event: told.set()) == {"c/1": MEMBER}
    second = StreamsMember(topics={"views": 1}, host="there")
    others.registry.register("g", "c2", second)
    assert told.wait(WAIT_S)
    assert ours.registry.members("g") == {"c/1": MEMBER, "c2": second}
    ours.registry.unregister("g", fence)
    ours.registry.unregister("g", fence)
    others.session.close()
    wait_until("both are gone", lambda: ours.registry.members("g") == {})
    assert ours.registry.kind("g") == GroupKind.STREAMS


def test_partitions_are_owned_all_or_none_and_by_one(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    first, second = ours.register("g", "c1", MEMBER), others.register("g", "c2", MEMBER)
    assert ours.own("g", {("clicks", 0): "c1-0", ("clicks", 1): "c1-1"}, first)
    assert not others.own("g", {("clicks", 1): "c2-0", ("clicks", 2): "c2-1"}, second)
    assert others.owners("g") == {("clicks", 0): "c1-0", ("clicks", 1): "c1-1"}
    ours.disown("g", [("clicks", 1), ("clicks", 7)], first)
    assert others.own("g", {("clicks", 1): "c2-0", ("clicks", 2): "c2-1"}, second)
    assert others.owners("g") == {("clicks", 0): "c1-0", ("clicks", 1): "c2-0", ("clicks", 2): "c2-1"}
    assert ours.own("g", {}, first)


def test_a_consumer_that_lost_its_session_writes_nothing_any_more(lives: tuple[Life, Life]) -> None:
    ours, others = lives
    stale = ours.registry.register("g", "c1", MEMBER)
    assert ours.registry.own("g", {("clicks", 0): "c1-0"}, stale)
    ours.registry.commit("g", {("clicks", 0): at(5)}, fence=stale)
    ours.lose_session()
    fence = others.registry.register("g", "c2", MEMBER)
    wait_until("it is free", lambda: others.registry.own("g", {("clicks", 0): "c2-0"}, fence))
    with pytest.raises(NotOwner):
        ours.registry.commit("g", {("clicks", 0): at(9)}, fence=stale)
    with pytest.raises(NotOwner):
        ours.registry.own("g", {("clicks", 1): "c1-0"}, stale)
    with pytest.raises(NotOwner):
        ours.registry.disown("g", [("clicks", 0)], stale)
    again = ours.registry.register("g", "c1-again", MEMBER)
    with pytest.raises(NotOwner):
        ours.registry.commit("g", {("clicks", 0): at(9)}, fence=stale)
    ours.registry.commit("g", {("clicks", 1): at(9)}, fence=again)
    assert others.registry.offsets("g") == {("clicks", 0): at(5), ("clicks", 1): at(9)}
    assert others.registry.owners("g") == {("clicks", 0): "c2-0"}


def test_only_a_group_that_nobody_uses_is_deleted(lives: tuple[Life, Life]) -> None:
    ours, others = (life.registry for life in lives)
    with pytest.raises(UnknownGroup):
        ours.delete_group("g")
    fence = ours.register("g", "c1", MEMBER)
    with pytest.raises(GroupNotEmpty, match="has consumers"):
        others.delete_group("g")
    ours.own("g", {("clicks", 0): "c1-0"}, fence)
    ours.commit("g", {("clicks", 0): at(5)}, fence=fence)
    ours.disown("g", [("clicks", 0)], fence)
    ours.unregister("g", fence)
    others.delete_group("g")
    assert ours.groups() == {}
    ours.claim("g", GroupKind.CLASSIC)
    assert ours.offsets("g") == {}
    ours.coordinate("g", 1)
    with pytest.raises(NotCoordinator, match="broker 1"):
        others.delete_group("g")


def test_a_consumer_that_comes_while_its_group_is_deleted_stays_registered(
    lives: tuple[Life, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.STREAMS)
    owners = ours.owners

    def late(group: str) -> dict[tuple[str, int], str]:
        monkeypatch.setattr(ours, "owners", owners)
        found = owners(group)
        others.register("g", "c1", MEMBER)
        return found

    monkeypatch.setattr(ours, "owners", late)
    with pytest.raises(GroupNotEmpty):
        ours.delete_group("g")
    assert others.members("g") == {"c1": MEMBER}


def test_a_group_is_moved_only_while_it_has_no_consumer(
    lives: tuple[Life, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, others = (life.registry for life in lives)
    ours.claim("g", GroupKind.STREAMS)
    ours.rewind("g", {("clicks", 0): at(1), ("clicks", 1): at(2)})
    fence = others.register("g", "c1", MEMBER)
    with pytest.raises(GroupNotEmpty):
        ours.rewind("g", {("clicks", 0): at(7)})
    others.unregister("g", fence)
    client, fences = lives[0].session.client, list[Fence]()
    transaction = client.transaction

    def joined_before() -> Any:
        if not fences:
            fences.append(others.register("g", "c2", MEMBER))
        return transaction()

    with monkeypatch.context() as patched:
        patched.setattr(client, "transaction", joined_before)
        with pytest.raises(GroupNotEmpty):  # one that came after the question: the write itself asks again
            ours.rewind("g", {("clicks", 0): at(7)})
    assert others.offsets("g") == {("clicks", 0): at(1), ("clicks", 1): at(2)}
    others.unregister("g", fences[0])
    ours.rewind("g", {("clicks", 0): at(7)})
    assert others.offsets("g") == {("clicks", 0): at(7), ("clicks", 1): at(2)}
    with pytest.raises(UnknownGroup):
        ours.rewind("unknown", {("clicks", 0): at(7)})


def test_a_call_while_zookeeper_is_away_fails_in_bounded_time(
    lives: tuple[Life, Life], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.zookeeper.session.OPERATION_SECONDS", 0.3)
    ours = lives[0]
    ours.session.client.stop()  # nothing answers from now on
    began = time.monotonic()
    with pytest.raises(Exception, match="does not answer"):
        ours.registry.groups()
    assert time.monotonic() - began < WAIT_S


def test_what_could_not_be_asked_of_a_zookeeper_that_was_away_is_not_done_later(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Proxy(zookeeper)
    session = Session.connect(way.address, timeout_ms=10_000)
    cluster = f"groups-{uuid.uuid4().hex[:8]}"
    session.client.ensure_path(f"/{cluster}")
    registry = ConsumerRegistry(session, cluster)
    registry.claim("g", GroupKind.STREAMS)
    before = session.id
    way.break_off()
    wait_until("it is noticed", lambda: not session.client.connected)
    with monkeypatch.context() as patched:
        patched.setattr("millrace.zookeeper.session.OPERATION_SECONDS", 0.3)
        patched.setattr(registry, "kind", lambda group: GroupKind.STREAMS)
        for number in range(3):
            with pytest.raises(RequestTimedOut):
                registry.register("g", f"given up {number}", MEMBER)
            with pytest.raises(RequestTimedOut):
                registry.members("g")
    assert len(session.client._queue) == 0, "what waits there is done late, and fills the memory"
    way.mend()
    wait_until("it is back", lambda: session.client.connected)
    assert session.id == before
    assert registry.members("g") == {}
    session.close()
    way.close()
