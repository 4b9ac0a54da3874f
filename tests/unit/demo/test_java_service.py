"""A Java service of the demo that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_demo.java_service import JavaService


def send(service: JavaService, events: int) -> None:
    with service:
        for n in range(events):
            service.send("T", "T", {"n": n}, time_ms=n)


@pytest.mark.parametrize("events", [0, 100_000], ids=["before the first event", "while events are written"])
def test_a_service_that_ends_early_fails_the_demo_and_names_its_log(tmp_path: Path, events: int) -> None:
    (tmp_path / "logs").mkdir()
    service = JavaService(tmp_path, "127.0.0.1:1", "http://127.0.0.1:1", "web-1", tmp_path)
    log = tmp_path / "logs" / "web-1.log"
    with pytest.raises(MillraceError, match=f"^the Java service web-1 failed: see {log}$"):
        send(service, events)
    assert "JsonService" in log.read_text()
