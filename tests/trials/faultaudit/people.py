"""Faults of who writes: strangers, producers that die or share a number, clocks, a reader's wrong options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import httpx

from millrace.errors import MillraceError
from millrace_audit.answer import Verdict
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, FOR_EVER, Count, Heartbeat, now_ms
from tests.brokers import free_port
from tests.support import Process, wait_until
from tests.trials.faultaudit import forging
from tests.trials.faultaudit.batches import BATCH, NEEDED, drop
from tests.trials.faultaudit.row import HOME, Plant, Row
from tests.trials.faultaudit.stage import EVENT, START, Says, Stage

_HOUR = 3_600_000
_YEAR_1 = -62_135_596_800_000
WELL = Says(verdict=Verdict.COMPLETE)


def rows() -> Iterator[Row]:
    yield from _strangers()
    yield from _producers()
    yield from _clocks()
    yield from _forged()
    yield Row(
        name="two-auditors",
        what="a second auditor is started on the database, and takes over when the first is killed",
        plant=_two_auditors,
        says=replace(WELL, sentence="another auditor writes to this database.*strangers: 0"),
    )
    yield Row(
        name="wrong-cluster",
        what="a reader is started for dc2 with the brokers of dc1",
        plant=_wrong_cluster,
        says=replace(
            WELL, sentence=r"tier dc2 is another cluster: .*give the right --cluster and --bootstrap"
        ),
    )


# Strangers' events


def _strangers() -> Iterator[Row]:
    yield Row(
        name="stranger-replays",
        what="a stranger sends messages 10 to 19 again, byte for byte",
        plant=_replays(HOME),
        says=Says(findings=[("duplicate", HOME, "10-19")]),
    )
    yield Row(
        name="stranger-copies-to-dc2",
        what="a stranger sends messages 10 to 19 into the second datacenter as well, byte for byte",
        plant=_replays("dc2"),
        says=Says(reason=f"10 events are at {HOME} and at dc2 .*sequences 10-19"),
    )
    yield Row(
        name="stranger-invents",
        what="a stranger sends message 77 in the name of an instance",
        plant=_invents(77),
        says=Says(findings=[("unexpected", HOME, "77")]),
    )
    yield Row(
        name="stranger-without-header",
        what="a stranger sends a message without a header",
        plant=_foreign,
        says=Says(reason=r"load \d+ rejected 1 messages"),
    )
    for name, time_ms in (("year-1", _YEAR_1), ("year-2-62", 1 << 62)):
        yield Row(
            name=f"stranger-in-{name}",
            what=f"a stranger sends an event of the time {time_ms}",
            plant=_invents(78, time_ms),
            says=replace(WELL, stranger=rf"\({HOME}\) Count events of topic \S+ have a time"),
        )


def _replays(cluster: str) -> Plant:
    def plant(stage: Stage) -> None:
        stage.begin()
        again = forging.messages(stage.place, HOME, stage.topic)[BATCH : 2 * BATCH]
        forging.write(stage.place, cluster, stage.topic, again)
        stage.end()
        stage.load()

    return plant


def _invents(sequence: int, time_ms: int = START) -> Plant:
    def plant(stage: Stage) -> None:
        stage.begin()
        event = forging.event(stage.place, stage.topic, stage.instances[HOME], sequence, time_ms, HOME)
        forging.write(stage.place, HOME, stage.topic, [event])
        stage.end()
        stage.load()

    return plant


def _foreign(stage: Stage) -> None:
    stage.begin()
    forging.write(stage.place, HOME, stage.topic, [forging.message(b"plain", stage.start, b"key")])
    stage.end()
    stage.load()


# Producers


def _producers() -> Iterator[Row]:
    silent = "reported through sequence 19 here, and 20 events are counted that it never reported"
    yield Row(
        name="producer-killed",
        what="a producer is killed: 20 messages are reported, 20 only acknowledged",
        plant=_killed,
        says=Says(verdict=Verdict.UNKNOWN, reason=silent),
    )
    yield Row(
        name="producers-share-a-number",
        what="two producers have one instance number, and other content",
        plant=_share_a_number,
        says=Says(
            findings=[("duplicate", HOME, "0-39")],
            reason="two producers share instance number",
            stranger=rf"\({HOME}\) Hello it does not have the instance's seal",
        ),
    )
    yield Row(
        name="producer-forked",
        what="a forked child sends 10 messages with its parent's producer, and 10 with one of its own",
        plant=_forked,
        says=replace(WELL, sentence="works only there: make one in each process, after the fork"),
    )
    yield Row(
        name="producer-of-another-cluster",
        what="a producer of dc1 is started with the name of a cluster that does not exist",
        plant=_of_another_cluster,
        says=replace(WELL, sentence="belongs to the cluster dc1. Set cluster to dc1"),
    )


def _killed(stage: Stage) -> None:
    cluster = stage.place.clusters[HOME]
    words = [cluster.bootstrap, stage.place.registry, HOME, stage.topic, str(stage.start)]
    process = Process(words, module="tests.trials.faultaudit.doomed_producer")
    assert process.wait() < 0, f"the producer was not killed:\n{process.output}"
    stage.elsewhere()
    stage.load()


def _share_a_number(stage: Stage) -> None:
    stage.begin()
    number = stage.instances[HOME]
    with mock.patch("millrace_audit.producer.secrets.randbits", return_value=number):
        second = stage.place.producer(HOME)
    for sequence in range(NEEDED * BATCH):
        event = {**EVENT, "url": f"/second/{sequence}"}
        second.send(stage.topic, None, event, time_ms=stage.start + sequence, partition=0)
    second.close()
    stage.end()
    stage.load()


def _forked(stage: Stage) -> None:
    cluster = stage.place.clusters[HOME]
    words = [cluster.bootstrap, stage.place.registry, HOME, stage.topic]
    process = Process(words, module="tests.trials.faultaudit.forking_producer")
    assert process.wait() == 0, f"the producer failed:\n{process.output}"
    stage.sentence = process.output
    stage.elsewhere()
    stage.load()
    assert stage.ask()[0].acknowledged == (NEEDED + 2) * BATCH, stage.ask()[0]


def _of_another_cluster(stage: Stage) -> None:
    with stage.place.producer(HOME, name="dc9") as producer:
        try:
            stage.send(producer, 0)
        except MillraceError as error:
            stage.sentence = str(error)
    stage.traffic()
    stage.load()


# Clocks


def _clocks() -> Iterator[Row]:
    for name, ahead_ms in (("2h-behind", -2 * _HOUR), ("a-day-behind", -24 * _HOUR)):
        yield Row(
            name=f"clock-{name}",
            what=f"a producer's clock is {name.replace('-', ' ')}",
            plant=_wrong_clock(ahead_ms),
            says=WELL,
        )
    for name, ahead_ms in (("2h-ahead", 2 * _HOUR), ("a-day-ahead", 24 * _HOUR - WINDOW_MS)):
        yield Row(
            name=f"clock-{name}",
            what=f"a producer's clock is {name.replace('-', ' ')}",
            plant=_wrong_clock(ahead_ms),
            says=Says(verdict=Verdict.PENDING, beside=Verdict.PENDING, reason="the window is still to come"),
        )
    yield Row(
        name="clock-steps-back",
        what="a producer's clock steps back behind what it has closed",
        plant=_steps_back,
        says=WELL,
    )
    yield Row(
        name="clock-beyond",
        what="a producer's clock shows year 1, 2^62 ms, or more than a day ahead",
        plant=_beyond,
        says=replace(WELL, sentence="(is no time in ms since the epoch between .*){3}"),
    )


def _wrong_clock(ahead_ms: int) -> Plant:
    def plant(stage: Stage) -> None:
        # Both windows are over when the clock is behind, and neither is when it is ahead.
        stage.start = window_start(now_ms() + ahead_ms) - (2 * WINDOW_MS if ahead_ms < 0 else WINDOW_MS)
        stage.traffic()
        stage.load() if ahead_ms < 0 else stage.place.load(stage.topic)

    return plant


def _steps_back(stage: Stage) -> None:
    with stage.place.producer(HOME) as producer:
        stage.send(producer, 0, stage.start + WINDOW_MS)
        producer.closed_through(stage.start + 2 * WINDOW_MS)
        producer.flush()
        stage.send(producer, 10)
    stage.elsewhere()
    stage.load()


def _beyond(stage: Stage) -> None:
    stage.begin()
    refused = []
    for time_ms in (_YEAR_1, 1 << 62, now_ms() + 25 * _HOUR):
        try:
            stage.producer.send(stage.topic, None, {**EVENT, "url": "/"}, time_ms=time_ms)
        except MillraceError as error:
            refused.append(str(error))
    stage.sentence = " ".join(refused)
    stage.end()
    stage.load()


# Forged words


def _forged() -> Iterator[Row]:
    unsigned = "no reader of the tier has signed it"
    for name, cause, plant in (
        ("hello", "Hello it does not have the instance's seal", _forged_hello),
        ("report", "Report its key does not fit the seal", _forged_report),
        ("count", f"Count {unsigned}", _forged_count),
        ("heartbeat", f"Heartbeat {unsigned}", _forged_heartbeat),
    ):
        yield Row(
            name=f"forged-{name}",
            what=f"a stranger writes a {name} that would hide or make a fault",
            plant=plant,
            says=replace(WELL, stranger=rf"\({HOME}\) {cause}"),
        )
    for name, is_strong in (("fast", False), ("strong", True)):
        yield Row(
            name=f"forged-event-{name}",
            what="messages 10 to 19 are lost, and a stranger writes them again, message 10 with other content"
            f" of the same XXH64; fingerprints are {name}",
            plant=_forged_events,
            is_strong=is_strong,
            says=Says(findings=[("altered", HOME, "0-39")]) if is_strong else WELL,
            unseen="" if is_strong else "Forged content under a fast fingerprint",
        )
    yield Row(
        name="replayed-counts",
        what="a stranger writes a reader's own counts and heartbeats again, with their signatures",
        plant=_replayed_counts,
        says=WELL,
    )


def _forged_events(stage: Stage) -> None:
    """Replace lost messages before any client has read them; the stranger has copies of the lost messages."""
    with stage.held(), stage.without(f"{HOME}-reader"):
        stage.traffic()
        first, *others = forging.messages(stage.place, HOME, stage.topic)[BATCH : 2 * BATCH]
        stage.edit_log(HOME, drop)
        again = [forging.same_xxh64(stage.place, stage.topic, first), *others]
        forging.write(stage.place, HOME, stage.topic, again)
    stage.load()


def _forged_hello(stage: Stage) -> None:
    stage.begin()
    hello = forging.hello(HOME, stage.instances[HOME], stage.topic)
    forging.say(stage.place, HOME, AUDIT_TOPIC, hello)
    stage.end()
    stage.load()


def _forged_report(stage: Stage) -> None:
    stage.begin()
    report = forging.report(HOME, stage.instances[HOME], NEEDED, FOR_EVER)
    forging.say(stage.place, HOME, AUDIT_TOPIC, report)
    stage.end()
    stage.load()


def _forged_count(stage: Stage) -> None:
    """That all of the partition is counted, and nothing was there."""
    with stage.place.clusters[HOME].client() as client:
        topic_id = client.topic(stage.topic).topic_id.hex
    count = Count(
        time=now_ms(), tier=HOME, topic=stage.topic, topic_id=topic_id, partition=0, start=0, end=1 << 40
    )
    forging.say(stage.place, HOME, COUNTS_TOPIC, count, key=bytes(40))
    stage.traffic()
    stage.load()


def _forged_heartbeat(stage: Stage) -> None:
    """That everything is counted for a long time to come."""
    beat = Heartbeat(time=now_ms() + 24 * _HOUR, tier=HOME, reported_through=1 << 40)
    forging.say(stage.place, HOME, COUNTS_TOPIC, beat, key=bytes(40))
    stage.traffic()
    stage.load()


def _replayed_counts(stage: Stage) -> None:
    stage.traffic()
    stage.await_counted()
    counts = forging.messages(stage.place, HOME, COUNTS_TOPIC)
    forging.write(stage.place, HOME, COUNTS_TOPIC, [replace(count, timestamp=now_ms()) for count in counts])
    stage.load()


# Readers


def _wrong_cluster(stage: Stage) -> None:
    stage.traffic()
    stage.load()
    reader = Process(stage.place.reader_command("dc2", HOME))
    wait_until("the reader refuses", lambda: not reader.running)
    stage.sentence = reader.output


# Auditors


def _two_auditors(stage: Stage) -> None:
    place, port = stage.place, free_port()
    second = Process(place.auditor_command(port))
    second.ready()
    stage.begin(batches=2)
    stage.await_tier(HOME, 2 * BATCH)
    stage.sentence = str(_health(port)["trouble"])
    place.kill("auditor")
    wait_until("the second auditor takes over", lambda: _health(port)["role"] == "active")
    stage.go_on(2)
    place.restart("auditor")
    second.kill()
    stage.end()
    stage.load()
    stage.sentence += f"; strangers: {len(stage.hears(WELL).strangers)}"


def _health(port: int) -> dict[str, Any]:
    return dict(httpx.get(f"http://127.0.0.1:{port}/v1/health").json())
