"""The registry over HTTP: Confluent's paths, media types and error codes.

It has no contexts (except the default one), tags, data rules or associations.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from millrace import __version__
from millrace.service.access import AccessList
from millrace.service.bodies import BodyRefused, LargeBodies
from millrace.service.database import reason_of
from millrace.service.json_answer import JsonAnswer
from millrace.service.pages import FAVICON, file_of_pages
from millrace_registry import page, requests, service
from millrace_registry.access import ADMIN, READ, REGISTER, Role, admit, check_roles
from millrace_registry.errors import ErrorCode, InvalidSchema, RegistryError
from millrace_registry.metrics import MEDIA_TYPE, Counted, Numbers
from millrace_registry.store import Store, StoredSchema, StoredVersion, Transaction
from millrace_registry.usage import Usage

logger = logging.getLogger("millrace.registry")
_routes = APIRouter(dependencies=requests.CHECKS, default_response_class=JsonAnswer)


def create_app(store: Store, access: AccessList | None = None, usage: Usage | None = None) -> FastAPI:
    """Return the application on a store, which holds all its state. `usage` has the topics of a schema, for
    the web page.

    With `access` it answers only clients with the route's role.
    """
    # The routes themselves: including a router analyses each route again, 0.1 s of CPU at every start.
    routes = [*_routes.routes, *page.routes.routes]
    app = FastAPI(openapi_url=None, redirect_slashes=False, routes=routes)
    for error in (
        RegistryError,
        BodyRefused,
        SQLAlchemyError,
        ClientDisconnect,
        HTTPException,
        RequestValidationError,
    ):
        app.add_exception_handler(error, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    numbers = Numbers(store)
    app.add_middleware(Counted, numbers=numbers)
    app.add_middleware(requests.ConfluentHttp)
    app.state.store, app.state.access, app.state.numbers = store, access, numbers
    app.state.usage, app.state.bodies = usage or Usage(None), LargeBodies()
    check_roles(app)
    return app


_MOST_ROWS = 1 << 31
"""Largest offset and limit: no table has more rows, and databases refuse numbers of more than 64 bits."""


# Coroutines: functions that wait for nothing need no thread.
async def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


async def _page(offset: int = 0, limit: int = -1) -> slice:
    start = min(max(offset, 0), _MOST_ROWS)
    return slice(start, start + min(limit, _MOST_ROWS) if limit > 0 else None)


async def _deleted(
    deleted: bool = False,
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
    deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,  # confluent-kafka's spelling
) -> bool | None:
    """Return False for live versions, True for deleted ones, None for both."""
    return True if deleted_only or deleted_only_python else None if deleted else False


async def _prefix(prefix: Annotated[str, Query(alias="subjectPrefix")] = "") -> str:
    """Return the prefix of the subjects' names; empty for the default context or all contexts."""
    return "" if prefix in (":*:", ":.:") else prefix.removeprefix(":.:")


Database: TypeAlias = Annotated[Store, Depends(_store)]
Subject: TypeAlias = Annotated[str, Depends(requests.subject_name)]
SubjectOrGlobal: TypeAlias = Annotated[str, Depends(requests.subject_or_global)]
Properties: TypeAlias = Annotated[dict[str, str], Depends(requests.properties_in)]
Guid: TypeAlias = Annotated[UUID, Depends(requests.schema_guid)]
VersionNumber: TypeAlias = Annotated[int, Depends(requests.version_number)]
SchemaId: TypeAlias = Annotated[int, Depends(requests.schema_number)]
SchemasBody: TypeAlias = Annotated[dict[str, Any], Depends(requests.body_of_schemas)]
QuestionBody: TypeAlias = Annotated[dict[str, Any], Depends(requests.body_of_schema)]
SettingBody: TypeAlias = Annotated[dict[str, Any], Depends(requests.body_of_setting)]
Deleted: TypeAlias = Annotated[bool | None, Depends(_deleted)]
Page: TypeAlias = Annotated[slice, Depends(_page)]
Prefix: TypeAlias = Annotated[str, Depends(_prefix)]


@_routes.get("/", response_model=None)
@_routes.post("/", response_model=None)
def root(request: Request) -> dict[str, Any] | RedirectResponse:
    """Answer clients with an empty object, as Confluent's registry does; lead browsers to the web page."""
    is_browser = request.method == "GET" and "text/html" in request.headers.get("accept", "")
    return RedirectResponse("ui") if is_browser else {}


@_routes.get("/favicon.ico")
def favicon() -> Response:
    return file_of_pages(FAVICON)


@_routes.get("/healthz")
def healthz(store: Database) -> dict[str, str]:
    with store.read() as rows:
        service.MODE.of(rows, service.GLOBAL)
    return {"status": "ok"}


@_routes.get("/metrics", dependencies=READ)
def metrics(request: Request) -> Response:
    numbers: Numbers = request.app.state.numbers
    return Response(numbers.text(), media_type=MEDIA_TYPE)


@_routes.get("/v1/metadata/id", dependencies=READ)
async def metadata_id() -> dict[str, Any]:
    clusters = {"kafka-cluster": "", "schema-registry-cluster": "millrace"}
    return {"scope": {"path": [], "clusters": clusters}, "id": ""}


@_routes.get("/v1/metadata/version", dependencies=READ)
async def metadata_version() -> dict[str, str]:
    return {"version": __version__, "commitId": ""}


@_routes.get("/contexts", dependencies=READ)
def contexts(page: Page) -> list[str]:
    return ["."][page]


@_routes.get("/subjects", dependencies=READ)
def subjects(store: Database, deleted: Deleted, page: Page, prefix: Prefix) -> list[str]:
    with store.read() as rows:
        return rows.subjects(prefix=prefix, deleted=deleted, page=page)


@_routes.post("/subjects/{subject}", dependencies=READ)
def look_up(
    request: Request, store: Database, subject: Subject, body: QuestionBody, deleted: bool = False
) -> dict[str, Any]:
    candidate = _candidate(request, body)
    with store.read() as rows:
        return _version_json(service.look_up(rows, subject, candidate, deleted=deleted))


@_routes.delete("/subjects/{subject}", dependencies=ADMIN)
def delete_subject(store: Database, subject: Subject, permanent: bool = False) -> list[int]:
    with store.write() as rows:
        return service.delete(rows, subject, permanent=permanent)


@_routes.get("/subjects/{subject}/metadata", dependencies=READ)
def latest_with(
    store: Database, subject: Subject, properties: Properties, deleted: bool = False, format: str = ""
) -> dict[str, Any]:
    with store.read() as rows:
        stored = service.find_latest_with(rows, subject, properties, deleted=deleted)
        return {**_version_json(stored), "schema": _text(rows, stored.schema, format)}


@_routes.get("/subjects/{subject}/versions", dependencies=READ)
def versions(store: Database, subject: Subject, deleted: Deleted, page: Page) -> list[int]:
    with store.read() as rows:
        service.check_known(rows, subject, deleted=False if deleted is False else None)
        return list(rows.numbers(subject, deleted=deleted, page=page))


@_routes.post("/subjects/{subject}/versions", dependencies=REGISTER)
def register(request: Request, store: Database, subject: Subject, body: SchemasBody) -> dict[str, Any]:
    stored = service.register(store, subject, _candidate(request, body))
    # Without the text: confluent-kafka would cache that text in place of its own text, and register at every
    # call.
    return {"id": stored.schema.id, "version": stored.version, "guid": stored.schema.guid}


@_routes.post("/apply", dependencies=READ)
def apply(request: Request, store: Database, body: SchemasBody) -> list[dict[str, Any]]:
    """Apply levels and schemas of several subjects in one transaction. This path is Millrace's own, for
    `schemas apply`.

    The client needs READ for all subjects, so schemas may refer to any subject.
    """
    application = requests.application(body)
    for subject, _ in application.candidates:
        admit(request, Role.REGISTER, subject)
    for subject in application.levels:
        admit(request, Role.ADMIN, subject)
    applied = service.apply(store, application.candidates, application.levels, application.origin)
    return [{"subject": v.subject, "version": v.version, "id": v.schema.id} for v in applied]


@_routes.get("/subjects/{subject}/versions/{version}", dependencies=READ)
def version(
    store: Database, subject: Subject, version: VersionNumber, deleted: bool = False, format: str = ""
) -> dict[str, Any]:
    with store.read() as rows:
        stored = service.find_version(rows, subject, version, deleted=deleted)
        return {**_version_json(stored), "schema": _text(rows, stored.schema, format)}


@_routes.get("/subjects/{subject}/versions/{version}/schema", dependencies=READ)
async def version_text(version: Annotated[dict[str, Any], Depends(version)]) -> Response:
    return Response(version["schema"])


@_routes.get("/subjects/{subject}/versions/{version}/referencedby", dependencies=READ)
def referenced_by(store: Database, subject: Subject, version: VersionNumber, page: Page) -> list[int]:
    with store.read() as rows:
        stored = service.find_version(rows, subject, version, deleted=True)
        return rows.referenced_by(subject, stored.version, page=page)


@_routes.delete("/subjects/{subject}/versions/{version}", dependencies=ADMIN)
def delete_version(store: Database, subject: Subject, version: VersionNumber, permanent: bool = False) -> int:
    with store.write() as rows:
        return service.delete(rows, subject, version, permanent=permanent)[0]


@_routes.get("/schemas", dependencies=READ)
def schemas(
    store: Database,
    page: Page,
    prefix: Prefix,
    deleted: bool = False,
    latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
) -> list[dict[str, Any]]:
    with store.read() as rows:
        state = None if deleted else False
        versions = rows.versions(prefix=prefix, deleted=state, latest_only=latest_only, page=page)
    return [_version_json(version) for version in versions]


@_routes.get("/schemas/types", dependencies=READ)
def types() -> list[str]:
    return ["AVRO"]


@_routes.get("/schemas/ids/{schema_id}", dependencies=READ)
async def schema(store: Database, schema_id: SchemaId, format: str = "") -> dict[str, Any]:
    recent = store.recent.get(schema_id)
    if recent is None or format:
        return await run_in_threadpool(_read_schema, store, schema_id, format)
    return _schema_json(recent)


@_routes.get("/schemas/guids/{guid}", dependencies=READ)
def schema_of_guid(store: Database, guid: Guid, format: str = "") -> dict[str, Any]:
    with store.read() as rows:
        schema = service.find_schema_of_guid(rows, guid)
        return _schema_json(schema, _text(rows, schema, format))


@_routes.get("/schemas/ids/{schema_id}/schema", dependencies=READ)
async def schema_text(schema: Annotated[dict[str, Any], Depends(schema)]) -> Response:
    return Response(schema["schema"])


@_routes.get("/schemas/ids/{schema_id}/subjects", dependencies=READ)
def schema_subjects(store: Database, schema_id: SchemaId, page: Page, deleted: bool = False) -> list[str]:
    with store.read() as rows:
        service.find_schema(rows, schema_id)
        return rows.subjects(schema_id=schema_id, deleted=None if deleted else False, page=page)


@_routes.get("/schemas/ids/{schema_id}/versions", dependencies=READ)
def schema_versions(
    store: Database, schema_id: SchemaId, page: Page, deleted: bool = False, subject: str = ""
) -> list[dict[str, Any]]:
    with store.read() as rows:
        service.find_schema(rows, schema_id)
        state = None if deleted else False
        uses = rows.versions(subject or None, schema_id=schema_id, deleted=state, page=page)
    return [{"subject": use.subject, "version": use.version} for use in uses]


@_routes.post("/compatibility/subjects/{subject}/versions", dependencies=READ)
@_routes.post("/compatibility/subjects/{subject}/versions/{version}", dependencies=READ)
def check(
    request: Request,
    store: Database,
    subject: Subject,
    body: QuestionBody,
    version: str | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    number = None if version is None else requests.version_number(version)
    candidate = _candidate(request, body)
    with store.read() as rows:
        reasons = service.check(rows, subject, candidate, number)
    return {"is_compatible": not reasons, **({"messages": reasons} if verbose else {})}


def _add_setting(path: str, setting: service.Setting[service.Value], *keys: str) -> None:
    """Add a setting's routes. `keys` may hold its value in a body; PUT answers with the first key, other
    methods with the last.

    Any other key is refused, except a true `normalize`: schemas are always normalized here.
    """

    @_routes.get(path, dependencies=READ)
    @_routes.get(f"{path}/{{subject}}", dependencies=READ)
    def read(
        store: Database,
        subject: SubjectOrGlobal,
        default: Annotated[bool, Query(alias="defaultToGlobal")] = False,
    ) -> dict[str, str]:
        with store.read() as rows:
            return {keys[-1]: setting.read(rows, subject, default_to_global=default)}

    @_routes.put(path, dependencies=ADMIN)
    @_routes.put(f"{path}/{{subject}}", dependencies=ADMIN)
    def write(
        store: Database, subject: SubjectOrGlobal, body: SettingBody, force: bool = False
    ) -> dict[str, str]:
        for key in sorted(body.keys() - set(keys)):
            if body[key] is not None and (key, body[key]) != ("normalize", True):
                raise requests.not_kept(key)
        if setting is service.LEVEL and not body.keys() & set(keys):
            return {}  # an update of nothing
        value = setting.parse(body.get(keys[0]) or body.get(keys[-1]))
        with store.write() as rows:
            setting.write(rows, subject, value, force=force)
        return {keys[0]: value}

    @_routes.delete(path, dependencies=ADMIN)
    @_routes.delete(f"{path}/{{subject}}", dependencies=ADMIN)
    def reset(store: Database, subject: SubjectOrGlobal) -> dict[str, str]:
        with store.write() as rows:
            return {keys[-1]: setting.reset(rows, subject)}


_add_setting("/config", service.LEVEL, "compatibility", "compatibilityLevel")
_add_setting("/mode", service.MODE, "mode")


def _candidate(request: Request, body: Mapping[str, Any]) -> service.Candidate:
    """Return the schema in a body. Its sender must have READ for referenced subjects, because answers quote
    them.
    """
    candidate = requests.candidate(body)
    for reference in candidate.references:
        admit(request, Role.READ, reference.subject)
    return candidate


def _text(rows: Transaction, schema: StoredSchema, format: str) -> str:
    return service.resolve(rows, schema) if format == "resolved" else schema.text


def _version_json(version: StoredVersion) -> dict[str, Any]:
    schema = version.schema
    answer = {"subject": version.subject, "version": version.version, "id": schema.id, "schema": schema.text}
    return {**answer, **_identity_json(schema), **({"deleted": True} if version.deleted else {})}


def _read_schema(store: Store, schema_id: int, format: str) -> dict[str, Any]:
    began = store.recent.clock()
    with store.read() as rows:
        deletions = rows.deletions()
        schema = service.find_schema(rows, schema_id)
        text = _text(rows, schema, format)
    store.recent.add(schema, deletions, began)
    return _schema_json(schema, text)


def _schema_json(schema: StoredSchema, text: str | None = None) -> dict[str, Any]:
    """Return the answer for a schema.

    If `text` is given, with referenced types written out, the answer lists no references.
    """
    answer = {**_identity_json(schema), "schema": schema.text if text is None else text}
    if text not in (None, schema.text):
        answer.pop("references", None)
    return answer


def _identity_json(schema: StoredSchema) -> dict[str, Any]:
    answer: dict[str, Any] = {"guid": schema.guid, "schemaType": "AVRO"}
    if schema.references:
        answer["references"] = [asdict(reference) for reference in schema.references]
    if schema.properties:
        answer["metadata"] = {"properties": schema.properties}
    return answer


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer `{"error_code": N, "message": "..."}`; the first three digits of the code are the status.

    A browser at the web page gets an HTML page.
    """
    code: int
    match error:
        case InvalidSchema():
            code, message = error.code, f"Invalid schema: {error}"
        case RegistryError():
            code, message = error.code, str(error)
        case BodyRefused():
            code, message = ErrorCode(error.status), str(error)
        case SQLAlchemyError():
            code, message = ErrorCode.STORE_FAILED, "the registry's database failed; its log says why"
            logger.error("%s %s: the database failed: %s", request.method, request.url.path, reason_of(error))
        case ClientDisconnect():  # the answer is not read
            code, message = ErrorCode.BAD_REQUEST, "the client disconnected before its request was complete"
        case HTTPException():
            code, message = error.status_code, f"HTTP {error.status_code} {error.detail}"
        case RequestValidationError():
            first = error.errors()[0]
            code, message = ErrorCode.BAD_REQUEST, f"parameter {first['loc'][-1]}: {first['msg']}"
        case _:
            code, message = ErrorCode.FAILED, "the registry failed; its log says why"
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    # With this header a browser asks for name and token.
    headers = {"WWW-Authenticate": 'Basic realm="millrace"'} if code == ErrorCode.UNAUTHENTICATED else {}
    if isinstance(error, BodyRefused):  # the body's rest would be read as the next request
        headers["Connection"] = "close"
    status = int(str(code)[:3])
    if request.url.path.startswith("/ui") and "text/html" in request.headers.get("accept", ""):
        return page.failure(message, status, headers)
    content = json.dumps({"error_code": code, "message": message})
    return Response(content, status_code=status, headers=headers)
