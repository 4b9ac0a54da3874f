"""Duties of every reader: rounds in a turn, another turn when that is lost, and reporting its state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from millrace.errors import MillraceError
from millrace_audit.reader import rounds
from millrace_audit.reader.numbers import TierNumbers, serve
from millrace_audit.reader.rounds import TierReader
from millrace_audit.reports.turn_taker import Holder
from millrace_audit.reports.turns import Turn


class Taker:
    """Gives a new turn to whoever asks, behind the answers that are planned."""

    def __init__(self) -> None:
        self.lost = threading.Event()
        self.before: Turn | None = None
        self.taken = self.released = 0
        self.plan = list[Holder | MillraceError]()
        self.while_it_stands_by: Callable[[], object] = lambda: None

    def take(self) -> Turn | Holder:
        if self.plan:
            answer = self.plan.pop(0)
            if isinstance(answer, MillraceError):
                raise answer
            return answer
        self.lost.clear()
        self.taken += 1
        return Turn(number=self.taken, secret=b"s", cluster_id="c", host="h", pid=1, began=0)

    def wait_until_free(self, stop: threading.Event, timeout_s: float) -> None:
        self.while_it_stands_by()

    def counted_elsewhere(self) -> Turn | None:
        return self.before

    def release(self) -> None:
        self.released += 1


class Counting(TierReader):
    """Does what its plan says, a round after the other, then stops."""

    def __init__(self, taker: Any, *plan: str, may_replace: bool = False) -> None:
        stop = threading.Event()
        super().__init__(taker, TierNumbers("t"), stop, interval_ms=0, may_replace=may_replace)
        self.plan, self.said = list(plan), list[str]()

    def check_place(self) -> None:
        self.said.append("checked")
        super().check_place()

    def refusal(self, newest: Turn) -> str:
        return f"{newest.cluster_id} was counted before"

    def prepare(self, turn: Turn) -> None:
        self.said.append(f"turn {turn.number}")
        self.follow_plan("cannot begin")

    def count_once(self) -> None:
        self.said.append(f"counted in {self._numbers.turn}, trouble {self._numbers.trouble}")
        self.follow_plan("fails", "is lost", "")

    def follow_plan(self, *here: str) -> None:
        if self.plan and self.plan[0] in here:
            what = self.plan.pop(0)
            if what == "is lost":
                self._taker.lost.set()
            elif what:
                raise MillraceError(what)
        if not self.plan:
            self._stop.set()

    def disconnect(self) -> None:
        self.said.append("disconnected")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "RETRY_S", 0)


def test_a_reader_keeps_its_turn_over_what_fails_and_takes_another_when_it_is_lost() -> None:
    taker, ready = Taker(), list[str]()
    reader = Counting(taker, "cannot begin", "", "fails", "is lost", "")
    reader.run(lambda: ready.append("ready"))
    assert reader.said == [
        "checked",
        "turn 1",
        "checked",
        "turn 2",
        "counted in 2, trouble cannot begin",
        "counted in 2, trouble None",
        "counted in 2, trouble fails",
        "checked",
        "turn 3",
        "counted in 3, trouble None",
        "disconnected",
    ]
    assert (ready, taker.released) == (["ready"], 1)


def test_a_reader_that_stands_by_is_well_again_once_it_can_look_who_counts() -> None:
    taker = Taker()
    taker.plan = [Holder("h", 1), MillraceError("ZooKeeper does not answer"), Holder("h", 1)]
    reader, seen = Counting(taker), list[list[str]]()
    taker.while_it_stands_by = lambda: seen.append(reader._numbers.troubles())
    reader.run(lambda: None)
    assert seen == [[], []]


@pytest.mark.parametrize("may_replace", [False, True])
def test_what_was_not_counted_before_is_counted_only_if_it_may_take_its_place(may_replace: bool) -> None:
    taker = Taker()
    taker.before = Turn(number=0, secret=b"s", cluster_id="another", host="h", pid=1, began=0)
    reader = Counting(taker, may_replace=may_replace)
    if may_replace:
        reader.check_place()
    else:
        with pytest.raises(MillraceError, match="another was counted before"):
            reader.check_place()


def test_a_reader_says_at_healthz_why_it_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = TierNumbers("t")
    url = serve(numbers, "127.0.0.1:0")
    answer = httpx.get(f"{url}/healthz")
    assert (answer.status_code, answer.json()["healthy"], answer.json()["troubles"]) == (200, True, [])
    numbers.turn, numbers.heartbeat_at = 3, 1000.0
    monkeypatch.setattr(time, "time", lambda: 1061.0)
    numbers.trouble = "no broker answers"
    answer = httpx.get(f"{url}/healthz")
    assert answer.status_code == 503
    assert answer.json()["troubles"] == ["no broker answers", "no heartbeat was published for 61 s"]
    assert 'millrace_audit_reader_turn{tier="t"} 3.0' in httpx.get(f"{url}/metrics").text
