"""AuditedProducer: sends events and reports the outcome of every single event.

An event's audit header is in its value if the schema begins with one, and else in the record's headers.

It uses confluent-kafka with acks=all and idempotence, so an acknowledged event is in the log once. Before a
topic's first event it publishes a hello and waits for the acknowledgement. Then it publishes, every few
seconds and at flush and close, a numbered report of what was acknowledged and what failed. A success costs
nothing per event: librdkafka calls back for failures only, and all that was sent before a moment with nothing
outstanding has an outcome.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millrace.client.confluent import SECURITY_SETTINGS, connected, text_of
from millrace.errors import ConfigError, MillraceError
from millrace.process import HomeProcess, uninterrupted
from millrace.topics_file import policies_of_environment
from millrace.wire.cluster_id import WrongCluster
from millrace_audit.answer import iso
from millrace_audit.outcomes import Outcomes, TopicOutcomes
from millrace_audit.reports.counts import FIRST_EVENT_MS, MOST_AHEAD_MS, window_start
from millrace_audit.reports.event import MAX_NAME_BYTES, EventSchema, ValueSchema, has_header, read_header
from millrace_audit.reports.fingerprints import Fingerprint, fingerprint_of
from millrace_audit.reports.messages import (
    AUDIT_TOPIC,
    FOR_EVER,
    MOST_OPEN_WINDOWS,
    NOTHING,
    AuditCodec,
    Hello,
    Report,
    now_ms,
)
from millrace_audit.reports.outcome import Unreported, closable, portion, reported
from millrace_audit.reports.publish import EXPIRY_MARGIN_S, AuditPublisher
from millrace_audit.reports.ranges import Range, in_words, size
from millrace_audit.reports.record_header import HEADER_NAME, encode_header, topic_tag
from millrace_audit.reports.seals import new_key, seal_of
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_registry.directory import problem_of
from millrace_registry.subjects import Subjects, full_name

logger = logging.getLogger("millrace.producer")

DELIVERY_TIMEOUT_MS = 60_000
REPORT_INTERVAL_S = 10.0
ANY_PARTITION = -1
"""The key chooses the partition; without a key it is random."""
_POLL_S = 0.1
_NOT_QUEUED = (BufferError, KafkaException, TypeError, ValueError, OverflowError, NotImplementedError)
"""Errors of librdkafka's `produce`: the message is not in the queue."""
_FIXED = {"acks": "all", "enable.idempotence": True, "delivery.report.only.error": True}
_SAME_AS = {"request.required.acks": "acks", "message.timeout.ms": "delivery.timeout.ms"}


class NotSent(MillraceError):
    """The event was not sent. Sending it again cannot duplicate it."""


class DeliveryFailed(MillraceError):
    """Events were not acknowledged: they may be in the log or not; `failed` names them by topic."""

    def __init__(self, text: str, failed: Mapping[str, Sequence[Range]]) -> None:
        super().__init__(text)
        self.failed = failed


@dataclass(frozen=True, slots=True)
class Delivered:
    """Outcomes of one topic's events: sequence ranges of this instance, both ends included."""

    topic: str
    acknowledged: Sequence[Range]
    failed: Sequence[Range]


class _Encoders:
    """Encoders by schema. Each schema is looked up or registered once."""

    def __init__(self, registry: SchemaRegistryClient, subjects: Subjects) -> None:
        self._registry, self._subjects = registry, subjects
        self._cached: dict[int | str, EventSchema | ValueSchema] = {}  # by schema id, and by subject

    def encoder(
        self, topic: str, schema: str | Mapping[str, Any] | None, timeout_s: float
    ) -> EventSchema | ValueSchema:
        """Return the encoder for a parsed schema, or for the latest version of a subject.

        None stands for the topic's subject.
        """
        if isinstance(schema, Mapping):
            self._check(schema)
            subject = self._subjects.of(topic, full_name(schema))
            return self._of(schema, self._registry.register(subject, schema, timeout_s=timeout_s))
        subject = self._subjects.of(topic) if schema is None else schema
        if subject not in self._cached:
            try:
                latest = self._registry.latest(subject, timeout_s=timeout_s)
            except UnknownSchema as error:
                command = f"millrace schemas apply DIR --registry {self._registry.url}"
                raise MillraceError(f"{error}: register it first, `{command}`") from error
            self._cached[subject] = self._of(latest.schema, latest.schema_id)
        return self._cached[subject]

    def _of(self, schema: Mapping[str, Any], schema_id: int) -> EventSchema | ValueSchema:
        if schema_id not in self._cached:
            self._check(schema)
            kind = EventSchema if has_header(schema) else ValueSchema
            self._cached[schema_id] = kind(schema, schema_id)
        return self._cached[schema_id]

    @staticmethod
    def _check(schema: Mapping[str, Any]) -> None:
        """Raise MillraceError for a schema that `millrace schemas check` refuses."""
        name = str(schema.get("name", "")).rpartition(".")[2]
        if (problem := problem_of(schema, name)) is not None:
            raise MillraceError(f"schema {name or '?'} cannot be audited: {problem}")


class _Reports:
    """Sends the hellos and reports of one instance. A report that failed is sent again unchanged.

    Must be called by one thread at a time.
    """

    def __init__(self, publisher: AuditPublisher, codec: AuditCodec, names: Mapping[str, Any]) -> None:
        self.publisher = publisher
        self._codec = codec
        self._names = names
        self._number = 0
        self._unsent: deque[Report] = deque()
        self._closed_through = NOTHING  # the time up to which the last hello or report closes
        self._key = new_key()  # for the next report; the last hello or report has its seal

    def hello(self, topic: str, closed_through: int | None, give_up_at: float) -> None:
        """Announce a topic. If `closed_through` is None, the hello closes no window."""
        self._send_reports(give_up_at)  # a hello sent before them would break the chain of seals
        if closed_through is not None:
            self._closed_through = closed_through
        promised = NOTHING if closed_through is None else closed_through
        seal = seal_of(self._key)
        hello = Hello(time=now_ms(), topic=topic, closed_through=promised, seal=seal, **self._names)
        message = self._codec.encode(hello, timeout_s=give_up_at - time.monotonic())
        self.publisher.publish([message], give_up_at=give_up_at)

    def report(self, news: Unreported, closed_through: int) -> None:
        """Send older reports that failed, then `news`, one report for each portion.

        The first report follows the hello even without news: the auditor does not wait long for an instance
        that only said hello.
        """
        while not self._number or news or closed_through != self._closed_through:
            portioned, news = portion(news)
            self._closed_through = (
                min(self._closed_through, closable(closed_through, news)) if news else closed_through
            )
            key, self._key = self._key, new_key()
            report = Report(
                time=now_ms(),
                number=self._number,
                key=key,
                seal=seal_of(self._key),
                closed_through=self._closed_through,
                windows=reported(portioned),
                **self._names,
            )
            self._unsent.append(report)
            self._number += 1
        self._send_reports()

    def _send_reports(self, give_up_at: float = math.inf) -> None:
        while self._unsent:
            self.publisher.publish([self._codec.encode(self._unsent[0])], give_up_at=give_up_at)
            self._unsent.popleft()


class _AsItIs:
    """Stands for the schema of values that are sent as they are."""


_AS_IT_IS = _AsItIs()
_SchemaOf = str | Mapping[str, Any] | None | _AsItIs
_Event = Mapping[str, Any] | bytes | None
Headers = Sequence[tuple[str, str | bytes | None]]


@dataclass(frozen=True, slots=True)
class _Topic:
    """An announced topic with one schema. Two threads may send to a topic with different schemas."""

    outcomes: TopicOutcomes
    schema: _SchemaOf
    """The schema as it was given to `send`."""
    encoder: EventSchema | ValueSchema | None
    """None for values that are sent as they are."""
    fingerprint: Fingerprint
    tag: int


class _Failed(NamedTuple):
    """A message that was handed over and not acknowledged."""

    topic: str
    time: int
    sequence: int
    fingerprint: int


class AuditedProducer:
    """One instance of a service on one server, producing to one cluster. Thread-safe; a context manager.

    `config` goes to librdkafka; without security settings in `config`, the process's client file applies.
    `lateness_ms` promises that no event is older when `send` is called. Without `lateness_ms` only
    `closed_through` and `close` close windows. `subjects` are values as for `millrace load --subject`;
    without them the variable MILLRACE_SUBJECTS decides how subjects are named. The file that
    MILLRACE_TOPICS_FILE names decides the kind of fingerprint for each topic. Raise MillraceError with a
    one-line text for an unknown topic, an event that does not fit its schema, or if no broker can be reached.
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
        subjects: Sequence[str] | None = None,
    ) -> None:
        for name in (server, service):
            if len(name.encode()) > MAX_NAME_BYTES:
                raise ConfigError(f"the name {name[:20]}... has more than {MAX_NAME_BYTES} bytes: shorten it")
        self.instance = secrets.randbits(63)
        self.server = server
        who = {"server": server, "service": service, "instance": self.instance}
        self._header: dict[str, Any] = {"time": 0, **who, "sequence": 0}
        self._cluster = cluster
        self._where = f"cluster {cluster} at {bootstrap}"
        self._registry = SchemaRegistryClient(registry_url)
        self._encoders = _Encoders(
            self._registry, Subjects.of_environment() if subjects is None else Subjects.parse(subjects)
        )
        settings = _settings(bootstrap, config or {})
        self._timeout_s = settings["delivery.timeout.ms"] / 1000
        self._home = HomeProcess("AuditedProducer")
        self._fatal = ""  # librdkafka's error after which it never sends anything again
        self._failures: deque[_Failed] = deque()
        # Called from poll, in any thread: appending takes no lock, so there is no deadlock.
        self._producer = connected(Producer, {**settings, "on_delivery": self._on_failure})
        secured = {key: value for key, value in settings.items() if key.startswith(SECURITY_SETTINGS)}
        publisher = AuditPublisher(bootstrap, AUDIT_TOPIC, timeout_s=self._timeout_s, settings=secured)
        self._reports = _Reports(publisher, AuditCodec(self._registry), {"cluster": cluster, **who})
        self._lock = threading.RLock()  # the bookkeeping, and the order of events of a topic
        self._is_held_here: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]
        self._report_lock = threading.Lock()  # one report at a time; taken before _lock, never after
        self._outcomes = Outcomes()
        self._policies = policies_of_environment()
        self._topics: dict[str, _Topic] = {}
        self._lateness_ms = lateness_ms
        self._promised = NOTHING
        self._advised = False
        self._waiting: dict[object, int] = {}  # times of the events that wait in `send`, not yet handed over
        self._raised = 0  # number of failed events that were raised
        self._closed = False  # nothing is sent any more
        self._ended = False  # and the last report is there
        self._stop = threading.Event()
        self._interval_s = report_interval_s
        self._thread = threading.Thread(target=self._run, name="millrace-reports", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        schema: str | Mapping[str, Any] | None,
        event: Mapping[str, Any],
        *,
        time_ms: int,
        key: bytes | str | None = None,
        partition: int = ANY_PARTITION,
        timeout_s: float = math.inf,
    ) -> int:
        """Send one event; return its sequence. Without key and partition the partition is random.

        `schema` is a parsed Avro schema, which is registered under the topic's subject, or a subject whose
        latest version is looked up once; None means the topic's subject. `event` has its fields without the
        header. `time_ms` is the event's time, from 2000 on and at most a day ahead of this machine's clock:
        other times have no hour in the warehouse. A topic's first event waits until the hello is
        acknowledged, and every event waits for room in the queue. `timeout_s` bounds both together; without
        it the registry's timeout and `delivery.timeout.ms` do. Raise NotSent when that time is over. Raise
        WrongCluster, at the first event, when the brokers belong to another cluster. After any of these
        errors nothing was sent, and a refused event leaves no gap in the numbers. If a signal handler raises
        meanwhile (KeyboardInterrupt, a time limit), the event may have been sent or not; then its number is
        used, and it is reported as failed or acknowledged.

        In a forked child of the process that created the producer, `send` always raises: the threads that
        send and report are the parent's. A signal handler must not call the producer: it may have interrupted
        `send`. Then `send`, `flush`, `close` and `closed_through` raise. Let the handler raise or set a flag.
        """
        return self._send(topic, schema, event, time_ms, key, partition, (), timeout_s)

    def send_value(
        self,
        topic: str,
        value: bytes | None,
        *,
        time_ms: int,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int = ANY_PARTITION,
        timeout_s: float = math.inf,
    ) -> int:
        """Send one value as it is, from any serializer, with an audit header among its headers.

        Return its sequence. None is a tombstone. `headers` are the record's other headers; an audit header
        among them, such as that of a message that was read before, is removed. Everything else is as for
        `send`. The audit proves the value, and neither key nor headers.
        """
        return self._send(topic, _AS_IT_IS, value, time_ms, key, partition, headers, timeout_s)

    def _send(
        self,
        topic: str,
        schema: _SchemaOf,
        event: _Event,
        time_ms: int,
        key: bytes | str | None,
        partition: int,
        headers: Headers,
        timeout_s: float,
    ) -> int:
        if not self._home.is_here or self._is_held_here():
            self._check_caller()
        announced = self._topics.get(topic)
        if announced is not None and (announced.schema is schema or announced.schema == schema):
            try:  # not suppress(): it costs a microsecond for every event
                return self._hand_over(announced, event, time_ms, key, partition, headers)
            except BufferError:
                pass
        else:
            announced = None
        give_up_at = time.monotonic() + timeout_s
        _check_time(topic, time_ms)
        with self._held_open(time_ms):
            announced = announced or self._use(topic, schema, give_up_at)
            full_since = time.monotonic()
            while True:
                try:
                    return self._hand_over(announced, event, time_ms, key, partition, headers)
                except BufferError:
                    self._wait_for_room(topic, full_since, give_up_at)

    def _check_caller(self) -> None:
        """Raise MillraceError in a forked child, or in a signal handler that interrupted this producer."""
        self._home.check()  # first: the lock may have been copied while another thread held it
        if self._is_held_here():
            raise MillraceError(
                "a signal handler called this AuditedProducer in the middle of `send`: let the handler raise"
                " an exception or set a flag, and call the producer after that"
            )

    @contextmanager
    def _held_open(self, time_ms: int) -> Iterator[None]:
        """Keep the clock from closing an event's window while the event waits in `send`."""
        event = object()
        try:  # around everything: a signal handler may raise at any step
            with self._lock:
                self._waiting[event] = time_ms
            yield
        finally:
            with self._lock:
                self._waiting.pop(event, None)

    def _hand_over(
        self,
        announced: _Topic,
        event: Any,
        time_ms: int,
        key: bytes | str | None,
        partition: int,
        headers: Headers,
    ) -> int:
        """Give the event to librdkafka; return the event's sequence.

        Raise BufferError when the queue is full.
        """
        state, encoder = announced.outcomes, announced.encoder
        try:
            with self._lock:
                self._check_open(state.topic)
                if self._fatal:
                    raise MillraceError(
                        f"topic {state.topic}: not sent to {self._where}, and this producer can send nothing"
                        f" any more: {self._fatal}; close it and start a new one"
                    )
                if not state.run_from <= time_ms < state.run_until:
                    most_ms = _check_time(state.topic, time_ms)
                    self._check_room(state.topic, time_ms)
                    self._outcomes.begin_run(state, time_ms, most_ms)
                sequence = state.next_sequence
                failed, marked = None, None
                if isinstance(encoder, EventSchema):
                    header = self._header
                    header["time"], header["sequence"] = time_ms, sequence
                    value = encoder.encode(header, event)
                    digest = announced.fingerprint(value)
                else:
                    value = event if encoder is None else encoder.encode(event)
                    digest = announced.fingerprint(value or b"", sequence)
                    own = encode_header(announced.tag, self.instance, sequence, time_ms)
                    marked = [(HEADER_NAME, own), *(one for one in headers if one[0] != HEADER_NAME)]
                    # librdkafka does not return the headers of a message that failed.
                    failed = partial(self._on_failure_of, _Failed(state.topic, time_ms, sequence, digest))
                state.next_sequence, state.run_fingerprint = sequence + 1, state.run_fingerprint + digest
                try:
                    # By position: names would cost more than a fast fingerprint.
                    self._producer.produce(state.topic, value, key, partition, failed, None, time_ms, marked)
                except _NOT_QUEUED:
                    state.next_sequence, state.run_fingerprint = sequence, state.run_fingerprint - digest
                    raise
                except BaseException:  # raised by a signal handler, before the call or after it
                    self._failures.append(_Failed(state.topic, time_ms, sequence, digest))
                    raise
                return sequence
        except KafkaException as error:
            raise MillraceError(
                f"topic {state.topic}: not sent to {self._where}: {text_of(error)}"
            ) from error
        except TypeError:
            _check_time(state.topic, time_ms)  # its error explains a wrong type of time
            raise

    def _check_open(self, topic: str) -> None:
        if self._closed:
            raise MillraceError(f"topic {topic}: this producer is closed, start a new one")

    def _check_room(self, topic: str, time_ms: int) -> None:
        """Raise MillraceError when the event would open more than MOST_OPEN_WINDOWS. Under the lock."""
        held = self._outcomes.open
        if len(held) >= MOST_OPEN_WINDOWS and (topic, window_start(time_ms)) not in held:
            raise MillraceError(
                f"topic {topic}: nothing was sent, because this producer holds {len(held)} windows of ten"
                " minutes open, and the audit takes no more: call closed_through() with the time that is"
                " over, then flush(); or close this producer and start a new one"
            )

    def _wait_for_room(self, topic: str, full_since: float, give_up_at: float) -> None:
        """Wait a moment for room in the queue, which is full since `full_since`.

        Raise NotSent when the time is over.
        """
        now = time.monotonic()
        if now > min(give_up_at, full_since + self._timeout_s):
            raise NotSent(
                f"topic {topic}: nothing was sent, because the queue is full and {self._where} took nothing"
                f" for {now - full_since:.1f} s: is it running?"
            ) from None
        wait_s = min(_POLL_S, max(give_up_at - now, 0))
        uninterrupted(partial(self._serve, self._producer.poll, wait_s))  # callbacks note failures

    def closed_through(self, time_ms: int) -> None:
        """Promise that no older event will follow. The next report closes the windows before the time."""
        self._check_caller()
        with self._lock:
            self._promised = max(self._promised, window_start(time_ms))

    def flush(self) -> None:
        """Wait until every event has its outcome, and report it.

        Raise DeliveryFailed, once the report is sent, when events failed since the last flush. Raise
        MillraceError when the report cannot be sent; it is sent again before the next report.
        """
        self._check_caller()
        uninterrupted(self._settle_and_report)
        self._raise_failures()

    def close(self) -> None:
        """Flush, report that no event will ever follow, and end. Raise the errors of `flush`.

        When that report does not get through, call `close` again to resend it; without the report the
        producer's windows stay unknown. In a forked child it does nothing: the parent closes.
        """
        if not self._home.is_here:
            return
        self._check_caller()
        with self._lock:
            if self._ended:
                return
            self._closed = True
        self._stop.set()
        self._thread.join()
        uninterrupted(partial(self._settle_and_report, FOR_EVER))
        self._ended = True
        self._reports.publisher.close()
        self._registry.close()
        self._raise_failures()

    def delivered(self) -> list[Delivered]:
        """Return the known outcomes of each topic's events; after `flush` or `close`, of all sent events."""
        with self._lock:
            return [
                Delivered(state.topic, list(state.acknowledged - state.failed), list(state.failed))
                for state in self._outcomes.topics.values()
            ]

    def __enter__(self) -> AuditedProducer:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except MillraceError as second:  # the error that ended the block is raised
            logger.warning("%s", second)

    # Before a topic's first event.

    def _use(self, topic: str, schema: _SchemaOf, give_up_at: float) -> _Topic:
        """Return the topic with the schema. At first use the topic is checked and announced."""
        self._check_open(topic)
        try:
            encoder = None
            if not isinstance(schema, _AsItIs):
                # An interrupted request would leave a lock of the HTTP client held: `close` would hang.
                left_s = give_up_at - time.monotonic()
                encoder = uninterrupted(partial(self._encoders.encoder, topic, schema, left_s))
            if topic not in self._topics:
                uninterrupted(partial(self._begin, topic, schema, encoder, give_up_at))
            return self._note(topic, schema, encoder)
        except WrongCluster:
            raise
        except MillraceError as error:
            raise NotSent(f"topic {topic}: nothing was sent, because {error}") from error

    def _begin(
        self, topic: str, schema: _SchemaOf, encoder: EventSchema | ValueSchema | None, give_up_at: float
    ) -> None:
        with self._reporting(give_up_at):
            self._check_open(topic)  # no hello may follow the last report
            if topic not in self._topics:
                if not self._topics:
                    self._reports.publisher.check_cluster(self._cluster, give_up_at=give_up_at)
                self._reports.publisher.check_topics(topic, give_up_at=give_up_at)
                self._announce(topic, give_up_at)
                self._note(topic, schema, encoder)

    def _note(self, topic: str, schema: _SchemaOf, encoder: EventSchema | ValueSchema | None) -> _Topic:
        with self._lock:
            digest = fingerprint_of(topic, self._policies)
            announced = _Topic(self._outcomes.topic(topic), schema, encoder, digest, topic_tag(topic))
            self._topics[topic] = announced
        return announced

    @contextmanager
    def _reporting(self, give_up_at: float) -> Iterator[None]:
        """Hold the report lock. A report that waits for unreachable brokers holds the lock, too."""
        left_s = min(max(give_up_at - time.monotonic(), 0), threading.TIMEOUT_MAX)
        if not self._report_lock.acquire(timeout=left_s):
            raise MillraceError(f"a report waits for {self._where}: check that its brokers run")
        try:
            yield
        finally:
            self._report_lock.release()

    def _announce(self, topic: str, give_up_at: float) -> None:
        promised = None
        if not self._topics:  # later, other topics may have events that are not reported yet
            with self._lock:
                waiting = map(window_start, self._waiting.values())
                promised = min(self._clock_promise(self._promised), *waiting)
        self._reports.hello(topic, promised, give_up_at)

    # Outcomes and reports.

    def _serve(self, call: Callable[[float], int], seconds: float) -> int:
        """Poll or flush, and return the call's result.

        Note librdkafka's fatal error, which is raised only once.
        """
        try:
            return call(seconds)
        except KafkaException as error:
            self._fatal = text_of(error)
            logger.error("instance %d can send nothing any more: %s", self.instance, self._fatal)
            return 1

    def _on_failure(self, error: KafkaError | None, message: Message) -> None:
        """Note a failed message with the header in its value."""
        if error is not None:
            topic, value = message.topic() or "", message.value() or b""
            header = read_header(value)
            digest = fingerprint_of(topic, self._policies)(value)
            self._failures.append(_Failed(topic, header.time, header.sequence, digest))

    def _on_failure_of(self, failed: _Failed, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(failed)

    def _run(self) -> None:
        """Serve failures, notice when nothing is outstanding, report at every interval. Runs in a thread."""
        due = time.monotonic() + self._interval_s
        while not self._stop.is_set():
            try:
                self._serve(self._producer.poll, _POLL_S)
                with self._lock:
                    self._resolve()
                if time.monotonic() >= due and self._topics:
                    due = time.monotonic() + self._interval_s
                    self._advise()
                    self._report()
            except MillraceError as error:  # the next interval tries again
                logger.warning("%s", error)
            except Exception:  # a bug: without this thread no event would be reported
                logger.exception("the reports of instance %d failed, and are tried again", self.instance)
                self._stop.wait(_POLL_S)

    def _advise(self) -> None:
        """Warn once if the application closes no windows: all windows then stay unknown."""
        if self._lateness_ms is None and self._promised == NOTHING and not self._advised:
            logger.warning(
                "instance %d (%s on %s) has closed no time: every window of %s stays unknown until it does;"
                " call closed_through(), or give lateness_ms (docs/audit.md)",
                *(self.instance, self._header["service"], self.server, ", ".join(self._topics)),
            )
            self._advised = True

    def _resolve(self) -> None:
        """Settle all events with a certain outcome.

        The caller holds the lock, so nothing is sent meanwhile.
        """
        now = time.monotonic()
        self._outcomes.cut(now)
        nothing_outstanding = len(self._producer) == 0
        while self._failures:
            self._outcomes.fail(*self._failures.popleft())
        self._outcomes.resolve(now if nothing_outstanding else now - self._timeout_s - EXPIRY_MARGIN_S)

    def _settle_and_report(self, promised: int = NOTHING) -> None:
        """Wait until nothing is outstanding, and report. The wait ends, because every delivery times out."""
        give_up_at = time.monotonic() + self._timeout_s + 2 * EXPIRY_MARGIN_S
        while self._serve(self._producer.flush, 1.0) and time.monotonic() < give_up_at:
            pass
        with self._lock:
            self._promised = max(self._promised, promised)
        self._report()

    def _clock_promise(self, promised: int) -> int:
        """Return the start of the window that the clock leaves open, or `promised` if that is later. Under
        the lock.

        Only whole windows are closed. The next event in a window opens the window from its start again, so a
        promise within the window would have to be taken back.
        """
        if self._lateness_ms is None:
            return promised
        return max(promised, window_start(min((now_ms() - self._lateness_ms, *self._waiting.values()))))

    def _report(self) -> None:
        """Send older reports that failed, then the new outcomes. Before the first hello there are none.

        Raise MillraceError when a report fails again.
        """
        with self._report_lock:
            if not self._topics:
                return
            with self._lock:
                self._resolve()
                promised = self._clock_promise(self._promised)
                closed_through = min(promised, self._outcomes.open_from)
                news = self._outcomes.take_news()
                self._outcomes.close(closed_through)
            self._reports.report(news, closed_through)

    def _raise_failures(self) -> None:
        failed = {outcome.topic: outcome.failed for outcome in self.delivered() if outcome.failed}
        count = sum(map(size, failed.values()))
        if count > self._raised:
            new, self._raised = count - self._raised, count
            named = "; ".join(f"{topic} {in_words(ranges)}" for topic, ranges in failed.items())
            raise DeliveryFailed(
                f"{new} events were not acknowledged by {self._where} within {self._timeout_s:g} s, they may"
                f" be there or not: sequences {named} of instance {self.instance}",
                failed,
            )


def _check_time(topic: str, time_ms: int) -> int:
    """Return the latest allowed event time.

    Raise MillraceError for a later, too early or invalid `time_ms`.
    """
    most_ms = now_ms() + MOST_AHEAD_MS
    if type(time_ms) is not int or not FIRST_EVENT_MS <= time_ms <= most_ms:
        raise MillraceError(
            f"topic {topic}: time_ms {time_ms!r} is no time in ms since the epoch between"
            f" {iso(FIRST_EVENT_MS)} and {iso(most_ms)}, a day ahead of the clock here: nothing was sent"
        )
    return most_ms


def _settings(bootstrap: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return librdkafka's settings: the caller's and the producer's own.

    Raise ConfigError if they would break the audit.
    """
    chosen = {_SAME_AS.get(key, key): value for key, value in config.items()}
    for key in (*_FIXED, "bootstrap.servers", "on_delivery"):
        if key in chosen:
            raise ConfigError(f"producer setting {key!r} cannot be changed: the audit rests on it")
    timeout = str(chosen.get("delivery.timeout.ms", DELIVERY_TIMEOUT_MS))
    if not timeout.isdecimal() or int(timeout) == 0:  # 0 is no limit to librdkafka: nothing is certain
        raise ConfigError(f"producer setting delivery.timeout.ms is {timeout!r}: give a time in ms above 0")
    return {
        "bootstrap.servers": bootstrap,
        "linger.ms": 5,
        "allow.auto.create.topics": False,  # a misspelt topic is refused, not created
        "log_level": 2,  # what goes wrong is raised; librdkafka would print it besides
        **chosen,
        "delivery.timeout.ms": int(timeout),
        **_FIXED,
    }
