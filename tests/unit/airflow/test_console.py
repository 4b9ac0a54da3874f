"""The pages inside Airflow: who sees them, where they come from, and what they cannot be made to do."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.service.pages import file_of_pages
from millrace_airflow.links import AuditLink, ManifestLink, SparkLink
from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.plugin import MillracePlugin
from millrace_airflow.sensors.completeness import CompletenessSensor
from millrace_audit.auditor.service import access
from millrace_audit.auditor.service.access import ROLES
from millrace_warehouse.history import layout

with warnings.catch_warnings():  # Airflow's own web framework has one for its test client
    warnings.simplefilter("ignore")
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi.testclient import TestClient

    from millrace_airflow import console


class Auditor:
    """An auditor that gives a test's answers and keeps the requests it got."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 200, {"Content-Type": "text/html"}, b"<p>all complete</p>"
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.hold = threading.Event()
        self.hold.set()
        auditor = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                auditor.asked.append((self.command, self.path, dict(self.headers)))
                auditor.hold.wait(60)
                self.send_response(auditor.status)
                for name, value in auditor.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(auditor.body)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def auditor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Auditor]:
    auditor = Auditor()
    url = f"http://reader:secret@127.0.0.1:{auditor.server.server_port}"
    extra = {"registry": "http://r", "auditor": url, "warehouse": str(tmp_path)}
    value = {"conn_type": "millrace", "host": "b:1", "extra": {**extra, "spark_ui": "http://master:8080"}}
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps(value))
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({**value, "conn_type": "http"}))
    yield auditor
    auditor.server.shutdown()
    auditor.server.server_close()


@pytest.fixture
def stranger(auditor: Auditor) -> TestClient:
    return TestClient(console.create_app(), headers={"Cookie": "x=airflows-own"}, follow_redirects=False)


@pytest.fixture
def reader(stranger: TestClient, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Somebody who has logged in, and whom Airflow lets see plugins."""
    manager = SimpleNamespace(is_authorized_view=lambda **_: True)
    monkeypatch.setattr("airflow.api_fastapi.core_api.security.get_auth_manager", lambda: manager)
    stranger.app.dependency_overrides[get_user] = lambda: object()  # type: ignore[attr-defined]
    return stranger


CONSOLE = "/millrace_default/console"
FRAME = Path(access.__file__).with_name("pages") / "frame.html"


@pytest.mark.parametrize("path", [*console.PAGES, "manifest?path=T/loads/0000000001.json"])
def test_who_has_not_logged_in_to_airflow_sees_nothing(
    stranger: TestClient, auditor: Auditor, path: str
) -> None:
    assert stranger.get(f"/millrace_default/{path}").status_code == 401
    assert auditor.asked == []


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/", "/millrace_default/v1/health"])
def test_there_are_no_other_pages(reader: TestClient, auditor: Auditor, path: str) -> None:
    assert reader.get(path).status_code == 404
    assert auditor.asked == []


def test_a_page_inside_airflow_is_marked_so_that_it_shows_no_button_that_would_send_a_post(
    reader: TestClient, auditor: Auditor
) -> None:
    auditor.body = b'<!doctype html><html lang="en"><p>all complete</p>'
    assert reader.get(CONSOLE).text == '<!doctype html><html data-read-only lang="en"><p>all complete</p>'
    assert b":root[data-read-only] .ack" in file_of_pages("console.css").body


def test_the_console_is_the_auditors_with_the_connections_token_and_without_airflows_cookie(
    reader: TestClient, auditor: Auditor
) -> None:
    auditor.headers = {"Content-Type": "text/evil", "Set-Cookie": "a=b", "Location": "http://else"}
    answer = reader.get(f"{CONSOLE}?days=7&q=PageView")
    assert (answer.status_code, answer.text) == (200, "<p>all complete</p>")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "set-cookie" not in answer.headers
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    [(method, path, headers)] = auditor.asked
    assert (method, path) == ("GET", "/console?days=7&q=PageView")
    assert headers["Authorization"].startswith("Basic ")
    assert "Cookie" not in headers


def test_every_page_and_file_of_the_auditors_console_is_passed_on(reader: TestClient) -> None:
    of_console = [path for method, path in ROLES if method == "GET" and not path.startswith("/v1/")]
    for path in {*of_console} - {"/", "/metrics", "/favicon.ico"}:
        assert reader.get(f"/millrace_default{path}").status_code == 200, path
    linked = re.findall(r'href="(v1/[^"?]*)', FRAME.read_text())
    assert linked
    for path in linked:
        assert reader.get(f"/millrace_default/{path}").status_code == 200, path


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_but_a_question_reaches_the_auditor(
    reader: TestClient, auditor: Auditor, method: str
) -> None:
    assert reader.request(method, CONSOLE).status_code == 405
    assert auditor.asked == []


@pytest.mark.parametrize("conn_id", ["other", "nowhere", "..", "http:%2F%2Felsewhere"])
def test_only_a_connection_of_millrace_says_where_a_page_comes_from(
    reader: TestClient, auditor: Auditor, conn_id: str
) -> None:
    answer = reader.get(f"/{conn_id}/console?auditor=http://elsewhere")
    assert answer.status_code in (404, 502)
    assert auditor.asked == []


@pytest.mark.parametrize("status", [302, 401, 403, 500])
def test_an_answer_that_would_mislead_the_browser_is_told_in_words(
    reader: TestClient, auditor: Auditor, status: int
) -> None:
    auditor.status, auditor.headers = status, {"Location": "http://elsewhere", "WWW-Authenticate": "Basic"}
    answer = reader.get(CONSOLE)
    assert answer.status_code == 502
    assert answer.text.endswith(f"answers {status}\n")
    assert "secret" not in answer.text
    assert not {"location", "www-authenticate"} & set(answer.headers)


def test_a_page_without_end_and_a_query_that_is_too_long_are_refused(
    reader: TestClient, auditor: Auditor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "MOST_BYTES", 1 << 20)
    auditor.body = b"x" * (2 << 20)
    assert "larger than 1 MiB" in reader.get(CONSOLE).text
    asked = len(auditor.asked)
    assert reader.get(f"{CONSOLE}?x={'y' * 3_000}").status_code == 414
    assert len(auditor.asked) == asked


def test_a_crowd_of_readers_leaves_airflow_its_threads(reader: TestClient, auditor: Auditor) -> None:
    auditor.hold.clear()
    answers: list[Any] = []
    readers = [threading.Thread(target=lambda: answers.append(reader.get(CONSOLE))) for _ in range(4)]
    for thread in readers:
        thread.start()
    while len(auditor.asked) < 4:
        threading.Event().wait(0.01)
    assert reader.get(CONSOLE).status_code == 503
    auditor.hold.set()
    for thread in readers:
        thread.join()
    assert [answer.status_code for answer in answers] == [200] * 4


def test_a_manifest_is_shown_and_no_other_file(reader: TestClient, tmp_path: Path) -> None:
    loads = tmp_path / "PageView" / "loads"
    loads.mkdir(parents=True)
    (loads / "0000000001.json").write_text('{"load": 1}')
    edition = tmp_path / layout.edition_path("_PageView", 7, 2)
    edition.parent.mkdir(parents=True)
    edition.write_text('{"load": 7}')
    (tmp_path / "PageView" / "secret.json").write_text("{}")
    page = "/millrace_default/manifest"
    assert reader.get(page, params={"path": "PageView/loads/0000000001.json"}).json() == {"load": 1}
    assert reader.get(page, params={"path": "PageView/loads/0000000002.json"}).status_code == 404
    assert reader.get(page, params={"path": layout.edition_path("_PageView", 7, 2)}).json() == {"load": 7}
    publication = layout.publication_path("PageView", 3, "0123456789abcdef")
    assert reader.get(page, params={"path": publication}).status_code == 404
    for path in ("PageView/secret.json", "../x/loads/0000000001.json", "/etc/passwd", ""):
        assert reader.get(page, params={"path": path}).status_code == 400


def test_a_manifest_that_is_too_large_is_refused_not_cut_off(
    reader: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = tmp_path / "PageView" / "loads"
    loads.mkdir(parents=True)
    (loads / "0000000001.json").write_text('{"load": 1}' + " " * (1 << 20))
    page, path = "/millrace_default/manifest", {"path": "PageView/loads/0000000001.json"}
    assert reader.get(page, params=path).json() == {"load": 1}
    monkeypatch.setattr(console, "MOST_BYTES", 1 << 20)
    refused = reader.get(page, params=path)
    assert refused.status_code == 413
    assert "is larger than 1 MiB" in refused.text


def test_tasks_link_to_the_audit_the_manifest_and_spark(auditor: Auditor) -> None:
    key: Any = None
    hour: dict[str, Any] = {"start": "2015-05-17 10:00:00+00:00", "end": "2015-05-17T11:00:00Z"}
    publish = PublishOperator(task_id="p", topic="PageView", **hour)
    assert {link.name for link in publish.operator_extra_links} == {"Audit", "Manifest"}
    at = "/millrace/millrace_default/hour?topic=PageView&at=2015-05-17T10"
    assert AuditLink().get_link(publish, ti_key=key) == at
    wait = CompletenessSensor(task_id="w", topic="PageView", **{**hour, "end": "2015-05-18T10:00:00Z"})
    until = "/millrace/millrace_default/topic?topic=PageView&until=2015-05-18T10%3A00Z"
    assert AuditLink().get_link(wait, ti_key=key) == until
    assert ManifestLink().get_link(publish, ti_key=key) == ""
    publish.manifest = "PageView/publications/0000000012-0123456789abcdef.json"
    link = ManifestLink().get_link(publish, ti_key=key)
    assert link.startswith("/millrace/millrace_default/manifest?path=PageView%2Fpublications%2F0000000012")
    load = LoadTopicOperator(task_id="l", topics="PageView")
    load.finish([{"topic": "PageView", "load": 7, "rows": 5}], {})
    assert ManifestLink().get_link(load, ti_key=key).endswith("PageView%2Floads%2F0000000007.json")
    assert AuditLink().get_link(load, ti_key=key) == "/millrace/millrace_default/console"
    assert SparkLink().get_link(load, ti_key=key) == "http://master:8080"


def test_the_plugin_serves_the_pages_and_shows_the_console_in_airflows_menu() -> None:
    [app] = MillracePlugin.fastapi_apps
    assert app["url_prefix"] == "/millrace"
    [view] = MillracePlugin.external_views
    assert view["href"] == "millrace/millrace_default/console"
