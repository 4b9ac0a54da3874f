"""Strict reading of the events that services give the agent: each event is encoded, or refused with its field
and the reason.

An event in JSON is `{"time": ms, "key": text or null, "event": {fields without the header}}`; a request has
one or a list of them, a line of a file has one. In Avro a request is one value of `batch_schema`. It uses the
registry and the list of topics, but neither HTTP nor the disk.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Protocol, TypeVar

import fastavro

from millrace.config import OFFLINE_AUDIT_TOPIC
from millrace.errors import BrokerError, MillraceError
from millrace.records.messages import read_varint
from millrace.topic_names import check_topic_name
from millrace_agent.spool import Event
from millrace_audit.answer import iso
from millrace_audit.reports.counts import FIRST_EVENT_MS, MOST_AHEAD_MS
from millrace_audit.reports.event import (
    HEADER_FIELD,
    PREFIX_BYTES,
    EventHeader,
    EventSchema,
    ValueSchema,
    has_header,
)
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, now_ms
from millrace_registry.client import RegistryUnavailable, SchemaRegistryClient, UnknownSchema
from millrace_registry.directory import problem_of
from millrace_registry.subjects import Subjects

T = TypeVar("T")
MAX_EVENT_BYTES = 1_000_000
"""Largest key and body of an event: by default, a topic of Apache Kafka takes messages of up to 1 MiB."""
MAX_BATCH = 10_000
"""Most events in a request."""
MAX_BATCH_BYTES = 8 << 20
"""Most bytes of one request's events after encoding. Omitted fields may have large defaults."""
SUBJECT_AGE_S = 60.0
"""Time for which the latest schema of a subject is used without asking the registry again."""
AWAY_S = 10.0
"""Time for which brokers that did not answer are not asked again. Events would wait for them."""
_REGISTRY_WAIT_S = 2.0
TOO_DEEP = "it is no JSON: it is nested too deeply"
_FIELDS = ("time", "key", "event")
_AUDIT_TOPICS = (AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE_AUDIT_TOPIC)
_NO_HEADER: Mapping[str, Any] = EventHeader(0, "", "", 0, 0)._asdict()
_NO_HEADER_BYTES = len(EventHeader._fields)
"""Avro writes each of these zeros and empty strings in one byte."""


class Refused(MillraceError):
    """The events are wrong: the same events will be refused again."""


class Unknown(Refused):
    """The topic, subject or schema does not exist."""


class Unavailable(MillraceError):
    """The registry or the brokers do not answer. The same events may be accepted later."""


class Topics(Protocol):
    """The topics of the brokers."""

    def check(self, topic: str) -> None:
        """Raise Unknown when the topic does not exist. Raise Unavailable when no broker answers."""


class Notes(Protocol):
    """Topics and schemas that were seen before, also before a restart."""

    def topics(self) -> set[str]: ...
    def note_topic(self, topic: str) -> None: ...
    def schemas(self) -> dict[str, tuple[int, Any]]: ...
    def note_schema(self, name: str, schema_id: int, schema: Any) -> None: ...


@dataclass(slots=True)
class _Schema:
    """A schema and its encoder."""

    schema_id: int
    encoder: EventSchema | ValueSchema
    body: dict[str, Any]
    """The schema without the header, if it begins with one."""
    checked_at: float = -math.inf
    avro_problem: str | None = None
    item: Any = field(default=None)
    """Parsed schema of an event in a request in Avro."""


class Intake:
    """A reader of events for the spool. Thread-safe."""

    def __init__(
        self,
        registry: SchemaRegistryClient,
        topics: Topics,
        notes: Notes,
        subjects: Subjects,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry, self._topics, self._notes, self._clock = registry, topics, notes, clock
        self._subjects = subjects
        self._lock = threading.Lock()  # one request to the registry or the brokers at a time
        self._present = notes.topics()
        self._unanswered: tuple[str, float] | None = None  # why brokers are not asked, and until when
        self._schemas = {name: _made(*known) for name, known in notes.schemas().items()}

    def from_json(self, topic: str, body: bytes) -> list[Event]:
        """Return the events of a request.

        Raise Refused, with the first wrong event, when any event is wrong: then no event is accepted.
        """
        return read_each(listed(parse_json(body, _finite)), partial(_event, topic, self._latest(topic)))

    def of_lines(self, topic: str) -> Callable[[bytes], list[Event]]:
        """Return a function that reads a line of a file, as a list of one event. It raises Refused for a
        wrong line.

        Raise MillraceError unless events of the topic can be encoded.
        """
        read = partial(_event, topic, self._latest(topic))
        return lambda line: read_each([parse_json(line, _finite)], read)

    def from_avro(self, topic: str, schema_id: int, body: bytes) -> list[Event]:
        """Return the events of a request in Avro, which are written with the registry's schema of that id."""
        schema = self._by_id(topic, schema_id)
        if schema.avro_problem is not None:
            raise Refused(f"schema {schema_id} {schema.avro_problem}: send JSON")
        source = BytesIO(body)
        try:
            given = _read_array(source, body, schema.item)
        except Refused:
            raise
        except Exception:  # fastavro raises a dozen types of errors for bytes that are no Avro
            raise Refused(
                f"the body is no Avro array of events of schema {schema_id} at byte {source.tell()}:"
                f" GET /v1/topics/{topic}/schema?schema_id={schema_id} has its schema"
            ) from None
        if rest := len(body) - source.tell():
            raise Refused(f"{rest} bytes follow the Avro array: send one array in a body")
        return read_each(given, partial(_event, topic, schema))

    def batch_schema(self, topic: str, schema_id: int | None = None) -> tuple[int, Any]:
        """Return an event schema's id, by default the latest one's, and the schema of a request in Avro."""
        schema = self._latest(topic) if schema_id is None else self._by_id(topic, schema_id)
        return schema.schema_id, _batch_of(schema.body)

    # Topics and schemas of the brokers and the registry.

    def check_topic(self, topic: str) -> None:
        """Raise Refused for a topic that takes no events. Raise Unavailable when no broker answers."""
        if topic in self._present:
            return
        try:
            check_topic_name(topic)
        except BrokerError as error:
            raise Refused(str(error)) from None
        if topic in _AUDIT_TOPICS:
            raise Refused(f"topic {topic} belongs to the audit: send events to a topic of your own")
        with self._lock:
            if self._unanswered is not None and self._clock() < self._unanswered[1]:
                raise Unavailable(self._unanswered[0])
            try:
                self._topics.check(topic)
            except Unavailable as error:
                self._unanswered = str(error), self._clock() + AWAY_S
                raise
            self._notes.note_topic(topic)
            self._present.add(topic)

    def _latest(self, topic: str) -> _Schema:
        self.check_topic(topic)
        subject = self._subjects.of(topic)
        known = self._schemas.get(subject)
        if known is not None and self._clock() - known.checked_at < SUBJECT_AGE_S:
            return known
        with self._lock:
            known = self._schemas.get(subject)
            if known is not None and self._clock() - known.checked_at < SUBJECT_AGE_S:
                return known
            try:
                latest = self._registry.latest(subject, timeout_s=_REGISTRY_WAIT_S)
            except UnknownSchema as error:
                raise Unknown(
                    f"{error}: register it with `millrace schemas apply`, or start the agent with --subject"
                    f" {topic}=SUBJECT"
                ) from None
            except RegistryUnavailable as error:
                if known is None:
                    raise Unavailable(str(error)) from None
                known.checked_at = self._clock()
                return known
            if known is None or known.schema_id != latest.schema_id:
                known = self._note(subject, latest.schema_id, latest.schema)
            known.checked_at = self._clock()
            return known

    def _by_id(self, topic: str, schema_id: int) -> _Schema:
        self.check_topic(topic)
        name = f"id {schema_id}"  # cannot be a subject: no topic's name has a space
        if (known := self._schemas.get(name)) is not None:
            return known
        with self._lock:
            try:
                return self._note(name, schema_id, self._registry.schema(schema_id))
            except UnknownSchema as error:
                raise Unknown(str(error)) from None
            except RegistryUnavailable as error:
                raise Unavailable(str(error)) from None

    def _note(self, name: str, schema_id: int, schema: Any) -> _Schema:
        record = str(schema.get("name", "")).rpartition(".")[2] if isinstance(schema, Mapping) else ""
        problem = problem_of(schema, record) if record else "is not a record"
        if problem is not None:
            raise Refused(f"schema {record or schema_id} cannot be audited: {problem}")
        made = _made(schema_id, schema)
        self._notes.note_schema(name, schema_id, schema)
        self._schemas[name] = made
        return made


def _made(schema_id: int, schema: Any) -> _Schema:
    if has_header(schema):
        encoder: EventSchema | ValueSchema = EventSchema(schema, schema_id)
        body = {**schema, "fields": schema["fields"][1:]}
    else:
        encoder, body = ValueSchema(schema, schema_id), schema
    made = _Schema(schema_id, encoder, body)
    made.avro_problem = _unreadable(body, ())
    if made.avro_problem is None:
        try:
            made.item = fastavro.parse_schema(_batch_of(body)["items"])
        except Exception as error:  # another field refers to a type that the header defines
            made.avro_problem = f"cannot be read without its header ({_one_line(error)})"
    return made


def _batch_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a request in Avro: an array of events."""
    fields = [
        {"name": "time", "type": "long"},
        {"name": "key", "type": ["null", "bytes"]},
        {"name": "event", "type": dict(body)},
    ]
    item = {"type": "record", "name": "AgentEvent", "namespace": "millrace.agent", "fields": fields}
    return {"type": "array", "items": item}


def _check_number(count: int, kind: str = "event") -> None:
    if count > MAX_BATCH:
        raise Refused(f"{count} {kind}s in one request: send at most {MAX_BATCH}")


def _read_array(source: BytesIO, body: bytes, item: Any) -> list[Any]:
    """Return the events of an Avro array, by blocks.

    If there are too many events, none is read: an event may take a few bytes only.
    """
    given: list[Any] = []
    while True:
        count, at = read_varint(body, source.tell())
        if count < 0:  # the size of the block follows, for readers that skip it
            count, at = -count, read_varint(body, at)[1]
        source.seek(at)
        if not count:
            return given
        _check_number(len(given) + count)
        given += (fastavro.schemaless_reader(source, item, None) for _ in range(count))


def listed(given: Any) -> list[Any]:
    """Return the list of a request, which may also have one item without a list."""
    return given if isinstance(given, list) else [given]


def read_each(given: Sequence[T], read: Callable[[T, int], Event], kind: str = "event") -> list[Event]:
    """Return the event of each item of a request; `read` also gets the latest allowed time.

    Raise Refused, with the first wrong item, when any item is wrong. The errors call an item a `kind`.
    """
    if not given:
        raise Refused(f"a request without {kind}s: send at least one")
    _check_number(len(given), kind)
    latest_ms = now_ms() + MOST_AHEAD_MS
    events: list[Event] = []
    size = 0
    for number, one in enumerate(given):
        try:
            events.append(read(one, latest_ms))
            if (size := size + events[-1].size) > MAX_BATCH_BYTES:
                raise Refused(
                    f"the {kind}s up to here have more than {MAX_BATCH_BYTES} bytes: send fewer at once"
                )
        except MillraceError as error:
            where = f"{kind} {number}: " if len(given) > 1 else ""
            raise Refused(f"{where}{_one_line(error)}") from None
        except RecursionError:  # Encoding needs a few more stack frames than parsing.
            raise Refused(TOO_DEEP) from None
    return events


def time_and_key(given: Any, fields: Sequence[str], latest_ms: int) -> tuple[int, bytes | None]:
    """Return time and key of an item. Raise Refused if the item is no object or has other fields."""
    if not isinstance(given, dict):
        raise Refused(f"it is no object {{{', '.join(fields)}}}")
    if unknown := given.keys() - set(fields):
        raise Refused(f"{min(unknown)}: no such field, the fields are {', '.join(fields)}")
    time_ms, key = given.get("time"), given.get("key")
    if type(time_ms) is not int or not FIRST_EVENT_MS <= time_ms <= latest_ms:
        raise Refused(
            f"time: {json.dumps(time_ms)[:40]} is no time in ms since the epoch between"
            f" {iso(FIRST_EVENT_MS)} and {iso(latest_ms)}, a day ahead of the clock here"
        )
    if key is not None and not isinstance(key, str | bytes):
        raise Refused("key: give a text or null")
    try:
        return time_ms, key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError:
        raise Refused("key: it has half of a surrogate pair: give a text that UTF-8 can encode") from None


def check_size(field: str, body: bytes, key: bytes | None) -> None:
    """Raise Refused when a body from this field and its key are too large for a message."""
    if len(body) + len(key or b"") > MAX_EVENT_BYTES:
        raise Refused(
            f"{field}: {len(body)} bytes with a key of {len(key or b'')}, at most {MAX_EVENT_BYTES}"
        )


def _event(topic: str, schema: _Schema, given: Any, latest_ms: int) -> Event:
    time_ms, key = time_and_key(given, _FIELDS, latest_ms)
    fields = given.get("event")
    if not isinstance(fields, dict):
        raise Refused("event: give an object with the fields of the schema")
    body = _body(schema.encoder, fields)
    check_size("event", body, key)
    if isinstance(schema.encoder, EventSchema):
        return Event(topic, schema.schema_id, time_ms, key, body)
    return Event.of_value(topic, time_ms, key, body)


def _body(encoder: EventSchema | ValueSchema, fields: Mapping[str, Any]) -> bytes:
    """Return the bytes of an event for the spool: the whole value, or all behind the header in it."""
    if isinstance(encoder, ValueSchema):
        return encoder.encode(fields)
    if HEADER_FIELD in fields:
        raise Refused(f"event: leave {HEADER_FIELD} out, the agent writes it")
    return encoder.encode(_NO_HEADER, fields)[PREFIX_BYTES + _NO_HEADER_BYTES :]


def _finite(number: str) -> float:
    if math.isinf(parsed := float(number)):
        raise Refused(f"{number[:40]} is too large: give a number of at most 1.8e308")
    return parsed


def parse_json(body: bytes | str, parse_float: Callable[[str], Any] = float) -> Any:
    """Return the content of a JSON text, which has no constants such as NaN. Raise Refused otherwise."""

    def refuse(word: str) -> Any:
        raise Refused(f"{word} is no JSON: give a number or null")

    try:
        return json.loads(body, parse_float=parse_float, parse_constant=refuse)
    except RecursionError:
        raise Refused(TOO_DEEP) from None
    except UnicodeDecodeError as error:
        raise Refused(f"it is no JSON: byte {error.start} is no UTF-8") from None
    except json.JSONDecodeError as error:
        raise Refused(f"it is no JSON: {_one_line(error)}") from None
    except ValueError:  # Python refuses longer integers
        raise Refused(f"an integer has more than {sys.get_int_max_str_digits()} digits: shorten it") from None


def _unreadable(schema: Any, above: tuple[str, ...]) -> str | None:
    """Return the reason why a few bytes of Avro could keep a reader busy for ever, or crash it.

    Return None if they cannot.
    """
    if isinstance(schema, list):
        return next(filter(None, (_unreadable(branch, above) for branch in schema)), None)
    if isinstance(schema, str):
        return "is recursive" if schema.rpartition(".")[2] in above else None
    kind, name = schema.get("type"), schema.get("name", "").rpartition(".")[2]
    if kind == "record":
        fields = (_unreadable(f["type"], (*above, name)) for f in schema["fields"])
        return next(filter(None, fields), None)
    if kind == "array":
        return (
            "has an array whose items may take no byte"
            if _is_empty(schema["items"])
            else _unreadable(schema["items"], above)
        )
    if kind == "map":
        return _unreadable(schema["values"], above)
    return None if isinstance(kind, str) else _unreadable(kind, above)


def _is_empty(schema: Any) -> bool:
    """Return True if a value of the schema may take no byte; always True for a named type."""
    if isinstance(schema, list):
        return False
    if isinstance(schema, str):
        return schema not in ("boolean", "int", "long", "float", "double", "bytes", "string")
    kind = schema["type"]
    if kind == "record":
        return all(_is_empty(f["type"]) for f in schema["fields"])
    if kind == "fixed":
        return not schema["size"]
    return kind not in ("array", "map", "enum") and _is_empty(kind)


def _one_line(error: Exception) -> str:
    """Return the error's text, shortened and escaped: it may quote a long event, or half of a
    surrogate pair.
    """
    return " ".join(str(error).split())[:300].encode(errors="backslashreplace").decode()
