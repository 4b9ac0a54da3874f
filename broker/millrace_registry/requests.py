"""Strict reading of requests: paths, bodies, subjects, ids.

Unknown fields of a schema's body are ignored, because newer clients send more of them with every release.
Data rules, tags and settings that are not supported are refused: a client would rely on them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import UUID

from fastapi import Depends
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.service.admission import ANOTHER_SITE, from_another_site
from millrace.service.bodies import SMALL_BODY_BYTES, LargeBodies
from millrace.service.json_values import MOST_VALUES, has_too_many_values
from millrace_registry.compatibility import Level
from millrace_registry.errors import ErrorCode, InvalidSchema, RegistryError
from millrace_registry.limits import MAX_APPLIED, MAX_BODY_BYTES, MAX_QUESTION_BYTES, MAX_SCHEMA_BYTES
from millrace_registry.service import GLOBAL, LATEST, LEVEL, Candidate
from millrace_registry.store import LARGEST, Origin, Reference

MEDIA_TYPES = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
)
"""Media types of requests and answers; the first is the default."""
MAX_SUBJECT_BYTES = 2600
"""Longest name of a subject: PostgreSQL indexes at most 2,704 bytes, the version's number included."""

_MOST_CHARACTERS = {"commit": 100, "author": 200}
MAX_METADATA_BYTES = 1 << 16
"""Largest `metadata` of a schema, as JSON."""

_JSON = "application/json"
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_READ_ONLY_MEDIA_TYPES = ("application/octet-stream", "")


class ConfluentHttp:
    """Reads paths and chooses media types as Confluent's registry does, around the whole application.

    Servers decode a path before it is split, so a subject `a/b` would look like two segments. Here a segment
    keeps its encoded `/` and `%` until `subject_name` decodes them. One slash at the end is ignored. An
    answer has the first of MEDIA_TYPES that the client accepts, else the default.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        accept = Headers(scope=scope).get("accept", "")
        media_type = next((kind for kind in MEDIA_TYPES if kind in accept), MEDIA_TYPES[0])

        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", _JSON).startswith(_JSON):  # neither the page nor /metrics
                    headers["content-type"] = media_type
            await send(message)

        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        segments = (path[:-1] if path.endswith("/") and len(path) > 1 else path).split("/")
        decoded = (unquote(segment).replace("%", "%25").replace("/", "%2F") for segment in segments)
        return await self._app({**scope, "path": "/".join(decoded)}, receive, send_typed)


async def own_pages(request: Request) -> None:
    """Refuse changes that a browser sends for another site's page. Runs for every request."""
    if from_another_site(request.method, request.headers):
        raise RegistryError(ErrorCode.FORBIDDEN, ANOTHER_SITE)


async def only_text(request: Request) -> None:
    """Refuse a query with characters that are no valid text. Runs for every request."""
    _check_text([text for pair in request.query_params.multi_items() for text in pair])


CHECKS = [Depends(own_pages), Depends(only_text)]
"""Dependencies of every router, which run before the route's own dependencies."""


def _check_text(value: Any) -> None:
    """Refuse a JSON value that holds a string that some databases cannot store."""
    if isinstance(value, str) and _NOT_TEXT.search(value):
        raise RegistryError(
            ErrorCode.NOT_KEPT,
            "the request holds a NUL character or half of a surrogate pair, which is no text: leave it out",
        )
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for item in value:
            _check_text(item)


def subject_name(subject: str) -> str:
    """Return the subject in a path's segment, without the default context, which is the only context here."""
    return _checked_name(unquote(subject))


def _checked_name(name: str) -> str:
    if name.startswith(":.") and not name.startswith(":.:"):
        problem = f"subject {name[:100]!r}: contexts are not supported, register it without one"
        raise RegistryError(ErrorCode.INVALID_SUBJECT, problem)
    name = name.removeprefix(":.:")
    if not name.strip() or not name.isprintable() or len(name.encode()) > MAX_SUBJECT_BYTES:
        raise RegistryError(
            ErrorCode.INVALID_SUBJECT,
            f"subject {name[:100]!r} is not valid: write printable characters,"
            f" 1 to {MAX_SUBJECT_BYTES} bytes in UTF-8",
        )
    return name


async def subject_or_global(request: Request) -> str:
    """Return the subject in the path, or GLOBAL when the path names none."""
    segment = request.path_params.get("subject")
    return GLOBAL if segment is None else subject_name(segment)


async def schema_guid(guid: str) -> UUID:
    """Return the GUID in a path's segment. Refuse any other segment with SCHEMA_NOT_FOUND."""
    try:
        return UUID(guid)
    except ValueError:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {guid} not found") from None


async def properties_in(request: Request) -> dict[str, str]:
    """Return the pairs of a query that repeats `key` and `value`."""
    keys, values = (request.query_params.getlist(name) for name in ("key", "value"))
    if len(keys) != len(values):
        raise RegistryError(ErrorCode.BAD_REQUEST, "the query's `key` and `value` do not pair: give one each")
    return dict(zip(keys, values, strict=True))


async def schema_number(schema_id: str) -> int:
    """Return the id in a path's segment. Refuse any other segment with SCHEMA_NOT_FOUND."""
    number = _number_in(schema_id)
    if number is None:
        raise RegistryError(ErrorCode.SCHEMA_NOT_FOUND, f"Schema {schema_id} not found")
    return number


def version_number(version: str) -> int:
    """Return the version in a path's segment: a number, or LATEST for `latest` and -1."""
    number = LATEST if version in ("latest", "-1") else _number_in(version)
    if number is None:
        raise RegistryError(
            ErrorCode.INVALID_VERSION,
            f"The specified version '{version}' is not a valid version id: take 1 to {LARGEST}, -1 or latest",
        )
    return number


def _number_in(segment: str) -> int | None:
    """Return the number from 1 to LARGEST in a path's segment; None for any other segment."""
    if segment.isascii() and segment.isdigit() and len(segment) <= 10 and 1 <= int(segment) <= LARGEST:
        return int(segment)
    return None


async def body_of_schemas(request: Request) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the JSON object of a request that registers schemas."""
    async with _json_object(request, MAX_BODY_BYTES) as value:
        yield value


async def body_of_schema(request: Request) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the JSON object of a request about one schema that registers nothing."""
    async with _json_object(request, MAX_QUESTION_BYTES) as value:
        yield value


async def body_of_setting(request: Request) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the JSON object of a request that changes a level or a mode."""
    async with _json_object(request, SMALL_BODY_BYTES) as value:
        yield value


def _json_object(request: Request, most: int) -> AbstractAsyncContextManager[Mapping[str, Any]]:
    """Return the request's JSON object. A body that is too large is refused before it is buffered."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES + _READ_ONLY_MEDIA_TYPES:
        raise RegistryError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"content type {media_type!r} is not read here: send {MEDIA_TYPES[0]}",
        )
    bodies: LargeBodies = request.app.state.bodies
    return bodies.read(request, most, _decode)


def _decode(body: bytes) -> Mapping[str, Any]:
    if has_too_many_values(body):
        problem = f"the request's body holds more than {MOST_VALUES} values: send less at once"
        raise RegistryError(ErrorCode.REQUEST_TOO_LARGE, problem)
    try:
        value = json.loads(body.decode())
        _check_text(value)
    except (ValueError, RecursionError) as error:
        message = f"the request's body is not JSON: {error}"
        raise RegistryError(ErrorCode.BAD_REQUEST, message) from None
    if not isinstance(value, dict):
        raise RegistryError(ErrorCode.BAD_REQUEST, "the request's body is not a JSON object")
    return value


def candidate(body: Mapping[str, Any]) -> Candidate:
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        raise InvalidSchema(f"schema type {kind!r} is not supported: this registry keeps AVRO schemas only")
    text = body.get("schema")
    if not isinstance(text, str) or not text.strip():
        problem = "Empty schema: send the Avro schema's JSON as the string `schema`"
        raise RegistryError(ErrorCode.INVALID_SCHEMA, problem)
    if len(text) > MAX_SCHEMA_BYTES or len(text.encode()) > MAX_SCHEMA_BYTES:
        raise RegistryError(ErrorCode.SCHEMA_TOO_LARGE, f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    rules = body.get("ruleSet")
    if isinstance(rules, dict) and any(rules.values()):
        raise RegistryError(
            ErrorCode.INVALID_RULE_SET, "data rules are not supported: register the schema without `ruleSet`"
        )
    references = body.get("references") or []
    if not isinstance(references, list):
        references = [None]
    for key in ("schemaTagsToAdd", "schemaTagsToRemove"):
        if body.get(key):
            raise not_kept(key)
    return Candidate(
        text,
        tuple(map(_reference, references)),
        _properties(body.get("metadata") or {}),
        _number(body, "id"),
        _number(body, "version"),
    )


@dataclass(frozen=True, slots=True)
class Application:
    """Levels and schemas that are applied together, and their origin."""

    candidates: list[tuple[str, Candidate]]
    levels: dict[str, Level]
    origin: Origin


def application(body: Mapping[str, Any]) -> Application:
    """Return the body of `/apply`: {schemas: [{subject, schema}], levels: {subject: level},
    commit, author}.
    """
    schemas, levels = body.get("schemas"), body.get("levels") or {}
    words = {key: body.get(key) or "" for key in _MOST_CHARACTERS}
    if not (
        isinstance(schemas, list)
        and all(isinstance(one, dict) and isinstance(one.get("subject"), str) for one in schemas)
        and isinstance(levels, dict)
        and all(
            isinstance(words[key], str) and len(words[key]) <= most for key, most in _MOST_CHARACTERS.items()
        )
    ):
        raise RegistryError(
            ErrorCode.BAD_REQUEST,
            "the body must be {schemas: [{subject, schema}], levels: {subject: level}, commit, author}",
        )
    subjects = [_checked_name(one["subject"]) for one in schemas]
    levelled = [_checked_name(subject) for subject in levels]
    repeated = len({*subjects}) < len(subjects) or len({*levelled}) < len(levelled)
    # Each subject once, so that all comparisons can be made before the write lock is taken.
    if repeated or len(schemas) + len(levels) > MAX_APPLIED:
        raise RegistryError(
            ErrorCode.BAD_REQUEST,
            f"name each subject once, and at most {MAX_APPLIED} schemas and levels: apply sub-folders alone",
        )
    return Application(
        [(subject, candidate(one)) for subject, one in zip(subjects, schemas, strict=True)],
        {subject: LEVEL.parse(level) for subject, level in zip(levelled, levels.values(), strict=True)},
        Origin(words["commit"], words["author"], time.time_ns() // 1_000_000),
    )


def not_kept(key: str) -> RegistryError:
    return RegistryError(
        ErrorCode.NOT_KEPT, f"{key!r} is not supported and would have no effect: leave it out"
    )


def _properties(metadata: Any) -> dict[str, str] | None:
    """Return the `properties` of a schema's metadata; None when there are none."""
    properties = metadata.get("properties") or {} if isinstance(metadata, dict) else None
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise RegistryError(
            ErrorCode.BAD_REQUEST, "`metadata` must be {'properties': {...}} with strings as values"
        )
    for key in sorted(metadata.keys() - {"properties"}):
        if metadata[key]:
            raise not_kept(f"metadata.{key}")
    if len(json.dumps(properties)) > MAX_METADATA_BYTES:
        problem = f"the schema's metadata is larger than {MAX_METADATA_BYTES} bytes"
        raise RegistryError(ErrorCode.SCHEMA_TOO_LARGE, problem)
    return properties or None


def _reference(value: Any) -> Reference:
    match value:
        case {"name": str(name), "subject": str(subject), "version": int(version)} if version is not True:
            if 1 <= version <= LARGEST:
                return Reference(name, subject, version)
            raise InvalidSchema(f"reference {name!r}: its version must be a number from 1 to {LARGEST}")
    raise InvalidSchema("`references` must be a list of {name, subject, version}")


def _number(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None or value in (0, -1):  # clients' ways to write "none"
        return None
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise RegistryError(ErrorCode.BAD_REQUEST, f"`{key}` must be a number from 1 to {LARGEST}")
    return value
