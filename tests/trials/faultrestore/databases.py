"""Cases of the auditor's database: it is filled again from the audit topics, and says what it said before."""

from __future__ import annotations

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE
from tests.trials.faultaudit.stage import Says
from tests.trials.faultrestore.scene import Scene


def an_auditors_database_that_is_put_back_at_rest_says_again_what_it_said(scene: Scene) -> None:
    missing = Says(verdict=Verdict.INCOMPLETE, findings=[("missing", WAREHOUSE, "10-19")])
    scene.stage.begin(batches=2)
    scene.stage.await_tier(OFFLINE, 20)
    copy = scene.copy(scene.place.database)
    scene.stage.go_on(2)
    scene.stage.end()
    scene.stage.load()
    scene.beside.traffic()
    scene.beside.load("drop")
    scene.await_complete()
    scene.beside.await_says(missing)
    with scene.watched() as watch:
        with scene.stage.without("auditor"):
            copy.put_back()
        scene.await_complete()
        scene.beside.await_says(missing)
    watch.check_no_alarm()


def an_auditors_database_that_is_put_back_at_once_under_traffic_raises_no_alarm(scene: Scene) -> None:
    scene.stage.begin(batches=1)
    scene.stage.await_tier(OFFLINE, 10)
    copy = scene.copy(scene.place.database)
    scene.stage.go_on(1, 2)
    scene.stage.await_tier(OFFLINE, 20)
    with scene.watched() as watch:
        scene.place.kill("auditor")
        copy.put_back()
        scene.stage.go_on(2, 3)
        scene.place.start("auditor")
        scene.stage.go_on(3)
        scene.stage.end()
        scene.place.ready("auditor")
        scene.stage.load()
        scene.await_complete()
    watch.check_no_alarm()
