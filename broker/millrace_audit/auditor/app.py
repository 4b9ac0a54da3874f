"""The auditor's REST service: verdicts as JSON, and the one thing an operator may say.

    GET  /v1/topics/{topic}/completeness?from=ISO&to=ISO
    GET  /v1/topics                          watermarks and instances
    GET  /v1/health                          up to when every tier is counted; 503 while that is behind
    POST /v1/instances/{instance}/accept     {"reason": "..."}

An error is {"error": "one line"} with status 400, or 503 when the database fails. Knows no verdict by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from millrace import __version__
from millrace.config import parse_time
from millrace.errors import MillraceError
from millrace.service.database import reason_of
from millrace_audit.answer import to_json
from millrace_audit.auditor import answers, auditor
from millrace_audit.auditor.answers import AuditRules
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS

MOST_WINDOWS = 10_000
"""In one answer: about 69 days."""


class Acceptance(BaseModel):
    """Why an operator goes on without an instance's word."""

    reason: str = Field(min_length=1, max_length=1000)


def build_app(store: AuditStore, rules: AuditRules, trouble: Callable[[], str | None]) -> FastAPI:
    """The application on a database that something else fills; `trouble` says why that is behind, or None."""
    app = FastAPI(title="Millrace auditor", version=__version__)
    _say_errors_in_one_line(app)

    @app.get("/v1/topics/{topic}/completeness")
    def completeness(
        topic: str, start: Annotated[str, Query(alias="from")], end: Annotated[str, Query(alias="to")]
    ) -> dict[str, Any]:
        """The verdict on [from, to) and on each of its ten-minute windows."""
        first, last = _ms(start, "from"), _ms(end, "to")
        if first >= last:
            raise MillraceError(f"from {start} is not before to {end}: give the earlier time first")
        if (last - first) // WINDOW_MS > MOST_WINDOWS:
            raise MillraceError(f"more than {MOST_WINDOWS} windows between {start} and {end}: ask for less")
        with store.reading() as session:
            answer: dict[str, Any] = to_json(answers.completeness(session, rules, topic, first, last))
            return answer

    @app.get("/v1/topics")
    def topics() -> list[dict[str, Any]]:
        """Every topic: its watermark and its producer instances."""
        with store.reading() as session:
            return [to_json(topic) for topic in answers.topics(session, rules)]

    @app.get("/v1/health")
    def health() -> JSONResponse:
        """Up to when each tier is counted; 503 until the audit topics are read, and when they cannot be."""
        with store.reading() as session:
            counted = answers.heartbeats(session)
        answer = {"trouble": trouble(), "counted_through": counted, "origins": list(rules.origins)}
        return JSONResponse(answer, status_code=503 if answer["trouble"] else 200)

    @app.post("/v1/instances/{instance}/accept")
    def accept(instance: int, acceptance: Acceptance) -> dict[str, Any]:
        """Go on without the word of a silent instance; the reason stays visible beside its windows."""
        reason = acceptance.reason.strip()
        if not reason:
            raise MillraceError("an acceptance needs a reason: say why the instance will never report")
        if not -(1 << 63) <= instance < 1 << 63:
            raise MillraceError(f"{instance} is no instance number")
        auditor.accept(store, instance, reason)
        return {"instance": instance, "accepted": reason}

    return app


def _say_errors_in_one_line(app: FastAPI) -> None:
    @app.exception_handler(MillraceError)
    def _refuse(_: Request, error: MillraceError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=400)

    @app.exception_handler(SQLAlchemyError)
    def _database_failed(_: Request, error: SQLAlchemyError) -> JSONResponse:
        return JSONResponse({"error": f"the auditor's database failed: {reason_of(error)}"}, status_code=503)

    @app.exception_handler(RequestValidationError)
    def _refuse_form(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
        return JSONResponse({"error": "; ".join(lines)}, status_code=400)


def _ms(text: str, name: str) -> int:
    """A time in ISO 8601 as ms since the epoch."""
    return (parse_time(text.strip(), name) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
