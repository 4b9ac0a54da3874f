"""A web service that does other work beside its application: it is whole, or it ends."""

from __future__ import annotations

import pytest

from millrace.errors import MillraceError
from millrace.service import web


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
