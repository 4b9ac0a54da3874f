"""Clean windows of `make fault-audit` when what they run on fails: the run ends, and says why."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from millrace.errors import MillraceError
from tests.trials.faultaudit.clean import CleanWindows


class Producer:
    """Nobody answers it."""

    def send(self, *_: Any, **__: Any) -> None:
        raise MillraceError("no broker answers")


class Load:
    """It waits until it is killed."""

    def __init__(self) -> None:
        self._killed = threading.Event()
        self.lines: list[str] = []

    def kill(self) -> None:
        self._killed.set()

    def wait(self, *, timeout_s: float) -> int:
        assert self._killed.wait(timeout_s)
        return -9


class Place:
    """A place whose one process never returns anything."""

    names = ("zookeeper",)
    auditor_url = "http://127.0.0.1:1"

    def producer(self, *_: Any, **__: Any) -> Producer:
        return Producer()

    def start_load(self, topic: str) -> Load:
        return Load()

    def kill(self, name: str) -> None:
        pass

    def restart(self, name: str) -> None:
        raise AssertionError(f"{name} ended before it was ready")


def test_a_process_that_cannot_be_started_again_ends_the_run_with_its_reason() -> None:
    run = CleanWindows(Place(), 3, random.Random(1), lambda text: None)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="zookeeper ended before it was ready"):
        run.run()
