"""The console: web pages, rendered from the database on every request.

    GET /console?days=2&until=ISO          state, incidents, the map of topics and hours
    GET /topic?topic=NAME&until=ISO        24 hours of a topic
    GET /hour?topic=NAME&at=DATETHH        an hour of a topic by its windows
    GET /cluster                           mirrors, and the aggregate cluster's brokers, partitions and groups

The pages change nothing; a script sends acknowledgements to the REST service. No page judges a window. The
addresses are relative, because Airflow serves the same pages elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse
from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace.service.pages import FAVICON, FILES, HEADERS, clock, file_of_pages, short, templates_in
from millrace_audit.answer import epoch_ms, utc
from millrace_audit.auditor.judging.topic_facts import listed
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import charts
from millrace_audit.auditor.service.cluster_look import ClusterLook, ClusterSeen
from millrace_audit.auditor.service.hour_page import HourPage
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.service.overview import DAYS, Overview, View
from millrace_audit.auditor.service.partitions import mirrors_of, partitions_of
from millrace_audit.auditor.service.topic_page import TopicPage
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.ranges import in_words

KEPT_MS = 5_000
"""Time for which a page is kept at most: it says how old things are."""
MOST_KEPT = 64
MOST_SQUARES = 2_000
"""Most partitions that are drawn one by one."""
MOST_LACKING = 100
"""Most partitions to list that lack a leader or replicas."""
Values = Callable[[Session], dict[str, Any]]


def add_console(
    app: FastAPI, store: AuditStore, options: AuditOptions, numbers: AuditNumbers, cluster: ClusterLook | None
) -> None:
    """Serve the pages and their files."""
    pages = _Pages(store, options)

    def look() -> ClusterSeen:
        return cluster.seen() if cluster else ClusterSeen(trouble="no broker is asked here")

    @app.get("/console", response_class=HTMLResponse)
    def console(
        days: int = DAYS[0], until: str | None = None, q: str = "", state: str = "", sort: str = "worst"
    ) -> Response:
        """Render the overview."""

        def values(session: Session) -> dict[str, Any]:
            end = None if until is None else _full_hour(until, "until")
            return Overview(session, options, View(days, end, q, state, sort)).values()

        return pages.render("overview.html", "Overview", values, keep_as=(days, until, q, state, sort))

    @app.get("/topic", response_class=HTMLResponse)
    def topic(topic: str, until: str | None = None) -> Response:
        """Render the page of a topic."""

        def values(session: Session) -> dict[str, Any]:
            end = None if until is None else _full_hour(until, "until")
            return TopicPage(session, options, numbers, look(), topic, end).values()

        return pages.render("topic.html", "", values)

    @app.get("/hour", response_class=HTMLResponse)
    def hour(topic: str, at: str) -> Response:
        """Render the page of an hour."""
        return pages.render(
            "hour.html", "", lambda session: HourPage(session, options, topic, _full_hour(at, "at")).values()
        )

    @app.get("/cluster", response_class=HTMLResponse)
    def cluster_page() -> Response:
        """Render the page of the aggregate cluster."""
        return pages.render("cluster.html", "Cluster", lambda session: _cluster(session, options, look()))

    for name in FILES:
        _serve(app, name, name)
    _serve(app, "favicon.ico", FAVICON)


def _serve(app: FastAPI, path: str, name: str) -> None:
    @app.get(f"/{path}", name=path)
    def file() -> Response:
        """Return a file of the pages."""
        return file_of_pages(name)


class _Pages:
    """The templates, with what all of them show. Each open tab asks every few seconds, so pages are kept."""

    def __init__(self, store: AuditStore, options: AuditOptions) -> None:
        self._store, self._options = store, options
        self._kept: OrderedDict[Hashable, tuple[Hashable, Response]] = OrderedDict()
        """Request -> state of the database and the clock, and the page of this state."""
        self._templates = templates_in(Path(__file__).with_name("pages"))
        self._templates.filters.update(short=short, clock=clock)
        self._templates.globals.update(
            in_words=in_words,
            base="",
            bar=charts.bar,
            origins=options.origins,
            pages=[("console", "Overview"), ("cluster", "Cluster")],
        )

    def render(self, name: str, here: str, values: Values, keep_as: Hashable = None) -> Response:
        """Return a page, or a page with the error in one sentence.

        With `keep_as`, the page is rendered once for all requests until the database has changed.
        """
        with self._store.reading() as session:
            state = self._store.version(session), self._options.clock_ms() // KEPT_MS
            kept, page = self._kept.get(keep_as, (None, None))
            if page is None or kept != state:
                page = self._page(session, name, here, values)
        if keep_as is not None:
            self._kept[keep_as] = state, page
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return page

    def _page(self, session: Session, name: str, here: str, values: Values) -> Response:
        status, now = 200, utc(self._options.clock_ms())
        shared = {"here": here, "now": now, "names": listed(session)}
        try:
            shown = values(session)
        except MillraceError as error:
            status, name, shown = 400, "error.html", {"error": str(error), "state": "bad"}
        text = self._templates.get_template(name).render({**shared, **shown})
        return HTMLResponse(text, status, headers=HEADERS)


def _cluster(session: Session, options: AuditOptions, seen: ClusterSeen) -> dict[str, Any]:
    lacking = seen.lacking
    away = [partition for partition in lacking if partition.leader < 0]
    full = sum(one.disk is not None and one.disk.is_nearly_full for one in seen.brokers)
    groups = sorted(seen.groups, key=lambda one: (-(one.lag or 0), one.group, one.topic))
    return {
        "now": utc(options.clock_ms()),
        "state": "bad" if away else "unknown" if lacking or full or not seen.is_known else "good",
        "cluster": seen,
        "groups": groups,
        "lacking": lacking[:MOST_LACKING],
        "all_lacking": len(lacking),
        "away": len(away),
        "full": full,
        "squares": seen.partitions if len(seen.partitions) <= MOST_SQUARES else (),
        "mirrors": mirrors_of([*partitions_of(Progress(session))]),
    }


def _full_hour(text: str, name: str) -> int:
    ms = epoch_ms(text, name)
    if ms % HOUR_MS or ms < 0:
        raise MillraceError(f"{name}={text} is no full hour: write it like 2026-03-01T12:00Z")
    return ms
