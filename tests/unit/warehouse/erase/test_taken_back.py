"""A publication between an erasure's editions and its own publication also has the auditor's new verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from millrace_warehouse.history.hours import start_of
from millrace_warehouse.history.manifest import HourVerdict, Publication
from millrace_warehouse.publish.gate import Judgement
from tests.counted import Counted
from tests.unit.warehouse.erase.scene import ELEVEN, TEN, TWELVE, Scene, complete
from tests.unit.warehouse.memory_log import TOPIC


class Killed(BaseException):
    pass


def erase_until(scene: Scene, edition: int) -> None:
    """Erase rows, and die once so many of the two editions are made in this run."""
    made: list[str] = []

    def kill(step: str) -> None:
        made.extend([step] if step == "edition made" else [])
        if len(made) == edition:
            raise Killed

    with pytest.raises(Killed):
        scene.erase(id="4711", progress=kill)


def auditor(
    scene: Scene, verdict: str, changed: Sequence[str] = (), asked: Callable[[], Any] = lambda: None
) -> Counted:
    """Return an auditor with this verdict on TEN, which has changed the final verdicts of some hours."""

    def verdict_of(topic: str, hour: str) -> HourVerdict:
        asked()
        return HourVerdict(verdict=verdict if hour == TEN else "complete", reasons=["as the auditor says"])

    return Counted(scene.storage, verdict_of, [start_of(hour) for hour in changed])


def complete_hours(scene: Scene) -> tuple[str | None, str | None]:
    publication = scene.publish(unasked=True).publication
    assert publication is not None
    return publication.complete_from, publication.complete_until


def publish(scene: Scene, *named: str, auditor: Counted, **options: Any) -> Publication:
    publication = scene.publish(*named, auditor=auditor, **options).publication
    assert publication is not None
    return publication


@pytest.mark.parametrize("named", [(), (TEN,)])
def test_a_verdict_that_is_taken_back_is_withdrawn_beside_an_erasure_that_is_not_published(
    scene: Scene, named: Sequence[str]
) -> None:
    scene.publish(TEN, ELEVEN, proven=True)
    assert complete_hours(scene) == (TEN, "2015-05-17T13")
    erase_until(scene, 2)
    after = publish(
        scene, *named, proven=not named, auditor=auditor(scene, "incomplete", () if named else (TEN,))
    )
    changes = {change.hour: (change.kind, change.verdict.verdict) for change in after.changes}
    assert changes[TEN] == ("erase", "incomplete")
    assert changes[ELEVEN] == ("erase", "complete")
    scene.erase(id="4711")
    assert complete_hours(scene) == (TEN, TEN)
    assert scene.problems(rows=True) == []


def test_a_verdict_that_was_taken_back_stays_so_when_an_erasure_goes_on_meanwhile(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN, TWELVE, proven=True)
    erase_until(scene, 1)
    goes_on = iter([lambda: erase_until(scene, 1)])
    after = publish(
        scene,
        proven=True,
        auditor=auditor(scene, "incomplete", (TEN,), lambda: next(goes_on, lambda: None)()),
    )
    assert after.loads.editions == {"1": 2, "2": 2}, "the second edition came while the auditor was asked"
    assert (after.complete_from, after.complete_until) == (TEN, TEN)


def test_an_incomplete_hour_that_loses_erased_rows_is_complete_only_if_the_auditor_counted_the_rest(
    scene: Scene,
) -> None:
    scene.publish(TEN, ELEVEN, verdict="incomplete")
    counted = auditor(scene, "complete").judge(TOPIC, [TEN, ELEVEN])

    class Stale(Counted):
        def judge(self, topic: str, hours: Sequence[str]) -> Mapping[str, Judgement]:
            return {hour: counted[hour] for hour in hours}

    erase_until(scene, 2)
    after = publish(scene, auditor=Stale(scene.storage, complete))
    assert {change.hour: (change.kind, change.verdict.verdict) for change in after.changes} == {
        TEN: ("erase", "pending"),
        ELEVEN: ("erase", "pending"),
    }
    again = publish(scene, proven=True, auditor=auditor(scene, "complete"))
    assert (again.complete_from, again.complete_until) == (TEN, "2015-05-17T13")
