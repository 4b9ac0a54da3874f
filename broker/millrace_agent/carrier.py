"""Sending events from the spool to the brokers, a chunk of each topic at a time, and reporting their
outcomes.

A chunk and its sequences are in the spool before the first of its events is handed to the client library, and
stay there until all its events have an outcome. Therefore the sequences that a killed agent may have sent are
known: the next agent reports them as failed ("may be in the log or not") and sends the events again under its
own instance.

The client is idempotent and has no time limit: while brokers are away a chunk waits and is not repeated. An
event that the brokers refuse is reported as failed and sent again later; no taken event is ever dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millrace.client.confluent import connected, text_of
from millrace.errors import MillraceError
from millrace.records.messages import write_varint
from millrace.topics_file import policies_of_environment
from millrace.wire.cluster_id import WrongCluster
from millrace_agent.claim import Claim, SpoolCopied
from millrace_agent.intake import Unavailable, Unknown
from millrace_agent.reporter import Reporter
from millrace_agent.spool import Chunk, Event, Form, Spool, SpooledInstance
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.event import instance_bytes
from millrace_audit.reports.fingerprints import Fingerprint, fingerprint_of
from millrace_audit.reports.messages import AUDIT_TOPIC, MOST_OPEN_WINDOWS, AuditCodec
from millrace_audit.reports.outcome import RANGES_PER_REPORT, Outcome, Unreported, still_open
from millrace_audit.reports.publish import AuditPublisher, UnknownTopic
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_registry.client import SchemaRegistryClient

logger = logging.getLogger("millrace.agent")

CHUNK_EVENTS, CHUNK_BYTES = 2000, 1 << 20
MAX_CHUNKS = 64
"""Most chunks of different topics that are in the client library at once."""
MAX_AGAIN = 10_000
"""Most refused events of a topic; with more, the topic takes no new events from the spool."""
RETRY_S = (1.0, 60.0)
"""First and longest wait before a refused event is sent again; the wait doubles."""
PUBLISH_TIMEOUT_S = 5.0
"""Longest time for which a hello or report may delay the events. Then it is retried later."""
CLUSTER_WAIT_S = 1.0
"""Timeout of the request for the brokers' cluster id."""
CHECK_AGAIN_S = 0.5
"""Wait before the cluster and the claim are checked again, after a check that failed."""
TOPICS_WAIT_S = 5.0
"""Timeout of the request whether a topic exists."""
STALLED_S = 60.0
"""Time after which a chunk without an acknowledgement is reported as a problem."""
_POLL_S = 0.05
_SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "delivery.timeout.ms": 0,  # no limit: an event whose time ran out would be sent twice
    "linger.ms": 2,
    "message.max.bytes": 1_100_000,
    "queue.buffering.max.messages": 2 * MAX_CHUNKS * CHUNK_EVENTS,
    "log_level": 2,
}


@dataclass(slots=True)
class _Sent:
    """A chunk in the client library."""

    first_sequence: int
    events: list[tuple[int, Event]]
    fingerprints: list[int]
    failed: dict[int, str] = field(default_factory=dict)
    """Place in the chunk -> the error."""
    outstanding: int = 0
    since: float = field(default_factory=time.monotonic)


class _Retry(NamedTuple):
    """Time (monotonic) at which a refused event is sent again, and the wait until then."""

    at: float
    wait_s: float


@dataclass(slots=True)
class _Lane:
    """A topic: its position in the spool, its chunk in the client library and its refused events."""

    topic: str
    behind: int = 0
    """The id of the last event that was handed over."""
    next_sequence: int = 0
    sent: _Sent | None = None
    has_news: bool = True
    again: dict[int, _Retry] = field(default_factory=dict)
    """Refused events, by id."""
    retries_next: bool = True
    """True if a refused event is sent before the next new events: the two alternate."""
    trouble: str | None = None


class Carrier:
    """Sends a spool's events as one new producer instance, and ends the instances of earlier processes."""

    def __init__(
        self,
        spool: Spool,
        bootstrap: str,
        registry: SchemaRegistryClient,
        *,
        cluster: str,
        server: str,
        service: str,
        lateness_ms: int,
        report_interval_s: float,
        caught_up: Callable[[], float] = time.time,
        behind: Callable[[], Collection[str]] = tuple,
    ) -> None:
        """Find what earlier processes left. Events that arrived before the time `caught_up` are taken.

        `behind` returns topics with more events for the spool, which wait in followed files.
        """
        self._spool, self._lateness_ms, self._interval_s = spool, lateness_ms, report_interval_s
        self._cluster_name = f"cluster {cluster} at {bootstrap}"
        self._settings = {"bootstrap.servers": bootstrap, **_SETTINGS}
        self._caught_up, self._behind = caught_up, behind
        self._policies = policies_of_environment()
        self._publisher = AuditPublisher(bootstrap, AUDIT_TOPIC)
        self._codec = AuditCodec(registry)
        self._producer = connected(Producer, self._settings)
        spooled = SpooledInstance(spool.next_instance, cluster, server, service)
        self._instance_bytes = instance_bytes(server, service, spooled.instance)
        self._recover()
        left = spool.left_instances()
        self._claim = Claim(bootstrap, self._codec, spool, spooled, left)
        self._dead = [self._reporter(each) for each in left]
        self._mine = self._reporter(spooled)
        self._lanes: dict[str, _Lane] = {}
        self._open: set[tuple[str, int]] = set()  # windows with events that were handed over, until closed
        self._chunks = 0
        self._fatal = self._may_send = False
        self._failing: str | None = None  # the error that blocks reports or the spool
        self.acknowledged = self.failed = self.reports = 0

    @property
    def instance(self) -> int:
        return self._mine.spooled.instance

    @property
    def troubles(self) -> list[str]:
        """Reasons why events do not reach the brokers at the moment; for any thread."""
        now, found = time.monotonic(), []
        if self._failing is not None:
            found.append(self._failing)
        for lane in list(self._lanes.values()):
            sent = lane.sent
            if lane.trouble is not None:
                found.append(f"topic {lane.topic}: {lane.trouble}")
            elif sent is not None and now - sent.since > STALLED_S:
                waited = f"{now - sent.since:.0f} s"
                found.append(
                    f"topic {lane.topic}: {self._cluster_name} has acknowledged nothing for {waited}"
                )
        return found

    def run(self, stop: threading.Event, drain_s: float) -> None:
        """Send events until `stop`; then continue for up to `drain_s`, until all events are sent and the
        instance is ended.

        Raise WrongCluster when the first broker that answers belongs to another cluster, and SpoolCopied
        when another agent uses a copy of the spool.
        """
        self._step(self._check)
        while not self._may_send and not stop.wait(CHECK_AGAIN_S):
            self._step(self._check)
        due = 0.0
        while not stop.is_set():
            self._step(self._carry)
            if time.monotonic() >= due or self._is_report_full:
                self._step(self._report)
                due = time.monotonic() + self._interval_s
        give_up_at = time.monotonic() + drain_s
        while self._may_send and time.monotonic() < give_up_at:
            if not self._spool.events and not self._chunks:
                if self._behind():
                    break  # the next process ends the instance: until then its windows stay open
                self._step(self._end)
                if self._failing is None:
                    break
            self._step(self._carry)
        self._producer.purge()
        self._publisher.close()

    def _step(self, step: Callable[[], None]) -> None:
        """Take one step. An error is logged once and does not end the thread."""
        try:
            step()
            if step == self._report or step == self._end:
                self._failing = None
        except (WrongCluster, SpoolCopied):
            raise
        except MillraceError as error:
            if str(error) != self._failing:
                logger.warning("%s", error)
            self._failing = str(error)
            time.sleep(_POLL_S)

    def _check(self) -> None:
        give_up_at = time.monotonic() + CLUSTER_WAIT_S
        self._publisher.check_cluster(self._mine.spooled.cluster, give_up_at=give_up_at)
        self._claim.check()
        self._may_send = True

    # Chunks and instances of earlier processes.

    def _recover(self) -> None:
        """Note the chunks of earlier processes as failed; their events wait to be sent again."""
        left = {one.instance: one for one in self._spool.left_instances()}
        for chunk in self._spool.left_chunks():
            one = left[chunk.instance]
            who = instance_bytes(one.server, one.service, one.instance)
            fingerprint = fingerprint_of(chunk.topic, self._policies)
            unreported: Unreported = {}
            ids, behind = list(chunk.ids), 0
            sequences = {number: chunk.first_sequence + place for place, number in enumerate(ids)}
            most: Any = {"most": CHUNK_EVENTS, "most_bytes": CHUNK_BYTES}
            while ids and (found := self._spool.waiting(chunk.topic, ids=ids, **most)):
                for behind, event in found:
                    outcome = unreported.setdefault((chunk.topic, window_start(event.time)), Outcome())
                    sequence = sequences[behind]
                    digest = _digest(fingerprint, event, _value(event, who, sequence), sequence)
                    outcome.add(sequence, digest, failed=True)
                ids = [number for number in ids if number > behind]
            self._spool.settle(one, chunk.topic, {}, unreported)
            logger.info("%d events of topic %s are sent again", len(chunk.ids), chunk.topic)

    def _reporter(self, spooled: SpooledInstance) -> Reporter:
        return Reporter(spooled, self._spool, self._codec.encode, self._publish)

    def _publish(self, message: bytes) -> None:
        self._claim.note(message)
        offset = self._publisher.publish([message], give_up_at=time.monotonic() + PUBLISH_TIMEOUT_S)
        self._spool.audit_offset = offset
        self.reports += 1

    # Reports.

    @property
    def _is_report_full(self) -> bool:
        unreported = self._mine.spooled.unreported
        return sum(1 + outcome.range_count for outcome in unreported.values()) > RANGES_PER_REPORT

    def _promise(self) -> int:
        """Return the time before which no event will follow.

        No event that waits, or is being taken, is older.
        """
        clock = min(self._spool.arrived_by, self._caught_up())
        return min(window_start(int(clock * 1000) - self._lateness_ms), self._spool.open_from)

    def _report(self) -> None:
        if self._dead:
            self._take_over()
        self._mine.report(self._promise())
        self._open = still_open(self._open, self._mine.closed_through)

    def _take_over(self) -> None:
        """Announce the waiting events and end earlier instances.

        Raise SpoolCopied when another agent was first.
        """
        # Announce first: otherwise the windows of waiting events would be final for a moment, and the windows
        # of waiting lines for as long as these wait.
        self._open_lanes()
        announced = {topic for each in self._dead for topic in each.spooled.hellos}
        for topic in [*self._lanes, *announced.intersection(self._behind())]:
            self._mine.announce(topic, self._promise())
        self._claim.check()
        self._end_dead()
        self._claim.check()

    def _end(self) -> None:
        if self._dead:
            self._take_over()
        self._mine.end()

    def _end_dead(self) -> None:
        while self._dead:
            self._dead[0].end()
            logger.info("instance %d of an earlier process is ended", self._dead[0].spooled.instance)
            del self._dead[0]

    # Events.

    def _carry(self) -> None:
        """Take outcomes and hand over waiting events. Returns after a moment."""
        if self._chunks:
            try:
                self._producer.poll(_POLL_S)
            except KafkaException as error:  # fatal, and raised once: all events in the client fail
                self._fatal = True
                logger.warning("%s: %s; going on with a new client", self._cluster_name, text_of(error))
        else:
            self._spool.awake.wait(_POLL_S)
        self._spool.awake.clear()
        self._open_lanes()
        for lane in list(self._lanes.values()):
            if lane.sent is not None and not lane.sent.outstanding:
                self._settle(lane, lane.sent)
        if self._fatal and not self._chunks:
            self._producer, self._fatal = connected(Producer, self._settings), False
        if self._lanes and not self._claim.is_proven:
            self._take_over()
        if self._fatal or self._is_report_full or not self._claim.is_proven:
            return
        for lane in list(self._lanes.values()):
            if lane.sent is None and self._chunks < MAX_CHUNKS:
                self._hand_over(lane)

    def _open_lanes(self) -> None:
        for topic in self._spool.take_news():
            self._lanes.setdefault(topic, _Lane(topic)).has_news = True

    def _next_events(self, lane: _Lane) -> list[tuple[int, Event]]:
        """Return new events, or one refused event alone: the brokers would refuse the whole batch with it."""
        most: Any = {"most": CHUNK_EVENTS, "most_bytes": CHUNK_BYTES}
        lane.retries_next = not lane.retries_next
        may_take_new = lane.has_news and len(lane.again) <= MAX_AGAIN
        if lane.again and (lane.retries_next or not may_take_new):
            number = min(lane.again, key=lambda one: lane.again[one].at)
            if lane.again[number].at <= time.monotonic():
                return self._spool.waiting(lane.topic, ids=[number], **most)
        if not may_take_new:
            return []
        events = self._spool.waiting(lane.topic, behind=lane.behind, **most)
        lane.has_news = bool(events)
        return events

    def _hand_over(self, lane: _Lane) -> None:
        if len(self._open) + CHUNK_EVENTS > MOST_OPEN_WINDOWS:
            first: Any = {"behind": lane.behind, "most": 1, "most_bytes": CHUNK_BYTES}
            lane.has_news = lane.has_news and bool(self._spool.waiting(lane.topic, **first))
            if lane.has_news or lane.again:
                lane.trouble = (
                    f"its events wait, because the agent holds {len(self._open)} windows of ten minutes open,"
                    " and the audit takes no more: they close when all followed files are read; restart the"
                    " agent if they stay open"
                )
            return
        events = self._next_events(lane)
        if not events:
            return
        mine = self._mine
        mine.announce(lane.topic, self._promise())
        if min(event.time for _, event in events) < mine.closed_through:
            mine.report(self._promise())  # revokes the promise that no event of that time will follow
        self._open.update((lane.topic, window_start(event.time)) for _, event in events)
        ids = [number for number, _ in events]
        self._spool.hand_over(Chunk(lane.topic, mine.spooled.instance, lane.next_sequence, ids))
        lane.behind = max(lane.behind, ids[-1])
        values = [
            _value(event, self._instance_bytes, lane.next_sequence + n) for n, (_, event) in enumerate(events)
        ]
        fingerprint = fingerprint_of(lane.topic, self._policies)
        fingerprints = [
            _digest(fingerprint, event, value, lane.next_sequence + n)
            for n, (value, (_, event)) in enumerate(zip(values, events, strict=True))
        ]
        sent = _Sent(lane.next_sequence, events, fingerprints, outstanding=len(events))
        lane.sent, lane.next_sequence, self._chunks = sent, lane.next_sequence + len(events), self._chunks + 1
        for place, (value, (_, event)) in enumerate(zip(values, events, strict=True)):
            self._produce(sent, place, event, value)

    def _produce(self, sent: _Sent, place: int, event: Event, value: bytes | None) -> None:
        try:
            self._producer.produce(
                event.topic,
                value,
                event.key,
                timestamp=event.time,
                headers=_record_headers(event, self.instance, sent.first_sequence + place),
                on_delivery=partial(self._delivered, sent, place),
            )
        except (KafkaException, BufferError) as error:
            cause = error.args[0] if error.args else None
            self._fatal |= isinstance(cause, KafkaError) and cause.fatal()
            sent.failed[place] = text_of(error)
            sent.outstanding -= 1

    def _delivered(self, sent: _Sent, place: int, error: KafkaError | None, _: Message) -> None:
        sent.outstanding -= 1
        if error is not None:
            self._fatal |= error.fatal()
            sent.failed[place] = text_of(error)

    def _settle(self, lane: _Lane, sent: _Sent) -> None:
        unreported: Unreported = {}
        acknowledged: dict[int, Event] = {}
        refused: list[int] = []
        for place, (number, event) in enumerate(sent.events):
            failed = place in sent.failed
            outcome = unreported.setdefault((lane.topic, window_start(event.time)), Outcome())
            outcome.add(sent.first_sequence + place, sent.fingerprints[place], failed=failed)
            if failed:
                refused.append(number)
            else:
                acknowledged[number] = event
        self._spool.settle(self._mine.spooled, lane.topic, acknowledged, unreported)
        lane.sent, self._chunks = None, self._chunks - 1
        self.acknowledged += len(acknowledged)
        self.failed += len(refused)
        for number in acknowledged:
            lane.again.pop(number, None)
        for number in refused:
            lane.again[number] = self._retry(lane.again.get(number), is_alone=len(sent.events) == 1)
        if refused:
            why = next(iter(sent.failed.values()))
            lane.trouble = f"{self._cluster_name} refuses {len(lane.again)} events, which are kept: {why}"
            logger.warning("topic %s: %s", lane.topic, lane.trouble)
        elif not lane.again:
            lane.trouble = None

    @staticmethod
    def _retry(before: _Retry | None, *, is_alone: bool) -> _Retry:
        """Return the next try.

        An event that was refused together with other events is retried at once: another event may be the
        cause.
        """
        first, longest = RETRY_S
        wait_s = 0.0
        if is_alone:
            wait_s = min(longest, 2 * before.wait_s) if before is not None and before.wait_s else first
        return _Retry(time.monotonic() + wait_s, wait_s)


def _value(event: Event, who: bytes, sequence: int) -> bytes | None:
    """Return the value of an event's message; None for a tombstone.

    `who` are the names and the instance, as bytes of every header in a value.
    """
    if event.form != Form.FIELDS:
        return None if event.form == Form.TOMBSTONE else event.body
    out = bytearray(b"\0")
    out += event.schema_id.to_bytes(4, "big")
    write_varint(out, event.time)
    out += who
    write_varint(out, sequence)
    out += event.body
    return bytes(out)


def _digest(fingerprint: Fingerprint, event: Event, value: bytes | None, sequence: int) -> int:
    """Return the fingerprint of an event's message; its sequence is in the value or in a record header."""
    return fingerprint(value or b"", None if event.form == Form.FIELDS else sequence)


def _record_headers(
    event: Event, instance: int, sequence: int
) -> list[tuple[str, str | bytes | None]] | None:
    """Return the record headers of an event's message: its audit header, unless that is in the value."""
    if event.form == Form.FIELDS:
        return None
    return [(HEADER_NAME, encode_header(topic_tag(event.topic), instance, sequence, event.time))]


class BrokersTopics:
    """The topics of the brokers, for the intake."""

    def __init__(self, bootstrap: str) -> None:
        self._publisher = AuditPublisher(bootstrap, AUDIT_TOPIC, timeout_s=TOPICS_WAIT_S)

    def check(self, topic: str) -> None:
        """Raise Unknown when the topic does not exist. Raise Unavailable when no broker answers."""
        try:
            self._publisher.check_topics(topic)
        except UnknownTopic as error:
            raise Unknown(str(error)) from None
        except MillraceError as error:
            raise Unavailable(str(error)) from None
