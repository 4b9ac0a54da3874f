"""The auditor's REST service: verdicts as JSON, and operators' decisions.

    GET  /v1/topics/{topic}/completeness?from=ISO&to=ISO
    GET  /v1/topics/{topic}/history?from=ISO&to=ISO   acceptances, and changes of final verdicts
    GET  /v1/topics/{topic}/changes?since=CURSOR      hours with a changed final verdict
    GET  /v1/topics                          watermarks and instances
    GET  /v1/bad?topic=NAME&limit=N          windows that are not complete, worst first
    GET  /v1/facts?topic=NAME&window=ISO&limit=N      facts about a window, and the outcome of each rule
    GET  /v1/incidents?open=true&topic=NAME&rule=NAME&owner=NAME&key=KEY&limit=N   incidents, worst first
    GET  /v1/rejected-records                rejected records
    GET  /v1/health                          time up to which each tier is counted; 503 while one lags
    GET  /metrics                            for Prometheus
    GET  /console, /topic, /hour, /cluster   web pages
    POST /v1/instances/{instance}/accept     {"reason": "...", "who": "...", "disown": false}
    POST /v1/accept                          the same and {"service": "...", "server": ..., "before": ...}
    POST /v1/incidents/{key}/acknowledge     {"who": "...", "note": "..."}, without an effect on verdicts
    POST /v1/topics/{topic}/accept-rejected  {"load": 3, "reason": "...", "who": "..."}
    POST /v1/topics/{topic}/replace-loads    {"reason": "...", "who": "..."}

An error is {"error": "one line"} with status 400, 413 for a body that is too large, 408 for a body that
arrives too slowly, or 503 when the database fails. All verdicts come from `answers`.
"""

from __future__ import annotations

import logging
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from millrace import __version__
from millrace.errors import MillraceError
from millrace.service.access import AccessList
from millrace.service.admission import admit, who_asks
from millrace.service.bodies import WholeBodies
from millrace.service.database import reason_of
from millrace.service.json_answer import JsonAnswer
from millrace_audit.answer import iso
from millrace_audit.auditor.lease import LeaseHeld
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.deciding import Undecided
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.service.access import role_of
from millrace_audit.auditor.service.cluster_look import ClusterLook
from millrace_audit.auditor.service.console import add_console
from millrace_audit.auditor.service.decisions import add_decisions
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.service.verdicts import add_verdicts
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE, Decision

logger = logging.getLogger(__name__)
BEHIND_S = 60.0
"""Longest lag of a tier while the auditor is healthy."""

MAX_BODY_BYTES = 64 << 10
"""Most bytes in the body of a request."""


class Worker(Protocol):
    """Thread that fills the database."""

    trouble: str | None
    applied_at: int | None
    is_standby: bool
    numbers: AuditNumbers

    def decide(self, decision: Decision) -> None:
        """Write a decision, and return when it is applied. Raise Undecided if it is not."""


def build_app(
    store: AuditStore,
    options: AuditOptions,
    worker: Worker,
    cluster: ClusterLook | None = None,
    access: AccessList | None = None,
) -> FastAPI:
    """Return the application for a database that `worker` fills; the console shows `cluster` if it is given.

    With `access`, only clients that have the route's role get an answer.
    """
    app = FastAPI(
        title="Millrace auditor",
        version=__version__,
        openapi_url="/openapi.json" if access is None else None,
        default_response_class=JsonAnswer,
    )
    _say_errors_in_one_line(app)

    add_console(app, store, options, worker.numbers, cluster)
    add_verdicts(app, store, options, lambda: worker.applied_at)

    @app.get("/", response_model=None)
    def index(request: Request) -> dict[str, Any] | RedirectResponse:
        """List the paths; redirect a browser to the console."""
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("console")
        paths = sorted({getattr(route, "path", "/") for route in app.routes})
        return {"service": "millrace auditor", "version": __version__, "paths": paths}

    @app.get("/v1/health")
    def health(request: Request) -> JsonAnswer:
        """Return the lag of each tier; 503 with the reason while a tier lags by more than a minute.

        An auditor with tokens gives the reason only to clients with a token.
        """
        with store.reading() as session:
            counted = answers.heartbeats(session)
        now = options.clock_ms()
        behind = {tier: max(now - time, 0) / 1000 for tier, time in counted.items()}
        troubles = [worker.trouble] if worker.trouble else []
        for tier in (*options.origins, OFFLINE):
            if tier not in counted:
                troubles.append(f"{tier} has sent no heartbeat: is its audit-reader running?")
        for tier, seconds in behind.items():
            if seconds > BEHIND_S and tier in (*options.origins, OFFLINE, WAREHOUSE):
                reader = "`millrace audit-warehouse`" if tier == WAREHOUSE else "its audit-reader"
                line = (
                    f"{tier} is counted through {iso(counted[tier])}, {seconds:.0f} s ago: look at {reader}"
                )
                troubles.append(line)
        status, role = 503 if troubles else 200, "standby" if worker.is_standby else "active"
        if access is not None and who_asks(request) is None:
            return JsonAnswer({"healthy": not troubles, "role": role}, status_code=status)
        answer = {
            "role": role,
            "trouble": "; ".join(troubles) or None,
            "counted_through": {tier: iso(time) for tier, time in sorted(counted.items())},
            "behind_s": behind,
            "unapplied_bytes": worker.numbers.unapplied,
            "origins": list(options.origins),
        }
        return JsonAnswer(answer, status_code=status)

    @app.get("/metrics")
    def metrics() -> Response:
        """Return all metrics for Prometheus."""
        return Response(worker.numbers.text(), media_type="text/plain; version=0.0.4")

    add_decisions(app, store, options, worker.decide)
    app.add_middleware(WholeBodies, most=MAX_BODY_BYTES)
    admit(app, role_of, access)
    return app


def _say_errors_in_one_line(app: FastAPI) -> None:
    @app.exception_handler(LeaseHeld)
    def _stands_by(_: Request, error: LeaseHeld) -> JsonAnswer:
        return JsonAnswer({"error": str(error)}, status_code=503)

    @app.exception_handler(Undecided)
    def _did_not_decide(_: Request, error: Undecided) -> JsonAnswer:
        return JsonAnswer({"error": str(error)}, status_code=503)

    @app.exception_handler(MillraceError)
    def _refuse(_: Request, error: MillraceError) -> JsonAnswer:
        return JsonAnswer({"error": str(error)}, status_code=400)

    @app.exception_handler(HTTPException)
    def _refuse_request(_: Request, error: HTTPException) -> JsonAnswer:
        return JsonAnswer({"error": error.detail}, status_code=error.status_code, headers=error.headers)

    @app.exception_handler(SQLAlchemyError)
    def _database_failed(request: Request, error: SQLAlchemyError) -> JsonAnswer:
        logger.error("%s %s: the database failed: %s", request.method, request.url.path, reason_of(error))
        return JsonAnswer({"error": "the auditor's database failed; its log says why"}, status_code=503)

    @app.exception_handler(RequestValidationError)
    def _refuse_form(_: Request, error: RequestValidationError) -> JsonAnswer:
        lines = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
        return JsonAnswer({"error": "; ".join(lines)}, status_code=400)
