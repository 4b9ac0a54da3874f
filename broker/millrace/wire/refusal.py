"""Responses that refuse each item of a request, made from the classes of request and response alone.

Kafka's responses repeat the request's list, and most have an error field in each item only. An item of the
response copies the fields whose names are also in the request's item; an item that is only a number or a text
becomes the field that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeAlias, cast

from millrace.errors import ErrorCode
from millrace.wire.fields import Field, fields_of

EMPTY: dict[str, object] = {"array": (), "string": "", "data": b"", "uuid": None}
"""Empty values of required fields by kind; for numbers it is 0."""
_REASONS = ("error_message", "message")
_Refuse: TypeAlias = Callable[[Any], Any]


def refuse_each(
    response: Any, request: Any, api_key: int, version: int, code: ErrorCode, reason: str
) -> Any | None:
    """Return a `response` with the error in each item of the request's list.

    None if the request has no such list.
    """
    refuse = _of_list(response, cast(Hashable, type(request)), api_key, version, code, reason)
    if refuse is None:
        return None
    refused = refuse(request)
    return refused if any(isinstance(value, tuple) and value for value in refused) else None


@lru_cache(maxsize=64)
def _of_list(
    response: Any, request: Any, api_key: int, version: int, code: ErrorCode, reason: str
) -> _Refuse | None:
    """Return a function that refuses each item of the one list of a `request`, or of an item of a request."""
    answered = next((name for name, field in _present(response, api_key, version) if _has_error(field)), None)
    asked = next((name for name, field in _present(request, api_key, version) if field.kind == "array"), None)
    if answered is None or asked is None:
        return None
    item, wanted = fields_of(response)[answered].item, fields_of(request)[asked].item
    refuse_item = _of_item(item, wanted, api_key, version, code, reason)
    values_of = _values_of(response, request, version, {"error_code": ErrorCode.NONE})
    if refuse_item is None or values_of is None:
        return None
    at = list(fields_of(response)).index(answered)

    def refuse(message: Any) -> Any:
        values = values_of(message)
        values[at] = tuple([refuse_item(one) for one in getattr(message, asked) or ()])
        return tuple.__new__(response, values)

    return refuse


def _of_item(
    item: Any, wanted: Any, api_key: int, version: int, code: ErrorCode, reason: str
) -> _Refuse | None:
    present = dict(_present(item, api_key, version))
    if "error_code" in present:
        given = {"error_code": code, **{name: reason for name in _REASONS if name in present}}
        values_of = _values_of(item, wanted, version, given)
        return None if values_of is None else lambda one: tuple.__new__(item, values_of(one))
    return _of_list(item, wanted, api_key, version, code, reason)


def _values_of(
    cls: Any, source: Any, version: int, given: dict[str, object]
) -> Callable[[Any], list[object]] | None:
    """Return a function that takes the values of a `cls` from a `source` and `given`.

    None if they lack a required field.
    """
    known = fields_of(source) if hasattr(source, "declared") else {}
    names, values, copied = list(known), list[object](), list[tuple[int, int | None, bool]]()
    for index, (name, field) in enumerate(fields_of(cls).items()):
        values.append(given.get(name, EMPTY.get(field.kind, 0) if field.required else field.default))
        if name in known and (known[name].kind, known[name].item) == (field.kind, field.item):
            copied.append((index, names.index(name), field.kind == "string" and version < field.null_since))
        elif name not in given and field.required and field.kind != "array":
            if known:
                return None
            copied.append((index, None, False))

    def values_of(one: Any) -> list[object]:
        made = values.copy()
        for index, at, never_null in copied:
            value = one if at is None else one[at]
            made[index] = "" if value is None and never_null else value
        return made

    return values_of


def _present(message: Any, api_key: int, version: int) -> list[tuple[str, Field]]:
    if not hasattr(message, "declared"):
        return []
    return [(name, field) for name, field in fields_of(message).items() if field.is_in(api_key, version)]


def _has_error(field: Field) -> bool:
    """Return True for a list whose items, or items of whose lists, have an error."""
    if field.kind != "array" or not hasattr(field.item, "declared"):
        return False
    fields = fields_of(field.item)  # type: ignore[arg-type]  # it is a class of messages
    return "error_code" in fields or any(map(_has_error, fields.values()))
