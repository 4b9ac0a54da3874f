"""An origin's threads against scripted collaborators: what they copy, what stops them, what does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast
from uuid import UUID

import pytest

from millrace.client import fetcher
from millrace.client.cluster_client import TopicMetadata
from millrace.client.fetcher import FetchLimits
from millrace.client.runs import Run
from millrace.config import OriginConfig
from millrace.errors import ErrorCode, MillraceError, NotLeader, StorageError
from millrace.records import BatchHeader, Cursor, Message, build_batch
from millrace.records.mirror_position import MirrorPosition, Origin, PositionMismatch
from millrace.wire.admin_messages import ORIGINS, DescribeConfigsResponse, DescribedConfig, ResourceType
from millrace.wire.fetch import FetchedPartition
from millrace.zookeeper.topic_state import BrokerAddress, TopicState
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.new_partitions import with_mirrors
from millrace_broker.coordination.placement import Load
from millrace_broker.partitions.broker import TargetAppend
from millrace_mirror import embedded, puller, watch
from millrace_mirror.states import MirrorState, MirrorStates, State
from tests.support import WAIT_S, wait_until

TOPIC_ID = UUID(int=5)


def log_of(count: int) -> list[bytes]:
    """Batches as a Millrace log holds them."""
    found: list[bytes] = []
    for number in range(count):
        found.append(build_batch([Message(1, None, b"%d" % number)], base_offset=sum(map(len, found))))
    return found


@dataclass
class ScriptedOrigin:
    """An origin of one broker, whose partitions are lists of batches."""

    logs: dict[int, list[bytes]] = field(default_factory=lambda: {0: log_of(3), 1: log_of(2)})
    topic_id: UUID = TOPIC_ID
    id_at_broker: UUID | None = None
    """The topic's id as the leader tells it, where the cluster tells another."""
    leader: int = 1
    earliest: int = 0
    failure: Exception | None = None
    before_answer: Callable[[], None] | None = None
    settings: str = ""
    """Value of the topic's `mirror.origins`."""
    secret: tuple[str, ...] = ()
    """Topics whose settings it does not tell."""
    requests: list[dict[tuple[str, int], int]] = field(default_factory=list)
    idle: bool = True
    unused: bool = False
    answer_bytes: int = 0
    high_watermark: int = 10**6

    # What a watch asks of the cluster

    cluster_id, bootstrap, copies = "millrace-origin", "origin:1", None
    addresses: ClassVar = {1: ("origin", 1), 2: ("origin", 1)}

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicMetadata]:
        if self.failure is not None:
            raise self.failure
        there = {"clicks": TopicMetadata("clicks", self.topic_id, dict.fromkeys(self.logs, self.leader))}
        return there | {name: TopicMetadata(name, UUID(int=9), {0: self.leader}) for name in self.secret}

    def call(self, *_: object) -> DescribeConfigsResponse:
        told = DescribedConfig(name=ORIGINS, value=self.settings, read_only=True)

        def result(topic: str, error: int, *configs: DescribedConfig) -> DescribeConfigsResponse.Result:
            return DescribeConfigsResponse.Result(
                error_code=error,
                error_message=None,
                resource_type=ResourceType.TOPIC,
                resource_name=topic,
                configs=configs,
            )

        refused = [result(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for name in self.secret]
        return DescribeConfigsResponse(results=(*refused, result("clicks", 0, told)))

    def close(self) -> None:
        self.idle = True

    # What a puller asks of a broker

    def bounds(self, partitions: Collection[tuple[str, int]]) -> dict[tuple[str, int], tuple[int, int]]:
        return dict.fromkeys(partitions, (self.earliest, 10**6))

    def request(
        self,
        offsets: dict[tuple[str, int], int],
        limits: FetchLimits,
        last_epochs: dict[tuple[str, int], int],
    ) -> None:
        if self.failure is not None:
            raise self.failure
        self.requests.append(offsets)
        self.idle = False

    def receive(self, buffer: bytearray | None) -> dict[tuple[str, int], FetchedPartition]:
        if self.failure is not None:
            raise self.failure
        self.idle = True
        answers = {(topic, n): self.fetched(n, offset) for (topic, n), offset in self.requests[-1].items()}
        if self.before_answer is not None:
            self.before_answer()
        if not any(answer.records or answer.error for answer in answers.values()):
            time.sleep(0.005)  # as a long poll waits: the thread must not spin
        self.answer_bytes = sum(len(answer.records) for answer in answers.values())
        return answers

    def fetched(self, partition: int, offset: int) -> FetchedPartition:
        error = ErrorCode.OFFSET_OUT_OF_RANGE if offset < self.earliest else ErrorCode.NONE
        headers = [(BatchHeader.parse(batch), batch) for batch in self.logs[partition]]
        records = b"".join(b for h, b in headers if h is not None and h.next_offset > offset and not error)
        return FetchedPartition(error, self.high_watermark, 10**6, self.earliest, memoryview(records))

    def request_topic_ids(self, topics: Collection[str]) -> None:
        pass

    def receive_topic_ids(self) -> dict[str, UUID]:
        return {"clicks": self.id_at_broker or self.topic_id}


class ScriptedTarget:
    """The broker's side: remembers every append; compares as the log does."""

    def __init__(self) -> None:
        self.recorded: dict[int, MirrorPosition] = {}
        self.copied: dict[int, list[bytes]] = {}
        self.appends = 0
        self.not_here: set[int] = set()
        self.unreadable: set[int] = set()
        self.refusal: Exception | None = None

    def mirror_position(self, topic: str, number: int) -> MirrorPosition | None:
        if number in self.not_here:
            raise NotLeader("not here")
        if number in self.unreadable:
            raise StorageError("positions 0 to 99 are missing")
        return self.recorded.get(number)

    def append_mirrored(self, appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        future: Future[list[Exception | None]] = Future()
        future.set_result([self.append(each.partition, each.run, each.visible) for each in appends])
        return future

    def append(self, number: int, run: Run, visible: Callable[[], None]) -> Exception | None:
        recorded = self.recorded.get(number)
        if self.refusal is not None:
            return self.refusal
        if run.expected != (None if recorded is None else recorded.cursor.next_offset):
            return PositionMismatch(run.expected, recorded)
        self.appends += 1
        self.recorded[number] = run.position
        self.copied.setdefault(number, []).extend(bytes(batch) for batch in run.batches)
        visible()
        return None


class ScriptedCluster:
    """Topics in memory; two live brokers."""

    name, cluster_id = "offline", "millrace-offline"

    def __init__(self) -> None:
        self.brokers = {1: BrokerAddress("h", 1), 2: BrokerAddress("h", 2)}
        self.topics: dict[str, TopicState] = {}
        self.leader: int | None = 1
        self.failure: Exception | None = None

    def allocate_mirrors(self, topic: str, origins: Sequence[Origin]) -> dict[Origin, int]:
        if self.failure is not None:
            raise self.failure
        state = self.topics.get(topic, TopicState(topic, UUID(int=1), {}, {}))
        changed = with_mirrors(state, origins, self.brokers, Load())
        if self.leader is not None:
            led = {n: replace(each, leader=self.leader) for n, each in changed.partitions.items()}
            changed = replace(changed, partitions=led)
        self.topics[topic] = changed
        return {origin: changed.targets()[origin] for origin in origins}


@dataclass
class World:
    origin: ScriptedOrigin
    target: ScriptedTarget
    cluster: ScriptedCluster
    states: MirrorStates
    copying: embedded.CopiedOrigin

    def state(self, partition: int) -> str:
        return str(self.states.get("clicks", partition) or "")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(watch, "REFRESH_SECONDS", 0.02)
    monkeypatch.setattr(puller, "FETCH_WAIT_MS", 10)
    for module in (puller, fetcher):
        monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(puller, "MAX_PAUSE_SECONDS", 0.02)
    for kind in (puller.BrokerPuller, watch.OriginWatch):
        monkeypatch.setattr(kind, "max_pause_seconds", 0.02)
    target, cluster, states = ScriptedTarget(), ScriptedCluster(), MirrorStates()
    origin = ScriptedOrigin()
    monkeypatch.setattr(watch, "ClusterClient", lambda *_, **__: origin)
    monkeypatch.setattr(puller.BrokerPuller, "connect", lambda *_: origin)
    config = OriginConfig(bootstrap="x:1", topics=("c*",))
    copying = embedded.CopiedOrigin("dc1", config, 1, cast(Cluster, cluster), target, states)
    yield World(origin, target, cluster, states, copying)
    for thread in copying.stop():
        thread.join(10)
        assert not thread.is_alive(), "nothing keeps it from stopping"


def await_copies(world: World, **counts: int) -> None:
    wait_until(
        f"{counts} batches are copied",
        lambda: all(len(world.target.copied.get(int(n[1:]), [])) == c for n, c in counts.items()),
        timeout_s=5,
    )


def test_every_partition_is_copied_once_and_new_batches_follow(world: World) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    world.origin.logs[1] = log_of(4)
    world.origin.logs[2] = log_of(1)
    await_copies(world, p0=3, p1=4, p2=1)
    for number in range(3):
        assert world.target.copied[number] == world.origin.logs[number]
    wait_until("it says so", lambda: [world.state(n) for n in range(3)] == ["running"] * 3)


def test_the_latency_of_old_events_begins_with_their_arrival_at_the_origin(world: World) -> None:
    old = log_of(4)  # their timestamps are of 1970
    ends = [BatchHeader.of(batch).next_offset for batch in old]
    world.origin.logs, world.origin.high_watermark = {0: old[:3]}, ends[2]
    world.copying.start()
    await_copies(world, p0=3)
    assert world.states.latency_ms("clicks", 0) is None  # a first copy says nothing about the mirror
    wait_until("the mirror is up to date", lambda: len(world.origin.requests) > 5)
    began = time.time()
    world.origin.logs[0], world.origin.high_watermark = old, ends[3]
    await_copies(world, p0=4)
    wait_until("it has a latency", lambda: world.states.latency_ms("clicks", 0) is not None)
    latency = world.states.latency_ms("clicks", 0)
    assert latency is not None
    assert latency < (time.time() - began + WAIT_S) * 1000
    assert sum(world.states.copied["dc1"].latency.counts) == 1


def test_news_of_more_topics_than_a_broker_may_be_asked_about_is_copied_in_parts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(puller, "MAX_NEWS", 1)
    append, taken = world.target.append_mirrored, list[set[int]]()

    def noted(appends: Sequence[TargetAppend]) -> Future[list[Exception | None]]:
        taken.append({each.partition for each in appends})
        return append(appends)

    monkeypatch.setattr(world.target, "append_mirrored", noted)
    world.origin.logs[2] = log_of(4)
    world.copying.start()
    await_copies(world, p0=3, p1=2, p2=4)
    assert [len(partitions) for partitions in taken] == [1, 1, 1]


def test_only_partitions_whose_target_is_led_here_are_pulled(world: World) -> None:
    world.cluster.leader = None  # as allocated: 0 goes to broker 1, 1 to broker 2
    world.copying.start()
    await_copies(world, p0=3)
    assert 1 not in world.target.copied
    assert world.states.get("clicks", 1) is None


def test_what_a_topic_created_anew_answers_is_never_appended(world: World) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)

    def recreate() -> None:
        # Between the fetch's request and its answer: same name, same bytes, another topic.
        world.origin.topic_id = UUID(int=6)
        world.origin.before_answer = None

    world.origin.before_answer = recreate
    world.origin.logs = {0: log_of(9), 1: log_of(9)}
    wait_until("both have stopped", lambda: all("recreated" in world.state(n) for n in (0, 1)))
    assert (len(world.target.copied[0]), len(world.target.copied[1])) == (3, 2)


def test_a_partition_waits_and_says_so_while_its_leader_tells_another_topic_than_the_cluster(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    monkeypatch.setattr(puller, "FIRST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(puller, "MAX_PAUSE_SECONDS", 0.2)
    world.origin.id_at_broker = UUID(int=6)
    world.origin.logs = {0: log_of(4), 1: log_of(2)}
    wait_until("it says so", lambda: world.state(0).startswith("waiting: the origin's broker"))
    asked = sum(("clicks", 0) in request for request in world.origin.requests)
    time.sleep(1)
    assert sum(("clicks", 0) in request for request in world.origin.requests) - asked < 10
    assert world.state(1) == "running"
    world.origin.id_at_broker = None
    await_copies(world, p0=4, p1=2)
    wait_until("it runs again", lambda: world.state(0) == "running")


def test_an_expired_position_stops_its_partition_until_it_is_reset(world: World) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    before = world.target.recorded[0]
    more = log_of(8)
    cut = sum(len(batch) for batch in more[:5])
    world.origin.earliest, world.origin.logs[0] = cut, more[5:]
    wait_until("it has stopped", lambda: world.state(0).startswith("stopped: offsets"))
    appends = world.target.appends
    assert world.target.recorded[0] == before
    world.target.recorded[0] = replace(before, cursor=Cursor(cut, cut))  # what a reset does
    await_copies(world, p0=6)
    assert world.target.appends == appends + 1
    wait_until("it runs again", lambda: world.state(0) == "running")


def test_an_origin_that_fails_in_any_way_is_tried_again(world: World) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    for failure in (MillraceError("no answer"), ZeroDivisionError("a mistake of ours")):
        world.origin.failure = failure
        wait_until("it waits", lambda: world.state(0).startswith("waiting"))
        world.origin.failure = None
        wait_until("it runs", lambda: world.state(0) == "running")
    world.origin.logs[0] = log_of(5)
    await_copies(world, p0=5)


def test_somebody_who_was_faster_is_taken_into_account(world: World) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    faster = log_of(5)

    def append_first() -> None:
        world.origin.before_answer = None
        last = BatchHeader.parse(faster[3])
        assert last is not None
        cursor = Cursor(last.next_offset, last.base_offset + last.size)
        world.target.recorded[0] = replace(world.target.recorded[0], cursor=cursor)
        world.target.copied[0].append(faster[3])

    world.origin.before_answer = append_first
    world.origin.logs[0] = faster
    await_copies(world, p0=5)
    assert world.target.copied[0] == faster


def test_a_broker_that_cannot_write_makes_the_partition_wait_not_stop(world: World) -> None:
    world.target.refusal = MillraceError("no space left")
    world.copying.start()
    wait_until("it waits", lambda: "no space left" in world.state(0))
    world.target.refusal = None
    await_copies(world, p0=3, p1=2)


def test_a_log_that_is_not_open_yet_is_waited_for(world: World) -> None:
    world.target.not_here = {0}
    world.copying.start()
    await_copies(world, p1=2)
    assert 0 not in world.target.copied
    world.target.not_here = set()
    await_copies(world, p0=3)


@pytest.mark.parametrize("at_first", [True, False])
def test_a_log_that_could_not_be_opened_holds_up_no_other(world: World, at_first: bool) -> None:
    unopened = world.target.unreadable
    if at_first:
        unopened.add(0)
    else:  # it was led here, and comes back with a damaged disk
        world.origin.before_answer = lambda: unopened.add(0)
    world.copying.start()
    await_copies(world, p1=2)
    wait_until(
        "it says why", lambda: world.state(0) == "waiting: cannot append: positions 0 to 99 are missing"
    )
    assert world.state(1) == "running"
    world.origin.before_answer = None
    unopened.clear()
    await_copies(world, p0=3)


def test_a_partition_that_nobody_leads_at_the_origin_waits(world: World) -> None:
    world.copying.start()
    wait_until("it runs", lambda: world.state(0) == "running")
    world.origin.leader = -1
    wait_until("it says so", lambda: world.state(0) == "waiting: no broker of dc1 leads it now")
    world.origin.leader = 1
    wait_until("it goes on", lambda: world.state(0) == "running")


def test_a_broker_that_fails_after_its_partitions_have_moved_says_nothing_of_them(world: World) -> None:
    hangs, gives_up = threading.Event(), threading.Event()

    def hang() -> None:
        world.origin.before_answer = None
        hangs.set()
        assert gives_up.wait(WAIT_S)
        raise MillraceError("the old leader does not answer")

    world.copying.start()
    wait_until("both run", lambda: [world.state(n) for n in (0, 1)] == ["running"] * 2)
    world.origin.before_answer = hang
    assert hangs.wait(WAIT_S)
    old = next(thread for thread in threading.enumerate() if thread.name == "mirror dc1 broker 1")
    world.origin.leader, world.origin.logs = 2, {0: log_of(4), 1: log_of(3)}
    await_copies(world, p0=4, p1=3)
    wait_until("both run", lambda: [world.state(n) for n in (0, 1)] == ["running"] * 2)
    gives_up.set()
    old.join(10)
    assert [world.state(n) for n in (0, 1)] == ["running"] * 2


def test_targets_are_given_only_when_no_more_brokers_are_coming_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 60.0)
    world.copying.start()
    wait_until("it has looked", lambda: world.copying.watch._brokers[0])
    assert not world.cluster.topics
    monkeypatch.setattr(watch, "SETTLE_SECONDS", 0.0)
    await_copies(world, p0=3, p1=2)


def test_a_topic_whose_settings_the_origin_does_not_tell_holds_up_no_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.origin.secret = ("carts",)
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    refused = "mirror of dc1 carts waits: origin:1 does not return the settings of topic 'carts'"
    assert refused in caplog.text
    assert "carts" not in world.cluster.topics
    world.origin.secret = ()
    world.origin.logs[2] = log_of(1)
    await_copies(world, p2=1)


def test_partitions_that_have_a_target_are_copied_on_while_new_ones_get_none(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.copying.start()
    await_copies(world, p0=3, p1=2)
    world.cluster.failure = MillraceError("ZooKeeper does not answer")
    world.origin.logs[2] = log_of(1)
    wait_until("it says so", lambda: "clicks waits: ZooKeeper does not answer" in caplog.text)
    world.origin.logs[0] = log_of(5)
    await_copies(world, p0=5, p1=2)
    assert world.state(0) == "running"
    assert caplog.text.count("ZooKeeper does not answer") == 1
    world.cluster.failure = None
    await_copies(world, p0=5, p1=2, p2=1)


def test_states_are_logged_when_they_change_and_only_then(caplog: pytest.LogCaptureFixture) -> None:
    states, origin = MirrorStates(), Origin("dc1", "clicks", TOPIC_ID, 0)
    stopped = MirrorState(origin, State.STOPPED, "offsets 1 to 2 expired")
    for _ in range(3):
        states.put("clicks", 4, stopped)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "mirror of dc1 clicks-0 into clicks-4 stopped: offsets 1 to 2 expired" in caplog.text
    assert states.all() == {("clicks", 4): stopped}
    states.forget("clicks", 4)
    assert states.get("clicks", 4) is None
