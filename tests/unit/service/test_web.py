"""A web service that does other work beside its application: it is whole, or it ends."""

from __future__ import annotations

import threading

import httpx
import pytest
from fastapi import FastAPI

from millrace.errors import MillraceError
from millrace.service import web
from tests.support import wait_until


def test_a_service_whose_other_work_fails_stops_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    monkeypatch.setattr(web, "stop_on_signals", lambda *_, **__: None)
    monkeypatch.setattr(web, "end_soon", ends.append)
    server = web.WebServer(None, "127.0.0.1:0", "agent")

    def fail() -> None:
        raise OSError("the disk is gone")

    carrier = server.start_beside("carrier", fail)
    with pytest.raises(MillraceError, match="the agent stopped: the disk is gone"):
        server.serve_until_stopped()
    carrier.join()
    assert ends == [1], "a request that hangs must not keep the process"


def test_no_answer_is_taken_for_another_kind_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "stop_on_signals", lambda *_, **__: None)
    app = FastAPI(openapi_url=None)
    app.get("/")(lambda: "well")
    app.get("/fails")(lambda: 1 / 0)
    server = web.WebServer(app, "127.0.0.1:0", "service")
    thread = threading.Thread(target=server.serve_until_stopped)
    thread.start()
    wait_until("the service", lambda: server.started)
    host, port = server.listener.getsockname()
    for path, status in (("/", 200), ("/nothing", 404), ("/fails", 500)):
        answer = httpx.get(f"http://{host}:{port}{path}")
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (status, "nosniff")
    server.stop()
    thread.join()
