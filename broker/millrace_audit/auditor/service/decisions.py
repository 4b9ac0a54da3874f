"""The routes by which operators decide: stop to wait, give up rejected messages, take over an incident."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from millrace.errors import MillraceError
from millrace.service.admission import who_asks
from millrace_audit.answer import epoch_ms
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.judging.judge import Judging
from millrace_audit.auditor.lease import LeaseHeld
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.service.acceptance import accept, accept_rejected, first_lost, replace_loads
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.messages import FOR_EVER, Decision

JUDGING_S = 0.5
"""Time for judging windows before a decision is answered; the worker judges the remaining windows."""

MOST_NAME = 255
"""Most characters in the name of a service or server."""


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


def add_decisions(
    app: FastAPI, store: AuditStore, options: AuditOptions, write: Callable[[Decision], None]
) -> None:
    """Serve the decisions. `write` returns once a decision is applied, and raises Undecided if it is not."""

    def decide(decision: Decision) -> None:
        write(decision)
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
        before = None if said.before is None else epoch_ms(said.before, "before")
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


def _reason(said: DecisionBody) -> str:
    reason = said.reason.strip()
    if not reason:
        raise MillraceError("an acceptance needs a reason: say why, it stays visible beside the windows")
    return reason
