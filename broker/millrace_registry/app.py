"""The registry over HTTP: Confluent's paths, media types and error codes.

Left out: contexts (there is the default one), metadata searches, tags, GUIDs and associations.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from millrace import __version__
from millrace_registry import requests
from millrace_registry.compatibility import Level
from millrace_registry.errors import RegistryError
from millrace_registry.service import Registry
from millrace_registry.settings import GLOBAL, Mode, Settings
from millrace_registry.store import Store, StoredSchema, StoredVersion

T = TypeVar("T")

_log = logging.getLogger("millrace.registry")

Body: TypeAlias = Annotated[dict[str, Any], Depends(requests.json_body)]
Flag: TypeAlias = Annotated[bool, Query()]


def _subject(subject: str) -> str:
    return requests.subject_name(subject)


def _schema_id(schema_id: str) -> int:
    return requests.schema_id(schema_id)


def _deleted(
    deleted: Flag = False,
    deleted_only: Annotated[bool, Query(alias="deletedOnly")] = False,
    deleted_only_python: Annotated[bool, Query(alias="deleted_only")] = False,  # confluent-kafka's spelling
) -> bool | None:
    """False for live versions, True for deleted ones, None for both."""
    return True if deleted_only or deleted_only_python else None if deleted else False


Subject: TypeAlias = Annotated[str, Depends(_subject)]
SchemaId: TypeAlias = Annotated[int, Depends(_schema_id)]
Deleted: TypeAlias = Annotated[bool | None, Depends(_deleted)]


class _Page:
    def __init__(self, offset: int = 0, limit: int = -1) -> None:
        self._from = max(offset, 0)
        self._to = self._from + limit if limit > 0 else None

    def of(self, items: Sequence[T]) -> list[T]:
        return list(items[self._from : self._to])


Page: TypeAlias = Annotated[_Page, Depends()]


def create_app(store: Store) -> FastAPI:
    """The application on a store; it holds no state of its own."""
    app = FastAPI(
        title="Millrace schema registry",
        version=__version__,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(requests.only_text)],
    )
    registry, settings = Registry(store), Settings(store)
    _add_errors(app)
    app.add_middleware(requests.AcceptedType)
    app.add_middleware(requests.EncodedSlashes)
    _add_service(app, settings)
    _add_subjects(app, registry)
    _add_versions(app, registry)
    _add_schemas(app, registry)
    _add_compatibility(app, registry)
    _add_config(app, settings)
    _add_mode(app, settings)
    return app


def _add_service(app: FastAPI, settings: Settings) -> None:
    @app.get("/")
    @app.post("/")
    def root() -> dict[str, Any]:
        return {}

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        settings.mode(GLOBAL)  # a read from the database
        return {"status": "ok"}

    @app.get("/contexts")
    def contexts(page: Page) -> list[str]:
        return page.of(["."])


def _add_subjects(app: FastAPI, registry: Registry) -> None:
    @app.get("/subjects")
    def subjects(
        deleted: Deleted, page: Page, prefix: Annotated[str, Query(alias="subjectPrefix")] = ""
    ) -> list[str]:
        return page.of(registry.subjects(prefix=_prefix(prefix), deleted=deleted))

    @app.post("/subjects/{subject}")
    def lookup(subject: Subject, body: Body, deleted: Flag = False) -> dict[str, Any]:
        return _version_json(registry.lookup(subject, requests.candidate(body), deleted=deleted))

    @app.delete("/subjects/{subject}")
    def delete_subject(subject: Subject, permanent: Flag = False) -> list[int]:
        return registry.delete_subject(subject, permanent=permanent)


def _add_versions(app: FastAPI, registry: Registry) -> None:
    @app.get("/subjects/{subject}/versions")
    def versions(subject: Subject, deleted: Deleted, page: Page) -> list[int]:
        return page.of(registry.versions(subject, deleted=deleted))

    @app.post("/subjects/{subject}/versions")
    def register(subject: Subject, body: Body) -> dict[str, int]:
        version = registry.register(subject, requests.candidate(body))
        return {"id": version.schema.id}

    @app.get("/subjects/{subject}/versions/{version}")
    def version(subject: Subject, version: str, deleted: Flag = False, format: str = "") -> dict[str, Any]:
        found = registry.version(subject, version, deleted=deleted)
        return {**_version_json(found), **_schema_json(registry, found.schema, format)}

    @app.get("/subjects/{subject}/versions/{version}/schema")
    def version_schema(subject: Subject, version: str, deleted: Flag = False, format: str = "") -> Response:
        found = registry.version(subject, version, deleted=deleted)
        return Response(_text(registry, found.schema, format))

    @app.get("/subjects/{subject}/versions/{version}/referencedby")
    def referenced_by(subject: Subject, version: str, page: Page) -> list[int]:
        return page.of(registry.referenced_by(subject, version))

    @app.delete("/subjects/{subject}/versions/{version}")
    def delete_version(subject: Subject, version: str, permanent: Flag = False) -> int:
        return registry.delete_version(subject, version, permanent=permanent)


def _add_schemas(app: FastAPI, registry: Registry) -> None:
    @app.get("/schemas")
    def schemas(
        page: Page,
        prefix: Annotated[str, Query(alias="subjectPrefix")] = "",
        deleted: Flag = False,
        latest_only: Annotated[bool, Query(alias="latestOnly")] = False,
    ) -> list[dict[str, Any]]:
        found = registry.all_versions(prefix=_prefix(prefix), deleted=None if deleted else False)
        if latest_only:
            found = list({version.subject: version for version in found}.values())
        return [_version_json(version) for version in page.of(found)]

    @app.get("/schemas/types")
    def types() -> list[str]:
        return ["AVRO"]

    @app.get("/schemas/ids/{schema_id}")
    def schema(schema_id: SchemaId, format: str = "") -> dict[str, Any]:
        return _schema_json(registry, registry.schema(schema_id), format)

    @app.get("/schemas/ids/{schema_id}/schema")
    def schema_text(schema_id: SchemaId, format: str = "") -> Response:
        return Response(_text(registry, registry.schema(schema_id), format))

    @app.get("/schemas/ids/{schema_id}/subjects")
    def schema_subjects(schema_id: SchemaId, page: Page, deleted: Flag = False) -> list[str]:
        return page.of(sorted({use.subject for use in registry.uses(schema_id, deleted=deleted)}))

    @app.get("/schemas/ids/{schema_id}/versions")
    def schema_versions(
        schema_id: SchemaId, page: Page, deleted: Flag = False, subject: str = ""
    ) -> list[dict[str, Any]]:
        uses = [u for u in registry.uses(schema_id, deleted=deleted) if subject in ("", u.subject)]
        return page.of([{"subject": use.subject, "version": use.version} for use in uses])


def _add_compatibility(app: FastAPI, registry: Registry) -> None:
    @app.post("/compatibility/subjects/{subject}/versions")
    @app.post("/compatibility/subjects/{subject}/versions/{version}")
    def check(
        subject: Subject, body: Body, version: str | None = None, verbose: Flag = False
    ) -> dict[str, Any]:
        reasons = registry.check(subject, requests.candidate(body), version)
        verdict: dict[str, Any] = {"is_compatible": not reasons}
        return {**verdict, "messages": reasons} if verbose else verdict


def _add_config(app: FastAPI, settings: Settings) -> None:
    def write(subject: str, body: dict[str, Any]) -> dict[str, str]:
        level = Level.of(body.get("compatibility") or body.get("compatibilityLevel"))
        settings.set_level(subject, level)
        return {"compatibility": level}

    @app.get("/config")
    def read_global() -> dict[str, str]:
        return {"compatibilityLevel": settings.level(GLOBAL)}

    @app.put("/config")
    def write_global(body: Body) -> dict[str, str]:
        return write(GLOBAL, body)

    @app.delete("/config")
    def reset_global() -> dict[str, str]:
        return {"compatibilityLevel": settings.reset_level(GLOBAL)}

    @app.get("/config/{subject}")
    def read_subject(
        subject: Subject, default: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, str]:
        return {"compatibilityLevel": settings.level(subject, default_to_global=default)}

    @app.put("/config/{subject}")
    def write_subject(subject: Subject, body: Body) -> dict[str, str]:
        return write(subject, body)

    @app.delete("/config/{subject}")
    def reset_subject(subject: Subject) -> dict[str, str]:
        return {"compatibilityLevel": settings.reset_level(subject)}


def _add_mode(app: FastAPI, settings: Settings) -> None:
    def write(subject: str, body: dict[str, Any], force: bool) -> dict[str, str]:
        mode = Mode.of(body.get("mode"))
        settings.set_mode(subject, mode, force=force)
        return {"mode": mode}

    @app.get("/mode")
    def read_global() -> dict[str, str]:
        return {"mode": settings.mode(GLOBAL)}

    @app.put("/mode")
    def write_global(body: Body, force: Flag = False) -> dict[str, str]:
        return write(GLOBAL, body, force)

    @app.delete("/mode")
    def reset_global() -> dict[str, str]:
        return {"mode": settings.reset_mode(GLOBAL)}

    @app.get("/mode/{subject}")
    def read_subject(
        subject: Subject, default: Annotated[bool, Query(alias="defaultToGlobal")] = False
    ) -> dict[str, str]:
        return {"mode": settings.mode(subject, default_to_global=default)}

    @app.put("/mode/{subject}")
    def write_subject(subject: Subject, body: Body, force: Flag = False) -> dict[str, str]:
        return write(subject, body, force)

    @app.delete("/mode/{subject}")
    def reset_subject(subject: Subject) -> dict[str, str]:
        return {"mode": settings.reset_mode(subject)}


def _prefix(prefix: str) -> str:
    return "" if prefix in (":*:", ":.:") else prefix.removeprefix(":.:")


def _text(registry: Registry, schema: StoredSchema, format: str) -> str:
    return registry.standing_alone(schema) if format == "resolved" else schema.text


def _schema_json(registry: Registry, schema: StoredSchema, format: str = "") -> dict[str, Any]:
    # No `schemaType`: clients take its absence for AVRO, and the oldest know no other.
    answer: dict[str, Any] = {"schema": _text(registry, schema, format)}
    if schema.references and format != "resolved":
        answer["references"] = _references_json(schema)
    return answer


def _version_json(version: StoredVersion) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.schema.id,
        "schema": version.schema.text,
    }
    if version.schema.references:
        answer["references"] = _references_json(version.schema)
    return {**answer, "deleted": True} if version.deleted else answer


def _references_json(schema: StoredSchema) -> list[dict[str, Any]]:
    return [{"name": r.name, "subject": r.subject, "version": r.version} for r in schema.references]


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RegistryError)
    async def refused(request: Request, error: RegistryError) -> Response:
        return _error(error.status, error.code, str(error))

    @app.exception_handler(SQLAlchemyError)
    async def store_failed(request: Request, error: SQLAlchemyError) -> Response:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        _log.error("%s %s: the database failed: %s", request.method, request.url.path, reason)
        return _error(500, 50001, f"the registry's database failed: {reason}")

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return _error(400, 400, "the client went away before its request was whole")  # nobody reads it

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _error(500, 500, "the registry failed; its log says why")

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        return _error(error.status_code, error.status_code, f"HTTP {error.status_code} {error.detail}")

    @app.exception_handler(RequestValidationError)
    async def bad_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _error(400, 400, f"parameter {first['loc'][-1]}: {first['msg']}")


def _error(status: int, code: int, message: str) -> Response:
    return Response(json.dumps({"error_code": code, "message": message}), status_code=status)
