"""The routes that answer questions about windows: verdicts, their facts, incidents, and what has changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Query

from millrace.errors import MillraceError
from millrace_audit.answer import epoch_ms, to_json, utc
from millrace_audit.auditor.judging import incidents
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.service import answers, explaining
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import WINDOW_MS, window_start

MOST_WINDOWS = 10_000
"""Most windows in one answer, about 69 days."""


def add_verdicts(
    app: FastAPI, store: AuditStore, options: AuditOptions, applied_at: Callable[[], int | None]
) -> None:
    """Serve the questions. `applied_at` returns the time of the last applied message in ms since 1970."""

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
        applied = applied_at()
        answer: dict[str, Any] = to_json(replace(found, applied_at=None if applied is None else utc(applied)))
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
            return explaining.explain(
                session, options, topic, window_start(epoch_ms(window, "window")), limit
            )

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


def _span(start: str, end: str) -> tuple[int, int]:
    first, last = epoch_ms(start, "from"), epoch_ms(end, "to")
    if first >= last:
        raise MillraceError(f"from {start} is not before to {end}: give the earlier time first")
    return first, last
