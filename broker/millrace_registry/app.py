"""The registry over HTTP: Confluent's paths, media types and error codes.

Left out: contexts (there is the default one), metadata searches, tags, GUIDs and associations.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from millrace.service.database import reason_of
from millrace_registry import requests
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.service import Registry
from millrace_registry.settings import GLOBAL, LEVEL, MODE, Setting, Settings, Value
from millrace_registry.store import Store, StoredSchema, StoredVersion

_log = logging.getLogger("millrace.registry")


def _page(offset: int = 0, limit: int = -1) -> slice:
    start = max(offset, 0)
    return slice(start, start + limit if limit > 0 else None)


def _deleted(
    deleted: bool = False,
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
    deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,  # confluent-kafka's spelling
) -> bool | None:
    """False for live versions, True for deleted ones, None for both."""
    return True if deleted_only or deleted_only_python else None if deleted else False


def _prefix(prefix: Annotated[str, Query(alias="subjectPrefix")] = "") -> str:
    """What the subjects' names begin with; the default context and all contexts stand for every subject."""
    return "" if prefix in (":*:", ":.:") else prefix.removeprefix(":.:")


Subject: TypeAlias = Annotated[str, Depends(requests.subject_name)]
SubjectOrGlobal: TypeAlias = Annotated[str, Depends(requests.subject_or_global)]
SchemaId: TypeAlias = Annotated[int, Depends(requests.schema_number)]
Body: TypeAlias = Annotated[dict[str, Any], Depends(requests.json_body)]
Deleted: TypeAlias = Annotated[bool | None, Depends(_deleted)]
Page: TypeAlias = Annotated[slice, Depends(_page)]
Prefix: TypeAlias = Annotated[str, Depends(_prefix)]


def create_app(store: Store) -> FastAPI:
    """The application on a store; it holds no state of its own."""
    app = FastAPI(openapi_url=None, redirect_slashes=False, dependencies=[Depends(requests.only_text)])
    for error in (RegistryError, SQLAlchemyError, ClientDisconnect, HTTPException, RequestValidationError):
        app.add_exception_handler(error, _answer_error)
    app.add_exception_handler(Exception, _answer_error)
    app.add_middleware(requests.ConfluentHttp)
    registry, settings = Registry(store), Settings(store)
    _add_service(app, settings)
    _add_subjects(app, registry)
    _add_versions(app, registry)
    _add_schemas(app, registry)
    _add_compatibility(app, registry)
    _add_settings(app, settings)
    return app


def _add_service(app: FastAPI, settings: Settings) -> None:
    @app.get("/")
    @app.post("/")
    def root() -> dict[str, Any]:
        return {}

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        settings.read(MODE, GLOBAL)  # from the database
        return {"status": "ok"}

    @app.get("/contexts")
    def contexts(page: Page) -> list[str]:
        return ["."][page]


def _add_subjects(app: FastAPI, registry: Registry) -> None:
    @app.get("/subjects")
    def subjects(deleted: Deleted, page: Page, prefix: Prefix) -> list[str]:
        return registry.subjects(prefix=prefix, deleted=deleted)[page]

    @app.post("/subjects/{subject}")
    def lookup(subject: Subject, body: Body, deleted: bool = False) -> dict[str, Any]:
        return _version_json(registry.lookup(subject, requests.candidate(body), deleted=deleted))

    @app.delete("/subjects/{subject}")
    def delete_subject(subject: Subject, permanent: bool = False) -> list[int]:
        return registry.delete_subject(subject, permanent=permanent)


def _add_versions(app: FastAPI, registry: Registry) -> None:
    @app.get("/subjects/{subject}/versions")
    def versions(subject: Subject, deleted: Deleted, page: Page) -> list[int]:
        return registry.versions(subject, deleted=deleted)[page]

    @app.post("/subjects/{subject}/versions")
    def register(subject: Subject, body: Body) -> dict[str, int]:
        return {"id": registry.register(subject, requests.candidate(body)).schema.id}

    @app.get("/subjects/{subject}/versions/{version}")
    def version(subject: Subject, version: str, deleted: bool = False, format: str = "") -> dict[str, Any]:
        stored = registry.version(subject, version, deleted=deleted)
        return {**_version_json(stored), "schema": _text(registry, stored.schema, format)}

    @app.get("/subjects/{subject}/versions/{version}/schema")
    def version_schema(subject: Subject, version: str, deleted: bool = False, format: str = "") -> Response:
        stored = registry.version(subject, version, deleted=deleted)
        return Response(_text(registry, stored.schema, format))

    @app.get("/subjects/{subject}/versions/{version}/referencedby")
    def referenced_by(subject: Subject, version: str, page: Page) -> list[int]:
        return registry.referenced_by(subject, version)[page]

    @app.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: Subject, version: str, permanent: bool = False) -> int:
        return registry.delete_version(subject, version, permanent=permanent)


def _add_schemas(app: FastAPI, registry: Registry) -> None:
    @app.get("/schemas")
    def schemas(
        page: Page,
        prefix: Prefix,
        deleted: bool = False,
        latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
    ) -> list[dict[str, Any]]:
        versions = registry.all_versions(prefix=prefix, deleted=None if deleted else False)
        if latest_only:
            versions = list({version.subject: version for version in versions}.values())
        return [_version_json(version) for version in versions[page]]

    @app.get("/schemas/types")
    def types() -> list[str]:
        return ["AVRO"]

    @app.get("/schemas/ids/{schema_id}")
    def schema(schema_id: SchemaId, format: str = "") -> dict[str, Any]:
        schema = registry.schema(schema_id)
        # No `schemaType`: clients take its absence for AVRO, and the oldest know no other.
        answer = {"schema": _text(registry, schema, format)}
        return answer if format == "resolved" else {**answer, **_references_json(schema)}

    @app.get("/schemas/ids/{schema_id}/schema")
    def schema_text(schema_id: SchemaId, format: str = "") -> Response:
        return Response(_text(registry, registry.schema(schema_id), format))

    @app.get("/schemas/ids/{schema_id}/subjects")
    def schema_subjects(schema_id: SchemaId, page: Page, deleted: bool = False) -> list[str]:
        return sorted({use.subject for use in registry.uses(schema_id, deleted=deleted)})[page]

    @app.get("/schemas/ids/{schema_id}/versions")
    def schema_versions(
        schema_id: SchemaId, page: Page, deleted: bool = False, subject: str = ""
    ) -> list[dict[str, Any]]:
        uses = [use for use in registry.uses(schema_id, deleted=deleted) if subject in ("", use.subject)]
        return [{"subject": use.subject, "version": use.version} for use in uses[page]]


def _add_compatibility(app: FastAPI, registry: Registry) -> None:
    @app.post("/compatibility/subjects/{subject}/versions")
    @app.post("/compatibility/subjects/{subject}/versions/{version}")
    def check(
        subject: Subject, body: Body, version: str | None = None, verbose: bool = False
    ) -> dict[str, Any]:
        reasons = registry.check(subject, requests.candidate(body), version)
        return {"is_compatible": not reasons, **({"messages": reasons} if verbose else {})}


def _add_settings(app: FastAPI, settings: Settings) -> None:
    _add_setting(app, settings, "/config", LEVEL, "compatibilityLevel")
    _add_setting(app, settings, "/mode", MODE, "mode")

    @app.put("/config")
    @app.put("/config/{subject}")
    def write_level(subject: SubjectOrGlobal, body: Body) -> dict[str, str]:
        level = LEVEL.parse(body.get("compatibility") or body.get("compatibilityLevel"))
        settings.write(LEVEL, subject, level)
        return {"compatibility": level}

    @app.put("/mode")
    @app.put("/mode/{subject}")
    def write_mode(subject: SubjectOrGlobal, body: Body, force: bool = False) -> dict[str, str]:
        mode = MODE.parse(body.get("mode"))
        settings.write(MODE, subject, mode, force=force)
        return {"mode": mode}


def _add_setting(app: FastAPI, settings: Settings, path: str, setting: Setting[Value], key: str) -> None:
    @app.get(path)
    def read_global() -> dict[str, str]:
        return {key: settings.read(setting, GLOBAL)}

    @app.get(f"{path}/{{subject}}")
    def read_subject(
        subject: Subject, default: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, str]:
        return {key: settings.read(setting, subject, default_to_global=default)}

    @app.delete(path)
    @app.delete(f"{path}/{{subject}}")
    def reset(subject: SubjectOrGlobal) -> dict[str, str]:
        return {key: settings.reset(setting, subject)}


def _text(registry: Registry, schema: StoredSchema, format: str) -> str:
    return registry.standing_alone(schema) if format == "resolved" else schema.text


def _version_json(version: StoredVersion) -> dict[str, Any]:
    schema = version.schema
    answer = {"subject": version.subject, "version": version.version, "id": schema.id, "schema": schema.text}
    return {**answer, **_references_json(schema), **({"deleted": True} if version.deleted else {})}


def _references_json(schema: StoredSchema) -> dict[str, Any]:
    return {"references": [asdict(reference) for reference in schema.references]} if schema.references else {}


async def _answer_error(request: Request, error: Exception) -> Response:
    """`{"error_code": N, "message": "..."}`; the first three digits of the code are the status."""
    code: int
    match error:
        case RegistryError():
            code, message = error.code, str(error)
        case SQLAlchemyError():
            code, message = ErrorCode.STORE_FAILED, f"the registry's database failed: {reason_of(error)}"
            _log.error("%s %s: the database failed: %s", request.method, request.url.path, reason_of(error))
        case ClientDisconnect():  # nobody reads it
            code, message = ErrorCode.BAD_REQUEST, "the client went away before its request was whole"
        case HTTPException():
            code, message = error.status_code, f"HTTP {error.status_code} {error.detail}"
        case RequestValidationError():
            first = error.errors()[0]
            code, message = ErrorCode.BAD_REQUEST, f"parameter {first['loc'][-1]}: {first['msg']}"
        case _:
            code, message = ErrorCode.FAILED, "the registry failed; its log says why"
            _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Response(json.dumps({"error_code": code, "message": message}), status_code=int(str(code)[:3]))
