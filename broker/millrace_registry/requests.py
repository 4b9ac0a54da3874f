"""What a client sends, read strictly: paths, bodies, subjects, ids.

Fields that a body may have and the registry does not know are ignored, because newer clients send more of
them with every release; data rules are the exception, since a client would believe them to be in force.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace_registry.errors import (
    BadRequest,
    InvalidRuleSet,
    InvalidSchema,
    InvalidSubject,
    InvalidText,
    RequestTooLarge,
    SchemaNotFound,
    SchemaTooLarge,
    UnsupportedMediaType,
)
from millrace_registry.service import LARGEST, Candidate
from millrace_registry.store import Reference

MEDIA_TYPES = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
)
"""Written and read; the first is the default."""
MAX_SCHEMA_BYTES = 1 << 20
MAX_BODY_BYTES = 3 * MAX_SCHEMA_BYTES
"""A schema travels as a JSON string, whose escapes can take more room than its text."""
MAX_SUBJECT_BYTES = 2600
"""What PostgreSQL keeps in an index is at most 2,704 bytes, with a number beside the subject."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_READ_ONLY_MEDIA_TYPES = ("application/octet-stream", "")


class EncodedSlashes:
    """Keeps `%2F` inside a path's segment apart from the slashes between segments; drops one at the end.

    Servers hand the path on decoded, so a subject `a/b` would look like two segments. Handlers undo the rest
    with `subject_name`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, each segment encoded as far as it must be."""
        if scope["type"] == "http":
            path = scope["raw_path"].decode("latin-1").partition("?")[0]
            segments = (path[:-1] if path.endswith("/") and len(path) > 1 else path).split("/")
            decoded = (unquote(segment).replace("%", "%25").replace("/", "%2F") for segment in segments)
            scope = {**scope, "path": "/".join(decoded)}
        await self._app(scope, receive, send)


class AcceptedType:
    """Answers in the first of our media types that the client names, else in the default one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and write the content type into the answer."""
        accept = Headers(scope=scope).get("accept", "") if scope["type"] == "http" else ""
        media_type = next((kind for kind in MEDIA_TYPES if kind in accept), MEDIA_TYPES[0])

        async def send_typed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["content-type"] = media_type
            await send(message)

        await self._app(scope, receive, send_typed)


async def only_text(request: Request) -> None:
    """Refuse a query that holds no text; it is asked for every request, as `json_body` is for every body."""
    for name, value in request.query_params.multi_items():
        _check_text(name)
        _check_text(value)


def _check_text(value: Any) -> None:
    """InvalidText when a string anywhere in a JSON value is none that every database can keep."""
    if isinstance(value, str):
        if _NO_TEXT.search(value):
            raise InvalidText(
                "the request holds a NUL character or half of a surrogate pair: leave it out, it is no text"
            )
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_text(name)
            _check_text(item)
    elif isinstance(value, list):
        for item in value:
            _check_text(item)


def subject_name(segment: str) -> str:
    """The subject that a path's segment names; InvalidSubject for one the registry cannot keep."""
    subject = unquote(segment)
    if subject.startswith(":.:"):
        subject = subject[3:]  # the default context, the only one there is
    elif subject.startswith(":."):
        raise InvalidSubject(f"subject {subject!r}: contexts are not supported, register it without one")
    if not subject.strip() or not subject.isprintable() or len(subject.encode()) > MAX_SUBJECT_BYTES:
        raise InvalidSubject(
            f"subject {subject[:100]!r} is not valid: write printable characters,"
            f" 1 to {MAX_SUBJECT_BYTES} bytes in UTF-8"
        )
    return subject


def schema_id(segment: str) -> int:
    """The id in a path's segment; SchemaNotFound for what is no id at all."""
    if segment.isascii() and segment.isdigit() and len(segment) <= 10 and int(segment) <= LARGEST:
        return int(segment)
    raise SchemaNotFound(f"Schema {segment} not found")


async def json_body(request: Request) -> Mapping[str, Any]:
    """The request's JSON object, refused before it is buffered when it is too large."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES + _READ_ONLY_MEDIA_TYPES:
        raise UnsupportedMediaType(f"content type {media_type!r} is not read here: send {MEDIA_TYPES[0]}")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestTooLarge(f"the request's body is larger than {MAX_BODY_BYTES} bytes")
    try:
        value = json.loads(body)
        _check_text(value)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the request's body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadRequest("the request's body is not a JSON object")
    return value


def candidate(body: Mapping[str, Any]) -> Candidate:
    """The schema in a request's body."""
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        raise InvalidSchema(f"schema type {kind!r} is not supported: this registry keeps AVRO schemas only")
    text = body.get("schema")
    if not isinstance(text, str) or not text.strip():
        raise InvalidSchema("Empty schema: send the Avro schema's JSON as the string `schema`")
    if len(text) > MAX_SCHEMA_BYTES or len(text.encode()) > MAX_SCHEMA_BYTES:
        raise SchemaTooLarge(f"the schema is larger than {MAX_SCHEMA_BYTES} bytes")
    rules = body.get("ruleSet")
    if isinstance(rules, dict) and any(rules.values()):
        raise InvalidRuleSet("data rules are not supported: register the schema without `ruleSet`")
    return Candidate(text, _references(body.get("references")), _number(body, "id"), _number(body, "version"))


def _references(value: Any) -> tuple[Reference, ...]:
    try:
        references = tuple(Reference(r["name"], r["subject"], r["version"]) for r in value or ())
    except (KeyError, TypeError):
        raise InvalidSchema("`references` must be a list of {name, subject, version}") from None
    for r in references:
        if not (isinstance(r.name, str) and isinstance(r.subject, str) and type(r.version) is int):
            raise InvalidSchema("`references` must be a list of {name, subject, version}")
        if not 1 <= r.version <= LARGEST:
            raise InvalidSchema(f"reference {r.name!r}: its version must be a number from 1 to {LARGEST}")
    return references


def _number(body: Mapping[str, Any], key: str) -> int | None:
    value = body.get(key)
    if value is None or value in (0, -1):  # how clients write "none"
        return None
    if type(value) is not int or not 1 <= value <= LARGEST:
        raise BadRequest(f"`{key}` must be a number from 1 to {LARGEST}")
    return value
