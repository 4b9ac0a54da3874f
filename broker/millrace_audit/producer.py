"""AuditedProducer: sends events and says of every single one what became of it.

On confluent-kafka: acks=all and idempotent, so an acknowledged event is in the log once. Before the first
event of a topic it publishes a hello and waits for it; then, every few seconds and at flush and close, a
numbered report of what was acknowledged and what failed. Nothing is done per event for a success; librdkafka
calls back for failures alone, and what was sent before a moment with nothing outstanding has an outcome.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millrace.errors import ConfigError, MillraceError
from millrace_audit.outcomes import Outcomes, TopicOutcomes
from millrace_audit.reports.event import EventSchema, NotAudited, read_header
from millrace_audit.reports.messages import FOR_EVER, NOTHING, AuditCodec, Hello, Report
from millrace_audit.reports.publish import EXPIRY_MARGIN_S, AuditPublisher, text_of
from millrace_audit.reports.ranges import Range, in_words
from millrace_audit.reports.topics import AUDIT_TOPIC
from millrace_registry.client import SchemaRegistryClient, UnknownSchema

log = logging.getLogger("millrace.producer")

DELIVERY_TIMEOUT_MS = 60_000
REPORT_INTERVAL_S = 10.0
RANGES_PER_REPORT = 20_000
"""A report with more is sent in portions: this many ranges stay well below the largest message."""
_POLL_S = 0.1
_FIXED = {"acks": "all", "enable.idempotence": True, "delivery.report.only.error": True}
_SAME_AS = {"request.required.acks": "acks", "message.timeout.ms": "delivery.timeout.ms"}


class DeliveryFailed(MillraceError):
    """Events were not acknowledged: they may be in the log or not; `failed` names them by topic."""

    def __init__(self, text: str, failed: Mapping[str, Sequence[Range]]) -> None:
        super().__init__(text)
        self.failed = failed


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of one topic's events: sequence ranges of this instance, both ends included."""

    topic: str
    acknowledged: Sequence[Range]
    failed: Sequence[Range]


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic that has been announced: its bookkeeping, and the schema that was used last.

    A new one for another schema: two threads may send the topic with one each.
    """

    outcomes: TopicOutcomes
    given: str | Mapping[str, Any]
    schema: EventSchema


class AuditedProducer:
    """One instance of a service on one server, producing to one cluster. Safe between threads; a context.

    Raises MillraceError in one line for an unknown topic, an event that does not fit, no broker in reach.
    """

    def __init__(
        self,
        bootstrap: str,
        registry_url: str,
        *,
        cluster: str,
        server: str,
        service: str,
        config: Mapping[str, Any] | None = None,
        lateness_ms: int | None = None,
        report_interval_s: float = REPORT_INTERVAL_S,
    ) -> None:
        """`config` goes to librdkafka; `lateness_ms`: no event will be older than this when it is sent.

        Without `lateness_ms` only `closed_through` and `close` say that a time is over.
        """
        self.instance = secrets.randbits(63)
        self.server = server
        self._names: dict[str, Any] = {
            "cluster": cluster,
            "server": server,
            "service": service,
            "instance": self.instance,
        }
        self._where = f"cluster {cluster} at {bootstrap}"
        self._registry = SchemaRegistryClient(registry_url)
        self._codec = AuditCodec(self._registry)
        settings = _settings(bootstrap, config or {})
        self._timeout_s = settings["delivery.timeout.ms"] / 1000
        self._failures: deque[Message] = deque()
        # Called from poll, in whatever thread: appending takes no lock, so nothing can wait in a circle.
        self._producer = Producer({**settings, "on_delivery": self._on_failure})
        self._reports = AuditPublisher(bootstrap, AUDIT_TOPIC, timeout_s=self._timeout_s)
        self._lock = threading.Lock()  # the bookkeeping, and the order of events of a topic
        self._report_lock = threading.Lock()  # one report at a time; taken before _lock, never after
        self._outcomes = Outcomes()
        self._topics: dict[str, _Topic] = {}
        self._schemas: dict[int, EventSchema] = {}
        self._named: dict[str, EventSchema] = {}  # by the subject whose latest version it was
        self._header = {"time": 0, "server": server, "service": service, "instance": self.instance,
                        "sequence": 0}  # fmt: skip
        self._lateness_ms = lateness_ms
        self._promised = NOTHING
        self._reported = NOTHING
        self._number = 0
        self._unsent: deque[Report] = deque()  # a report keeps its number and content until it is there
        self._told_failures = 0
        self._closed = False  # nothing is sent any more
        self._ended = False  # and the last report is there
        self._stop = threading.Event()
        self._interval_s = report_interval_s
        self._thread = threading.Thread(target=self._run, name="millrace-reports", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        schema: str | Mapping[str, Any],
        event: Mapping[str, Any],
        *,
        time_ms: int,
        key: bytes | str | None = None,
        partition: int | None = None,
    ) -> int:
        """Hand one event over; its sequence number. Without key and partition the partition is random.

        `schema` is a parsed Avro schema, or a subject whose latest version is looked up once; `event` has
        its fields without the header; `time_ms` is the event's time. The first event of a topic waits until
        the hello is acknowledged. An event that is refused leaves no gap in the numbers.
        """
        known = self._topics.get(topic)
        if known is None or (known.given is not schema and known.given != schema):
            known = self._use(topic, schema)
        if type(time_ms) is not int or not 0 < time_ms < 1 << 63:
            raise MillraceError(f"topic {topic}: time_ms {time_ms!r} is no time in ms since the epoch")
        give_up_at: float | None = None
        options: dict[str, Any] = {} if partition is None else {"partition": partition}
        while True:
            try:
                with self._lock:
                    if self._closed:
                        raise MillraceError(f"topic {topic}: this producer is closed, start a new one")
                    sequence = known.outcomes.next_sequence
                    self._header["time"], self._header["sequence"] = time_ms, sequence
                    message = known.schema.encode(self._header, event)
                    self._producer.produce(topic, message, key, timestamp=time_ms, **options)
                    self._outcomes.sent(known.outcomes, time_ms)
                    return sequence
            except BufferError:
                give_up_at = give_up_at or time.monotonic() + self._timeout_s
                if time.monotonic() > give_up_at:
                    raise MillraceError(
                        f"topic {topic}: the queue is full and {self._where} took nothing for"
                        f" {self._timeout_s:g} s: is it running?"
                    ) from None
                self._producer.poll(_POLL_S)
            except KafkaException as error:
                raise MillraceError(f"topic {topic}: not sent to {self._where}: {text_of(error)}") from error

    def closed_through(self, time_ms: int) -> None:
        """Promise that no event before that time will follow; it is told with the next report."""
        with self._lock:
            self._promised = max(self._promised, time_ms)

    def flush(self) -> None:
        """Wait until every event has its outcome, and report it.

        Raises DeliveryFailed when events failed since the last flush, once the report is sent, and
        MillraceError when the report cannot be sent (it will be sent again with the next one).
        """
        self._settle()
        self._report()
        self._raise_failures()

    def close(self) -> None:
        """Flush, report that nothing will follow for ever, and end; raises what `flush` raises.

        When that report does not get through, closing again sends it again; a producer that never got it
        through keeps its windows unknown.
        """
        with self._lock:
            if self._ended:
                return
            self._closed = True
        self._stop.set()
        self._thread.join()
        self._settle()
        with self._lock:
            self._promised = FOR_EVER
        if self._topics:
            self._report()
        self._ended = True
        self._reports.close()
        self._registry.close()
        self._raise_failures()

    def delivered(self) -> list[Delivered]:
        """Per topic what is known by now; after `flush` or `close` that is everything sent."""
        with self._lock:
            return [
                Delivered(state.topic, list(state.acknowledged - state.failed), list(state.failed))
                for state in self._outcomes.topics.values()
            ]

    def __enter__(self) -> AuditedProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except MillraceError as second:  # the error that ended the block is the one to show
            log.warning("%s", second)

    # Before a topic's first event.

    def _use(self, topic: str, schema: str | Mapping[str, Any]) -> _Topic:
        """The topic with that schema in use; the first time it is checked and announced."""
        encoder = self._encoder(schema)
        with self._report_lock:
            if topic not in self._topics:
                self._reports.check_topics(topic)
                self._announce(topic)
            with self._lock:
                known = _Topic(self._outcomes.topic(topic), schema, encoder)
                self._topics[topic] = known
            return known

    def _encoder(self, given: str | Mapping[str, Any]) -> EventSchema:
        if isinstance(given, str):
            if given in self._named:
                return self._named[given]
            try:
                found = self._registry.latest(given)
            except UnknownSchema as error:
                url = self._registry.url
                raise MillraceError(
                    f"{error}: register it first, `millrace schemas apply DIR --registry {url}`"
                ) from error
            schema, schema_id = found.schema, found.schema_id
        else:
            subject = str(given.get("name", "")).rpartition(".")[2]
            schema, schema_id = given, self._registry.register(subject, given)
        if schema_id not in self._schemas:
            self._schemas[schema_id] = EventSchema(schema, schema_id)
        if isinstance(given, str):
            self._named[given] = self._schemas[schema_id]
        return self._schemas[schema_id]

    def _announce(self, topic: str) -> None:
        promised = self._clock_promise(NOTHING)
        hello = Hello(time=_now_ms(), topic=topic, closed_through=promised, **self._names)
        try:
            self._reports.publish([self._codec.encode(hello)])
        except MillraceError as error:
            raise MillraceError(f"topic {topic}: nothing was sent, because {error}") from error

    # Outcomes and reports.

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append(message)

    def _run(self) -> None:
        """In a thread: serve failures, notice when nothing is outstanding, report at every interval."""
        due = time.monotonic() + self._interval_s
        while not self._stop.is_set():
            self._producer.poll(_POLL_S)
            with self._lock:
                self._resolve()
            if time.monotonic() >= due and self._topics:
                try:
                    self._report()
                except Exception as error:  # whatever it is, the next interval tries again
                    log.warning("%s", error)
                due = time.monotonic() + self._interval_s

    def _resolve(self) -> None:
        """Under the lock, so that nothing is sent meanwhile: settle what has an outcome for certain."""
        now = time.monotonic()
        self._outcomes.cut(now)
        nothing_outstanding = len(self._producer) == 0
        while self._failures:
            message = self._failures.popleft()
            try:
                header = read_header(message.value() or b"")
            except NotAudited:
                continue
            self._outcomes.fail(message.topic() or "", header.time, header.sequence)
        self._outcomes.resolve(now if nothing_outstanding else now - self._timeout_s - EXPIRY_MARGIN_S)

    def _settle(self) -> None:
        """Wait until nothing is outstanding; bounded, because every delivery times out."""
        give_up_at = time.monotonic() + self._timeout_s + 2 * EXPIRY_MARGIN_S
        while self._producer.flush(1.0) and time.monotonic() < give_up_at:
            pass
        with self._lock:
            self._resolve()

    def _clock_promise(self, promised: int) -> int:
        if self._lateness_ms is None:
            return promised
        return max(promised, _now_ms() - self._lateness_ms)

    def _report(self) -> None:
        """Report the news, older reports that did not get through first; MillraceError when one does not."""
        with self._report_lock:
            with self._lock:
                self._resolve()
                promised = self._clock_promise(self._promised)
                closed_through = min(promised, self._outcomes.open_from)
                news = self._outcomes.take_news(RANGES_PER_REPORT)
            said = self._unsent[-1].closed_through if self._unsent else self._reported
            if not news and closed_through != said:
                news = [[]]
            for index, windows in enumerate(news):
                # A portion closes no window that one behind it still tells of.
                untold = [window.window for portion in news[index + 1 :] for window in portion]
                through = min(said, closed_through, *untold) if untold else closed_through
                report = Report(time=_now_ms(), number=self._number, closed_through=through,
                                windows=windows, **self._names)  # fmt: skip
                self._unsent.append(report)
                self._number += 1
            while self._unsent:
                self._reports.publish([self._codec.encode(self._unsent[0])])
                self._reported = self._unsent.popleft().closed_through

    def _raise_failures(self) -> None:
        failed = {state.topic: list(state.failed) for state in self._outcomes.topics.values() if state.failed}
        count = sum(last - first + 1 for ranges in failed.values() for first, last in ranges)
        if count > self._told_failures:
            new, self._told_failures = count - self._told_failures, count
            named = "; ".join(f"{topic} {in_words(ranges)}" for topic, ranges in failed.items())
            raise DeliveryFailed(
                f"{new} events were not acknowledged by {self._where} within {self._timeout_s:g} s, they may"
                f" be there or not: sequences {named} of instance {self.instance}",
                failed,
            )


def _settings(bootstrap: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's settings: the caller's, less what the guarantees rest on."""
    chosen = {_SAME_AS.get(key, key): value for key, value in config.items()}
    for key in (*_FIXED, "bootstrap.servers", "on_delivery"):
        if key in chosen:
            raise ConfigError(f"producer setting {key!r} cannot be changed: the audit rests on it")
    timeout = str(chosen.get("delivery.timeout.ms", DELIVERY_TIMEOUT_MS))
    if not timeout.isdecimal() or int(timeout) == 0:  # to librdkafka 0 is for ever: then nothing is certain
        raise ConfigError(f"producer setting delivery.timeout.ms is {timeout!r}: give a time in ms above 0")
    return {
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "log_level": 2,  # what goes wrong is raised; librdkafka would print it besides
        **chosen,
        "delivery.timeout.ms": int(timeout),
        **_FIXED,
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
