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
    GET  /console                            the web page
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
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from millrace import __version__
from millrace.config import parse_time
from millrace.errors import MillraceError
from millrace.service.access import AccessList
from millrace.service.admission import admit, who_asks
from millrace.service.bodies import WholeBodies
from millrace.service.database import reason_of
from millrace.service.json_answer import JsonAnswer
from millrace_audit.answer import iso, to_json, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.lease import LeaseHeld
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.deciding import Undecided
from millrace_audit.auditor.service import answers, explaining
from millrace_audit.auditor.service.acceptance import accept, accept_rejected, first_lost, replace_loads
from millrace_audit.auditor.service.access import role_of
from millrace_audit.auditor.service.console import ClusterLook, add_console
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS, window_start
from millrace_audit.reports.messages import FOR_EVER, OFFLINE, WAREHOUSE, Decision

logger = logging.getLogger(__name__)
MOST_WINDOWS = 10_000
"""Most windows in one answer, about 69 days."""
BEHIND_S = 60.0
"""Longest lag of a tier while the auditor is healthy."""

JUDGING_S = 0.5
"""Time for judging windows before a decision is answered; the worker judges the remaining windows."""

MOST_NAME = 255
"""Most characters in the name of a service or server."""
MAX_BODY_BYTES = 64 << 10
"""Most bytes in the body of a request."""


class DecisionBody(BaseModel):
    """Reason for an operator's decision, and the operator's name."""

    reason: str = Field(min_length=1, max_length=1000)
    who: str = Field(default="somebody", max_length=200)


class Acknowledgement(BaseModel):
    """Name of the operator who works on an incident, and a note for others."""

    who: str = Field(default="somebody", pattern=r"\S", max_length=200)
    note: str = Field(default="", max_length=1000)


class LoadDecision(DecisionBody):
    """Decision about a load."""

    load: int = Field(ge=1, lt=1 << 63)


class Reason(DecisionBody):
    """Decision to stop waiting for the reports of instances."""

    disown: bool = False
    """True to ignore everything that the instance has reported, too."""


class ServiceReason(Reason):
    """Decision to stop waiting for a service's silent instances, optionally on one server or up to a time."""

    service: str = Field(max_length=MOST_NAME)
    server: str | None = Field(default=None, max_length=MOST_NAME)
    before: str | None = None


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

    @app.get("/", response_model=None)
    def index(request: Request) -> dict[str, Any] | RedirectResponse:
        """List the paths; redirect a browser to the console."""
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("console")
        paths = sorted({getattr(route, "path", "/") for route in app.routes})
        return {"service": "millrace auditor", "version": __version__, "paths": paths}

    @app.get("/v1/topics/{topic}/completeness")
    def completeness(
        topic: str, start: Annotated[str, Query(alias="from")], end: Annotated[str, Query(alias="to")]
    ) -> dict[str, Any]:
        """Return the verdict on [from, to) and on each of its ten-minute windows."""
        first, last = _span(start, end)
        if (last - first) // WINDOW_MS > MOST_WINDOWS:
            raise MillraceError(f"more than {MOST_WINDOWS} windows between {start} and {end}: ask for less")
        with store.reading() as session:
            found = answers.completeness(session, options, topic, first, last)
        applied_at = None if worker.applied_at is None else utc(worker.applied_at)
        answer: dict[str, Any] = to_json(replace(found, applied_at=applied_at))
        return answer

    @app.get("/v1/topics/{topic}/changes")
    def changes(topic: str, since: Annotated[str, Query(max_length=100)] = "") -> dict[str, Any]:
        """List the hours with a final verdict that changed after the cursor `since`."""
        with store.reading() as session:
            answer: dict[str, Any] = to_json(answers.changes(session, topic, since))
        return answer

    @app.get("/v1/topics/{topic}/history")
    def history(
        topic: str, start: Annotated[str, Query(alias="from")], end: Annotated[str, Query(alias="to")]
    ) -> list[dict[str, Any]]:
        """List operators' decisions on a topic, and changes of final verdicts on windows of [from, to)."""
        first, last = _span(start, end)
        with store.reading() as session:
            return answers.history(session, topic, first, last)

    @app.get("/v1/topics")
    def topics() -> list[dict[str, Any]]:
        """List every topic with its watermark and its producer instances."""
        with store.reading() as session:
            return [to_json(topic) for topic in answers.topics(session, options)]

    @app.get("/v1/bad")
    def bad(
        topic: str | None = None, limit: Annotated[int, Query(ge=1, le=MOST_WINDOWS)] = 100
    ) -> list[dict[str, Any]]:
        """List windows of any time that are not complete, the worst first."""
        with store.reading() as session:
            return [to_json(window) for window in answers.bad(session, options, topic, limit)]

    @app.get("/v1/facts")
    def facts(
        topic: str, window: str, limit: Annotated[int, Query(ge=1, le=MOST_WINDOWS)] = 100
    ) -> dict[str, Any]:
        """Return the facts about a window, and the outcome of every rule."""
        with store.reading() as session:
            return explaining.explain(session, options, topic, window_start(_ms(window, "window")), limit)

    @app.get("/v1/incidents")
    def list_incidents(
        is_open: Annotated[bool | None, Query(alias="open")] = None,
        topic: str | None = None,
        rule: str | None = None,
        owner: str | None = None,
        key: str | None = None,
        limit: Annotated[int, Query(ge=1, le=MOST_WINDOWS)] = 1000,
    ) -> list[dict[str, Any]]:
        """List open incidents, resolved incidents or both, worst first."""
        with store.reading() as session:
            found = incidents.find(
                session, options, is_open=is_open, topic=topic, rule=rule, owner=owner, key=key, limit=limit
            )
            return [to_json(incident) for incident in found]

    @app.get("/v1/rejected-records")
    def rejected_records() -> list[dict[str, Any]]:
        """List rejected records of the audit topics, with their causes."""
        with store.reading() as session:
            return answers.rejected_records(session)

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

    def decide(decision: Decision) -> None:
        worker.decide(decision)
        with suppress(LeaseHeld):  # the auditor that writes now judges
            Judging(store, options).turn(JUDGING_S)

    def take(request: Request, said: Reason, **whom: Any) -> list[int]:
        reason = _reason(said)
        who = who_asks(request) or said.who
        with store.writing() as session:
            decision, instances = accept(session, options, **whom, disown=said.disown, reason=reason, who=who)
        if instances:
            decide(decision)
        return instances

    @app.post("/v1/instances/{instance}/accept")
    def accept_instance(request: Request, instance: int, said: Reason) -> dict[str, Any]:
        """Stop waiting for the reports of an instance; the reason stays visible beside its windows."""
        if not -(1 << 63) <= instance < 1 << 63:
            raise MillraceError(f"{instance} is no instance number")
        if not take(request, said, instance=instance):
            raise MillraceError(
                f"nobody has heard of instance {instance}: the reasons beside a window name those that are"
                " silent"
            )
        return {"instance": instance, "accepted": said.reason.strip()}

    @app.post("/v1/accept")
    def accept_service(request: Request, said: ServiceReason) -> dict[str, Any]:
        """Stop waiting for a service's silent instances without a hello or report since a time."""
        before = None if said.before is None else _ms(said.before, "before")
        instances = take(request, said, service=said.service, server=said.server, before=before)
        return {"instances": instances, "accepted": said.reason.strip()}

    @app.post("/v1/incidents/{key:path}/acknowledge")
    def acknowledge(request: Request, key: str, said: Acknowledgement) -> dict[str, Any]:
        """Note who works on an incident."""
        who = who_asks(request) or said.who
        with store.writing() as session:
            incidents.acknowledge(session, key, who, said.note.strip())
        return {"key": key, "acknowledged_by": who}

    @app.post("/v1/topics/{topic}/accept-rejected")
    def accept_rejected_messages(request: Request, topic: str, said: LoadDecision) -> dict[str, Any]:
        """Give up the messages that a load rejected. The reason stays visible beside their windows."""
        reason, who = _reason(said), who_asks(request) or said.who
        with store.writing() as session:
            decision, messages = accept_rejected(session, options, topic, said.load, reason, who)
        decide(decision)
        return {"load": said.load, "messages": messages, "accepted": reason}

    @app.post("/v1/topics/{topic}/replace-loads")
    def replace_lost_loads(request: Request, topic: str, said: DecisionBody) -> dict[str, Any]:
        """Count the loads that have replaced lost loads."""
        reason, who = _reason(said), who_asks(request) or said.who
        with store.writing() as session:
            decision, loads = replace_loads(session, options, topic, reason, who)
        decide(decision)
        with store.reading() as session:
            if first_lost(session, topic) != FOR_EVER:
                raise MillraceError(
                    f"further loads of topic {topic} have been lost meanwhile: check them, and try again"
                )
        return {"loads": loads, "accepted": reason}

    app.add_middleware(WholeBodies, most=MAX_BODY_BYTES)
    admit(app, role_of, access)
    return app


def _reason(said: DecisionBody) -> str:
    reason = said.reason.strip()
    if not reason:
        raise MillraceError("an acceptance needs a reason: say why, it stays visible beside the windows")
    return reason


def _span(start: str, end: str) -> tuple[int, int]:
    first, last = _ms(start, "from"), _ms(end, "to")
    if first >= last:
        raise MillraceError(f"from {start} is not before to {end}: give the earlier time first")
    return first, last


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


def _ms(text: str, name: str) -> int:
    """Convert a time in ISO 8601 to ms since the epoch."""
    return (parse_time(text.strip(), name) - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
