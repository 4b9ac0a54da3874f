"""Readers that share a tier: whatever they do, each message counts once, and no heartbeat claims too much.

The readers are real ones on a ZooKeeper and a cluster in memory; the auditor is the real one. Readers join,
end, are killed, stand still and lose their sessions at any request.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID, uuid4

import pytest
from sqlalchemy import select

from millrace.errors import MillraceError
from millrace.records import BatchHeader, Message
from millrace_audit.auditor.store import AuditStore, CoverageRow, UncountedRow
from millrace_audit.reader.partition import PartitionKey
from millrace_audit.reader.sharing import Member, Membership, Shares, joined
from millrace_audit.reports.batches import messages_of
from millrace_audit.reports.counts import WINDOW_MS, SequenceCounts
from millrace_audit.reports.fingerprints import fingerprint
from millrace_audit.reports.messages import (
    FOR_EVER,
    NOTHING,
    OFFLINE,
    AuditCodec,
    Count,
    Heartbeat,
    Origin,
    ReaderPosition,
)
from millrace_audit.reports.ranges import SequenceRanges
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_audit.reports.turn_taker import TurnTaker
from millrace_audit.reports.turns import Seat, Turn, TurnBook
from tests.unit.audit.readers_in_memory import MemorySession, World, ZooKeeper
from tests.unit.audit.story import COUNTED, OPTIONS, Story, W, found

PHASES = 5
LOSES = 2
"""Phase in which the cluster loses an acknowledged event."""
SEAT = Seat("dc1", "dc1")
START_MS = W + 9 * WINDOW_MS


@dataclass
class Trial:
    """A world whose producers report, and an auditor that is asked again and again."""

    world: World
    story: Story
    loses: bool = False
    read: int = 0
    newest: int = -1
    rejected: int = 0
    accepted: dict[tuple[str, int], int] = field(default_factory=dict)
    """Topic id and partition -> end of the counts that the auditor accepts."""
    sent: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    """Topic and instance -> number of its events."""
    reports: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    said: list[tuple[int, dict[Any, int]]] = field(default_factory=list)
    """End of the reports after each report, and the ends of all logs by then."""
    beats: list[Heartbeat] = field(default_factory=list)
    lost: tuple[str, int] = ("", -1)

    def __post_init__(self) -> None:
        self._values: set[tuple[int, bytes]] = set()
        self.world.reported_end = lambda: self.story.said_end("dc1")
        self.book = TurnBook(MemorySession(self.world.zookeeper, lambda: None), "aggregate")  # type: ignore[arg-type]
        self.codec = AuditCodec(self.world.schemas)

    # What producers do.

    def new_topic(self) -> None:
        name = f"t{len(self.world.ids)}"
        self.world.ids[name] = UUID(int=len(self.world.ids) + 1)
        for partition in range(self.world.dice.randint(1, 4)):
            self.world.add_log(name, partition)

    def send(self, phase: int, *, loses: bool = False) -> None:
        """Send events of one topic, carry them to the later tiers, and report them."""
        world, instance, window = self.world, phase + 1, W + phase * WINDOW_MS
        name, partition = world.dice.choice(sorted(world.logs))
        if (name, instance) not in self.sent:
            self.story.hello(instance, topic=name)
        first, size = self.sent[name, instance], world.dice.randint(1, 5)
        self.sent[name, instance] += size
        numbers = [n for n in range(first, first + size) if not (loses and n == first)]
        headers = [encode_header(topic_tag(name), instance, n, window) for n in range(first, first + size)]
        kept = headers[1:] if loses else headers
        if loses:
            self.lost = (name, first)
        log = world.logs[name, partition]
        if kept:
            log.append(world.now_ms(), *(Message(1, None, b"v", [(HEADER_NAME, header)]) for header in kept))
            counts = SequenceCounts()
            for n in numbers:
                counts.add("", "", instance, window, n, n, fingerprint=fingerprint(b"v", n))
            origin = Origin("dc1", world.ids[name].hex, partition, log.end)
            ends: dict[str, Any] = {"start": log.end - len(kept), "end": log.end, "copied_through": log.end}
            ends |= {"topic": name, "topic_id": f"copy-{name}", "origin": origin}
            self.story.count(OFFLINE, counts, partition=partition, **ends)
            self.story.beat(OFFLINE, world.now_ms())
            self.story.load(counts, topic=name)
        self.report(phase, (first, first + size - 1), topic=name)

    def report(self, phase: int, *ranges: tuple[int, int], **other: Any) -> None:
        values = {"instance": phase + 1, "window": W + phase * WINDOW_MS, "closed": NOTHING, **other}
        self.story.report(self.reports[phase], *ranges, fingerprinted=False, **values)
        self.reports[phase] += 1
        self.said.append((self.story.said_end(), {key: log.end for key, log in self.world.logs.items()}))

    # What the auditor and this test conclude.

    def follow(self) -> None:
        """Read what the readers have published, and check each claim."""
        for batch in self.world.counts.batches[self.read :]:
            for message in messages_of(BatchHeader.of(batch), batch):
                self._follow(message.key, message.value)
        self.read = len(self.world.counts.batches)

    def ask(self) -> dict[tuple[int, str], dict[str, Any]]:
        """Ask the auditor for all windows: none is complete without an event, or incomplete with all."""
        self.follow()
        self.story.apply()
        windows = {
            (phase, name): window
            for name in self.world.ids
            for phase, window in enumerate(self.story.answer(W, PHASES, name)["windows"])
        }
        for (phase, name), window in windows.items():
            is_wrong = "complete" if (phase, name) == (LOSES, self.lost[0]) else "incomplete"
            assert window["verdict"] != is_wrong, window
        return windows

    def _follow(self, key: bytes | None, value: bytes) -> None:
        turn, record = self.book.signed("dc1", key, value, len(value) * self.read), self.codec.decode(value)
        assert isinstance(record, Count | Heartbeat)
        assert turn is not None
        self.story.say(COUNTED, "dc1", record, turn)
        if turn < self.newest:
            self.rejected += 1
            return
        self.newest = turn
        if isinstance(record, Count):
            end = self.accepted.get((record.topic_id, record.partition), 0)
            if (turn, value) not in self._values:  # else it was sent again
                assert record.start == end, "each count goes on where the one before has ended"
                self.accepted[record.topic_id, record.partition] = record.end
            self._values.add((turn, value))
        elif record.time != NOTHING:
            self.beats.append(record)
            self._check(record)

    def _check(self, beat: Heartbeat) -> None:
        needed = {key: sum(time < beat.time for time in log.times) for key, log in self.world.logs.items()}
        for end, ends in self.said:
            if end <= (beat.reported_through or 0):
                needed = {key: max(needed[key], ends.get(key, 0)) for key in needed}
        for (name, partition), end in needed.items():
            counted = self.accepted.get((self.world.ids[name].hex, partition), 0)
            assert counted >= end, f"{name}-{partition} was counted to {counted}, and claimed to {end}"

    def is_counted(self) -> bool:
        ends = {
            (self.world.ids[name].hex, p): log.end for (name, p), log in self.world.logs.items() if log.end
        }
        return all(self.accepted.get(key) == end for key, end in ends.items())


@pytest.fixture
def begun(
    monkeypatch: pytest.MonkeyPatch, stores: Callable[[str], AuditStore]
) -> Iterator[Callable[..., Trial]]:
    worlds: list[World] = []

    def begin(seed: int, **options: Any) -> Trial:
        worlds.append(World(monkeypatch, seed, START_MS))
        of_one = replace(OPTIONS, origins=("dc1",))
        trial = Trial(worlds[-1], Story(stores("sqlite://"), of_one), **options)
        for _ in range(3):
            trial.new_topic()
        return trial

    yield begin
    for world in worlds:
        world.close()


ANYTHING = ("join", "join", "join", "kill", "end", "stand still", "go on", "expire", "fail", "fail")


def disturb(world: World, most: int, events: Sequence[str] = ANYTHING) -> None:
    """Let a reader join, end, be killed, stand still, go on or lose its session."""
    dice, alive = world.dice, world.alive()
    chosen = dice.choice(alive) if alive else None
    what = dice.choice(events)
    if what == "join" and len(alive) < most:
        world.start()
    elif chosen is None:
        pass
    elif what == "kill":
        world.kill(chosen)
    elif what == "end":
        chosen.set()
    elif what == "stand still":
        chosen.stands_still = True
    elif what == "go on":
        chosen.stands_still = False
    elif what == "expire":
        chosen.session.expire()
    elif what == "fail":
        chosen.fails = True
    for process in world.processes:
        if (process.is_killed or process.stands_still) and dice.random() < 0.3:
            process.session.expire()
    for process in world.processes:
        if process.unsent and (process.is_done or process.stands_still) and dice.random() < 0.2:
            process.deliver()  # it was under way


def run(world: World, steps: int) -> None:
    """Let readers that neither sleep nor stand still continue, a request after the other."""
    for _ in range(steps):
        going = [process for process in world.alive() if not process.stands_still]
        ready = [process for process in going if process.wakes_at <= world.now_s]
        if ready:
            world.run(world.dice.choice(ready))
        else:
            world.now_s = min((process.wakes_at for process in going), default=world.now_s + 0.1)


def work(trial: Trial, phase: int) -> None:
    """Let the readers count for a while, beside producers."""
    for _ in range(trial.world.dice.choice([1, 2, 3, 20])):
        if trial.world.dice.random() < 0.7:
            trial.send(phase)
        run(trial.world, trial.world.dice.randint(1, 100))


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3))])
def test_eight_readers_that_come_and_go_count_each_message_once(
    begun: Callable[..., Trial], seed: int
) -> None:
    trial = begun(seed, loses=bool(seed % 2))
    world = trial.world
    world.start()
    for phase in range(PHASES):
        trial.send(phase, loses=trial.loses and phase == LOSES)
        for _ in range(20):
            disturb(world, 8)
            if world.dice.random() < 0.1 and len(world.ids) < 6:
                trial.new_topic()
            work(trial, phase)
            if world.dice.random() < 0.1:
                trial.ask()
        trial.report(phase, closed=FOR_EVER)
        trial.ask()
    settle(trial)
    check_all(trial)
    assert trial.newest > 10
    assert len(trial.beats) > 20


def test_readers_that_join_and_end_by_themselves_publish_nothing_in_vain(begun: Callable[..., Trial]) -> None:
    """A record of a turn that is over would be rejected, and an operator alarmed."""
    trial = begun(7)
    world = trial.world
    for phase in range(PHASES):
        for _ in range(30):
            disturb(world, 4, ["join", "end"])
            trial.send(phase)
            run(world, world.dice.randint(10, 300))
        trial.report(phase, closed=FOR_EVER)
    settle(trial)
    check_all(trial)
    assert trial.newest > 10
    assert trial.rejected == 0


@pytest.mark.parametrize("which", ["holder", "other"])
def test_a_reader_whose_rounds_fail_leaves_its_share_until_it_can_count_again(
    begun: Callable[..., Trial], which: str
) -> None:
    trial = begun(5)
    world = trial.world
    first, second = world.start(), world.start()
    trial.send(0)
    run(world, 2000)
    trial.follow()
    holds = {world.zookeeper.nodes[SEAT.holder].owner == each.session.id: each for each in (first, second)}
    bad = holds[which == "holder"]
    turn, bad.is_cut_off = trial.newest, True
    trial.send(0)
    trial.report(0, closed=FOR_EVER)
    for _ in range(40):
        run(world, 500)
    trial.follow()
    assert trial.is_counted()
    assert trial.beats[-1].reported_through == trial.story.said_end()
    assert trial.newest > turn
    bad.is_cut_off = False
    for phase in range(1, PHASES):
        trial.send(phase)
        trial.report(phase, closed=FOR_EVER)
    settle(trial)
    check_all(trial)
    shares = Shares.decode(world.zookeeper.nodes[SEAT.shares].data)
    assert len(shares.members) == 2


@pytest.mark.parametrize("is_counting", [True, False])
def test_a_reader_that_fails_alone_leaves_the_tier_to_a_reader_that_is_started_later(
    begun: Callable[..., Trial], *, is_counting: bool
) -> None:
    trial = begun(6)
    world = trial.world
    bad = world.start()
    if is_counting:
        run(world, 1000)
    bad.is_cut_off = True
    run(world, 1000)
    good = world.start()
    for phase in range(PHASES):
        trial.send(phase)
        trial.report(phase, closed=FOR_EVER)
    for _ in range(40):
        run(world, 500)
    trial.follow()
    assert world.zookeeper.nodes[SEAT.holder].owner == good.session.id
    assert trial.is_counted()
    assert trial.beats[-1].reported_through == trial.story.said_end()


def test_a_reader_whose_new_positions_zookeeper_did_not_take_hands_them_over_later(
    begun: Callable[..., Trial],
) -> None:
    """The reader waits for ever for the positions to be published if others replace them before that."""
    trial = begun(8)
    world = trial.world
    both = [world.start(), world.start()]
    run(world, 2000)
    for phase in range(PHASES):
        holder = world.zookeeper.nodes[SEAT.holder].owner
        (other,) = (process for process in both if process.session.id != holder)
        other.session.is_silent = True
        trial.new_topic()
        trial.send(phase)
        run(world, 500)
        other.session.is_silent = False
        run(world, 2000)
    settle(trial)
    for name, partition in world.logs:
        topic_id = world.ids[name].hex
        assert any(
            (each.topic_id, each.partition) == (topic_id, partition)
            for beat in trial.beats
            for each in beat.positions
        )


def test_a_reader_that_is_back_after_a_long_pause_does_not_pause_as_long_in_its_share(
    begun: Callable[..., Trial],
) -> None:
    """The other readers would wait for it: its turn ends while it begins, and is no failure of its own."""
    trial = begun(12)
    world = trial.world
    first, second = world.start(), world.start()
    run(world, 2000)
    holder = world.zookeeper.nodes[SEAT.holder].owner
    back = first if second.session.id == holder else second
    back.is_cut_off = True
    while back.wakes_at < world.now_s + 50:
        run(world, 100)
    back.is_cut_off = False
    run_until(world, lambda: back.session.id in turns_of(world))
    back.stands_still = True  # the other reader holds the tier again
    run_until(world, lambda: len(shares_of(world).members) == 2)
    back.stands_still = False
    run_until(world, lambda: turns_of(world)[back.session.id] is not None)
    back.stands_still = True
    world.start()
    run_until(world, lambda: len(shares_of(world).members) == 3)
    back.stands_still, began_s = False, world.now_s
    while world.now_s < began_s + 10:
        run(world, 100)
    trial.follow()
    assert trial.beats[-1].time > START_MS + 1000 * began_s


def run_until(world: World, is_true: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if is_true():
            return
        run(world, 1)
    raise AssertionError("it has not become true")


def turns_of(world: World) -> dict[int, int | None]:
    """Return the turn that each reader notes, by session."""
    nodes = world.zookeeper.nodes.items()
    members = {
        node.owner: Member.decode(node.data) for path, node in nodes if path.startswith(f"{SEAT.readers}/")
    }
    return {session: member.turn for session, member in members.items() if member is not None}


def shares_of(world: World) -> Shares:
    """Return the present shares, without members if there are none."""
    node = world.zookeeper.nodes.get(SEAT.shares)
    return Shares(-1, []) if node is None else Shares.decode(node.data)


def test_messages_newer_than_the_slowest_readers_time_are_not_complete_if_offsets_were_not_counted(
    stores: Callable[[str], AuditStore],
) -> None:
    """The heartbeat behind the count has the slowest reader's time, from before these messages."""
    story = Story(stores("sqlite://"), replace(OPTIONS, origins=("dc1",)))
    window = W + WINDOW_MS
    story.hello()
    story.report(0, (0, 4), window=window, closed=FOR_EVER)
    story.beat("dc1", W + 1000)
    counts = found((0, 4), window=window)
    story.count("dc1", counts, time=window + 1000, expired=SequenceRanges([(50, 59)]))
    story.beat("dc1", W + 2000)
    story.count(OFFLINE, counts)
    story.load(counts)
    story.beats()
    story.apply()
    assert [each["verdict"] for each in story.answer(W, 3)["windows"]] == ["complete", "unknown", "complete"]


def settle(trial: Trial) -> None:
    """Let the readers that are left count all and publish heartbeats behind it."""
    world = trial.world
    for process in world.processes:
        if process.is_killed:
            process.session.expire()
        process.stands_still = False
    if all(process.stopping for process in world.alive()):
        world.start()
    for _ in range(100):
        run(world, 300)
        trial.follow()
        if trial.is_counted() and trial.beats[-1].reported_through == trial.story.said_end():
            break
    run(world, 3000)
    trial.follow()
    assert trial.is_counted()
    assert trial.beats[-1].reported_through == trial.story.said_end()
    trial.story.beat(OFFLINE, world.now_ms())


def check_all(trial: Trial) -> None:
    windows = trial.ask()
    for name, instance in trial.sent:
        window = windows[instance - 1, name]
        if (instance - 1, name) == (LOSES, trial.lost[0]):
            (finding,) = window["findings"]
            assert (window["verdict"], finding["kind"], finding["tier"]) == ("incomplete", "missing", "dc1")
            assert finding["sequences"] == [[trial.lost[1], trial.lost[1]]]
        else:
            assert window["verdict"] == "complete", window
    with trial.story.store.reading() as session:
        assert session.scalars(select(UncountedRow)).all() == []
        rows = session.scalars(select(CoverageRow).where(CoverageRow.tier == "dc1")).all()
        assert not any(row.gone for row in rows)


def member(zookeeper: ZooKeeper, *settings: str) -> tuple[Membership, TurnTaker]:
    session: Any = MemorySession(zookeeper, lambda: None)
    made = Membership(session, SEAT, settings)
    made.enter()
    return made, TurnTaker(session, SEAT, "c")


def shared_by(first: tuple[Membership, TurnTaker]) -> int:
    """Begin a turn of the first reader."""
    members, taker = first
    turn = taker.take()
    assert isinstance(turn, Turn)
    members.share(turn.number, threading.Event())
    members.publish()
    return turn.number


def test_a_reader_that_has_left_a_turn_counts_in_another_turn_only() -> None:
    """Its counts in the turn lie behind the beginning of the turn, where it would not find them."""
    zookeeper = ZooKeeper()
    holder, other = member(zookeeper), member(zookeeper)
    turn = shared_by(holder)
    shares = other[0].assigned()
    assert shares is not None
    assert (shares.turn, set(shares.members)) == (turn, {holder[0].name, other[0].name})
    other[0].leave()
    assert other[0].assigned() is None
    assert holder[0].is_over(), "it has another name now"
    holder[0].leave()
    holder[1].release()
    assert shared_by(holder) > turn
    assert other[0].assigned() is not None


def test_a_turn_begins_when_the_readers_of_the_one_before_have_left_it() -> None:
    """Records of the old turn that follow the beginning of the new one would be rejected."""
    zookeeper, waited = ZooKeeper(), list[float]()
    holder, other = member(zookeeper), member(zookeeper)
    other[0].join(shared_by(holder))
    assert other[0].assigned() is not None
    holder[0].leave()
    holder[1].release()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0)
            assert other[0].is_over()
            other[0].leave()
            return False

    turn = holder[1].take()
    assert isinstance(turn, Turn)
    holder[0].share(turn.number, Stop())
    assert len(waited) == 1


def test_a_reader_does_not_join_a_turn_that_its_holder_has_just_ended() -> None:
    zookeeper = ZooKeeper()
    holder, other = member(zookeeper), member(zookeeper)
    turn = shared_by(holder)
    assert other[0].assigned() is not None
    holder[0].leave()
    with pytest.raises(MillraceError, match="the readers of tier dc1 have changed"):
        other[0].join(turn)


def test_a_reader_waits_until_the_positions_that_it_has_handed_over_are_published() -> None:
    """A position in the topic must be the end of all counts before it: the next turn's readers rely on it."""
    zookeeper = ZooKeeper()
    holder, other = member(zookeeper)[0], member(zookeeper)[0]
    taker = TurnTaker(holder._session, SEAT, "c")
    other_turn = shared_by((holder, taker))
    assert holder.heartbeats() is None, "the other reader has not counted yet"
    assert other.assigned() is not None
    other.join(other_turn)
    positions = [ReaderPosition("t", "a" * 32, 0, 7)]
    other.hand_over(Heartbeat(time=5, tier="dc1", number=1, reported_through=8, positions=positions))
    assert other.must_wait
    beats = holder.heartbeats()
    assert beats is not None
    own = Heartbeat(time=6, tier="dc1", number=3, reported_through=7)
    whole = joined(own, beats, {})
    assert (whole.time, whole.number, whole.reported_through, whole.positions) == (5, 3, 7, positions)
    assert joined(own, beats, {other.name: 1}).positions == [], "they were published before"
    holder.publish(beats)
    assert not other.is_over()
    assert not other.must_wait


def test_each_partition_has_one_reader_and_those_of_a_topic_are_spread() -> None:
    shares = Shares(1, ["a", "b", "c"])
    keys = [PartitionKey(f"{topic:032x}", number) for topic in range(40) for number in range(7)]
    owners = [shares.owner(key) for key in keys]
    assert all(70 < owners.count(name) < 120 for name in "abc"), owners
    assert all({shares.owner(PartitionKey(f"{t:032x}", p)) for p in range(3)} == {*"abc"} for t in range(40))


def test_readers_with_other_settings_have_no_share() -> None:
    zookeeper = ZooKeeper()
    holder, other = member(zookeeper, "one topic"), member(zookeeper, "all topics")
    shared_by(holder)
    assert other[0].assigned() is None
    assert not holder[0].is_over()


def test_shares_that_a_reader_writes_after_its_session_has_ended_have_no_effect() -> None:
    zookeeper = ZooKeeper()
    holder, other = member(zookeeper), member(zookeeper)
    shared_by(holder)
    cast(MemorySession, holder[0]._session).expire()
    turn = shared_by(other)
    with pytest.raises(MillraceError, match="the session with ZooKeeper has ended"):
        holder[0].publish()
    assert Shares.decode(zookeeper.nodes[SEAT.shares].data).turn == turn


def test_a_share_that_does_not_fit_into_a_node_names_the_remedy() -> None:
    (members, _) = member(ZooKeeper())
    positions = [ReaderPosition(uuid4().hex, uuid4().hex, n, n) for n in range(40_000)]
    with pytest.raises(MillraceError, match="start more readers"):
        members.note(1, Heartbeat(time=1, tier="dc1", positions=positions))


def test_a_node_that_holds_no_reader_has_no_share() -> None:
    zookeeper = ZooKeeper()
    holder = member(zookeeper)
    for number, data in enumerate((b"", b"{}", zlib.compress(b"[]"), zlib.compress(b'{"heartbeat": null}'))):
        zookeeper.create(f"{SEAT.readers}/{number}", data, 0)
    shared_by(holder)
    assert holder[0].shares is not None
    assert holder[0].shares.members == [holder[0].name]
