"""Declarations of a message's fields, in the order of its bytes: type, versions, default.

    class MetadataResponse(ApiMessage, response_of=ApiKey.METADATA):
        class Topic(ApiMessage):
            error_code: int = i16()
            name: str | None = string(null_since=12)
            topic_id: UUID | None = uuid(since=10, default=None)

        throttle_time: int = i32(since=3, default=0)
        topics: tuple[Topic, ...] = array(Topic)

A field exists from version `since` up to `until`, and may be null from version `null_since` on. `wire.codec`
reads and writes the bytes. A request or a response names its API, or each of its APIs, as `request_of` or
`response_of`; the messages inside it name none.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast, dataclass_transform

M = TypeVar("M")
P = TypeVar("P")
FIXED_SIZE = frozenset("bhiqd?")
"""The types of a fixed size, as `struct` calls them."""
_REQUIRED = object()
Apis: TypeAlias = int | tuple[int, ...]
"""The key of an API, or the keys of all that share a message."""


@dataclass(frozen=True, slots=True)
class Field:
    """The type of a field, the versions that have it, and its default."""

    kind: str  # one of `FIXED_SIZE`, or uuid, string, data, array, message
    default: Any
    item: Field | type | None = None  # what an array holds, or the class of a message
    since: int = 0
    until: int = 0x7FFF
    null_since: int = 0x7FFF
    api: int | None = None  # the only API whose messages have the field; None: each that has the message

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED

    def is_in(self, api_key: int, version: int) -> bool:
        return self.since <= version <= self.until and self.api in (None, api_key)


def _kind(kind: str, **always: int) -> Callable[..., Any]:
    def declare(*, default: Any = _REQUIRED, **versions: int) -> Any:
        return Field(kind, default, None, **always, **versions)

    return declare


i8, i16, i32, i64, boolean = _kind("b"), _kind("h"), _kind("i"), _kind("q"), _kind("?")
f64 = _kind("d")
uuid = _kind("uuid", null_since=0)  # 16 bytes; None is written as zeros
string, data = _kind("string"), _kind("data")  # UTF-8 and bytes, after their length


def array(of: Any, *, default: Any = _REQUIRED, **versions: int) -> Any:
    """Declare a tuple of messages, as `array(Topic)`, or of numbers or texts, as `array(i32())`.

    Their count comes first.
    """
    return Field("array", default, of, **versions)


def optional(of: Any, *, default: Any = None, **versions: int) -> Any:
    """Declare a message that may be null; the byte before it tells whether it is."""
    return Field("message", default, of, null_since=0, **versions)


def by_topic(partition: Any, **options: Any) -> Any:
    """Declare a tuple of `TopicItems`, each with a tuple of `partition` messages."""
    fields = {"name": string(), "partitions": array(partition)}
    return array(_MessageType("Topic", (ApiMessage,), fields), **options)


@dataclass_transform(
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(i8, i16, i32, i64, boolean, f64, uuid, string, data, array, optional, by_topic),
)
class _MessageType(type):
    """Metaclass that turns a class of fields into a named tuple which takes keywords only."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        request_of: Apis = (),
        response_of: Apis = (),
    ) -> Any:
        if not bases:
            return super().__new__(mcs, name, bases, namespace)
        fields = {key: value for key, value in namespace.items() if isinstance(value, Field)}
        others = {key: value for key, value in namespace.items() if key not in fields}
        values = namedtuple(name, list(fields))  # type: ignore[misc]
        made = {**others, "__slots__": (), "__new__": _constructor(fields), "declared": fields}
        made.update(request_of=_keys(request_of), response_of=_keys(response_of))
        return type(name, (values,), made)


def _keys(apis: Apis) -> tuple[int, ...]:
    return apis if isinstance(apis, tuple) else (apis,)


def _constructor(fields: dict[str, Field]) -> Callable[..., Any]:
    """Return a `__new__` with the fields as keywords, compiled as `namedtuple` compiles its own.

    A loop over the fields takes four times as long.
    """
    defaults = {f"_{key}": field.default for key, field in fields.items() if not field.required}
    keywords = ", ".join(key if f"_{key}" not in defaults else f"{key}=_{key}" for key in fields)
    names = "".join(f"{key}, " for key in fields)
    star = "*, " if fields else ""
    scope: dict[str, Any] = {**defaults, "_new": tuple.__new__}
    exec(f"def __new__(cls, {star}{keywords}): return _new(cls, ({names}))", scope)
    return cast(Callable[..., Any], scope["__new__"])


class ApiMessage(metaclass=_MessageType):
    """Base of the messages' classes: immutable, created with the fields as keywords."""


class TopicItems(ApiMessage, Generic[P]):
    """A topic and the items of a request or a response about its partitions."""

    name: str = string()
    partitions: tuple[P, ...] = array(None)


def group_by_topic(partitions: Iterable[tuple[str, P]]) -> tuple[TopicItems[P], ...]:
    """Group pairs of a topic's name and an item about one of its partitions into `TopicItems`."""
    topics: dict[str, list[P]] = {}
    for name, partition in partitions:
        topics.setdefault(name, []).append(partition)
    return tuple(TopicItems(name=name, partitions=tuple(partitions)) for name, partitions in topics.items())


def fields_of(message: type) -> dict[str, Field]:
    """Return the fields of a class of messages by name, in the order of its bytes."""
    return cast(dict[str, Field], message.declared)  # type: ignore[attr-defined]


def request_of(message: type) -> tuple[int, ...]:
    """Return the keys of the APIs whose request this class is."""
    return cast("tuple[int, ...]", message.request_of)  # type: ignore[attr-defined]


def response_of(message: type) -> tuple[int, ...]:
    """Return the keys of the APIs whose response this class is."""
    return cast("tuple[int, ...]", message.response_of)  # type: ignore[attr-defined]


def items_in(message: object, most: int) -> int:
    """Return the number of items in all lists of a message. Counting stops above `most`."""
    count = 0
    for values in cast("tuple[object, ...]", message):
        if isinstance(values, tuple):
            count += len(values)
            for item in values:
                if count > most:
                    return count
                if isinstance(item, tuple):
                    count += items_in(item, most - count)
    return count


def replace(message: M, **changes: Any) -> M:
    return cast(M, cast(Any, message)._replace(**changes))
