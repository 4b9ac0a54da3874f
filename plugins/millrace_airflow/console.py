"""The auditor's console and a warehouse's manifests as pages of Airflow, for users who may see plugins.

    GET /millrace/CONNECTION/{console,topic,hour,cluster} and the files of these pages
    GET /millrace/CONNECTION/v1/{topics,incidents,bad,rejected-records}
    GET /millrace/CONNECTION/manifest?path=TOPIC/loads/0000000001.json

This is no open proxy: only connections of type `millrace` name sources of pages, and PAGES lists the pages.
The auditor is asked by GET, without the reader's cookies. Time, size and number of requests are bounded.
Airflow does not protect the pages of a plugin, so every route here requires Airflow's login. The pages share
an origin with Airflow's own and could use its cookie, so HEADERS allow scripts from files only. Only the API
server imports this module.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import httpx
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import requires_access_view
from airflow.models.connection import Connection
from airflow.sdk.exceptions import AirflowNotFoundException
from fastapi import Depends, FastAPI, Request, Response

from millrace.errors import MillraceError
from millrace.service.pages import FILES, HEADERS
from millrace.urls import address_and_auth, without_secret
from millrace_airflow.settings import MillraceSettings, settings_of

PAGES = {
    **dict.fromkeys(("console", "topic", "hour", "cluster"), "text/html; charset=utf-8"),
    **FILES,
    **dict.fromkeys(
        ("v1/topics", "v1/incidents", "v1/bad", "v1/rejected-records"), "application/json; charset=utf-8"
    ),
}
"""Path at the auditor -> media type that the browser receives, whatever type the auditor's answer states."""
MANIFEST = re.compile(
    r"[A-Za-z0-9_][\w.-]*/(loads/[0-9]{10}|editions/[0-9]{10}\.[0-9]{4,}|publications/[0-9]{10}-\w+)\.json",
    re.ASCII,
)
MOST_BYTES = 16 << 20
"""Most bytes of an answer of the auditor, or of a manifest."""
MOST_QUERY = 2_000
TIMEOUT_S = 20.0
_turns = threading.BoundedSemaphore(4)
"""Most requests at a time: the other threads of the API server are Airflow's."""


def create_app() -> FastAPI:
    """Return the application that Airflow's API server mounts as /millrace."""
    logged_in = [Depends(requires_access_view(AccessView.PLUGINS))]
    app = FastAPI(dependencies=logged_in, openapi_url=None, docs_url=None, redoc_url=None)
    for path in PAGES:
        _add_page(app, path)

    @app.get("/{conn_id}/manifest")
    def manifest(conn_id: str, path: str) -> Response:
        """Return the manifest of a load, an edition or a publication, as it lies in the warehouse."""
        if not MANIFEST.fullmatch(path):
            return _say(400, "path names no manifest: write TOPIC/loads/0000000001.json")
        return _in_turn(lambda: _read(_settings(conn_id).warehouse, path))

    return app


def _add_page(app: FastAPI, path: str) -> None:
    @app.get(f"/{{conn_id}}/{path}", name=path)
    def page(conn_id: str, request: Request) -> Response:
        """Return a page of the auditor."""
        if len(request.url.query) > MOST_QUERY:
            return _say(414, f"the query has more than {MOST_QUERY} characters")
        return _in_turn(lambda: _fetch(_settings(conn_id).auditor, path, request.url.query))


def _in_turn(answer: Callable[[], Response]) -> Response:
    """Return the answer, or an error in one sentence. Fail at once when all turns are taken."""
    if not _turns.acquire(blocking=False):
        return _say(503, "too many requests at once: try again in a moment")
    try:
        return answer()
    except MillraceError as error:
        return _say(502, str(error))
    finally:
        _turns.release()


def _settings(conn_id: str) -> MillraceSettings:
    try:
        connection = Connection.get_connection_from_secrets(conn_id)
    except AirflowNotFoundException:
        connection = None
    if connection is None or connection.conn_type != "millrace":
        raise MillraceError(
            f"there is no connection {conn_id[:250]!r} of type millrace: create it in Airflow"
        )
    return settings_of(connection)


def _fetch(auditor: str, path: str, query: str) -> Response:
    address, auth = address_and_auth(f"{auditor.rstrip('/')}/{path}")
    deadline = time.monotonic() + TIMEOUT_S
    identity = {"Accept-Encoding": "identity"}  # else a few bytes could expand to very many
    body = bytearray()
    try:
        with httpx.stream(
            "GET", f"{address}?{query}", auth=auth, timeout=TIMEOUT_S, headers=identity
        ) as response:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > MOST_BYTES or time.monotonic() > deadline:
                    raise MillraceError(
                        f"the auditor's page is larger than {MOST_BYTES >> 20} MiB or takes more than"
                        f" {TIMEOUT_S:.0f} s: ask for fewer days"
                    )
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise MillraceError(f"no auditor answers at {without_secret(auditor)}: {reason}") from None
    if response.status_code not in (200, 400) or "content-encoding" in response.headers:
        # Not passed on: the auditor's 401 would look like Airflow's own, and a redirect would lead
        # elsewhere.
        raise MillraceError(f"the auditor at {without_secret(auditor)} answers {response.status_code}")
    # No POST is forwarded, so the style sheet hides the buttons that would send one.
    page = bytes(body).replace(b"<html ", b"<html data-read-only ", 1)
    return Response(page, response.status_code, headers=HEADERS, media_type=PAGES[path])


def _read(warehouse: str, path: str) -> Response:
    from millrace_warehouse.storage import open_storage  # imports pyarrow

    try:
        content = open_storage(warehouse).read(path, 0, MOST_BYTES + 1)
    except FileNotFoundError:
        return _say(404, f"the warehouse has no {path}")
    except OSError as error:
        raise MillraceError(f"the warehouse cannot be read from Airflow's API server: {error}") from None
    if len(content) > MOST_BYTES:
        return _say(413, f"{path} is larger than {MOST_BYTES >> 20} MiB: read it from the warehouse itself")
    return Response(content, headers=HEADERS, media_type="application/json")


def _say(status: int, sentence: str) -> Response:
    return Response(f"{sentence}\n", status, headers=HEADERS, media_type="text/plain; charset=utf-8")
