"""Cases of the procedures that docs/deployment.md prints, typed from the page."""

from __future__ import annotations

from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE
from tests.integration.faults.traffic import run_until_stored
from tests.trials.faultaudit.row import HOME
from tests.trials.faultrestore.brokers import MORE, go_on_without, numbered
from tests.trials.faultrestore.operator import Operator
from tests.trials.faultrestore.scene import EVENTS, Copy, Scene
from tests.trials.faultrestore.warehouse import (
    GONE,
    check_published_complete,
    copy_behind_the_first_of_two_loads,
)


def a_zookeeper_restored_by_the_page_loses_nothing(scene: Scene) -> None:
    operator = Operator(scene.place)
    with numbered(scene, replicas=3, minimum=2) as traffic:
        backup = operator.backs_up()
        scene.place.stop(f"{HOME}-3")
        go_on_without(traffic, 3)
        data = scene.place.folder / f"{HOME}-zookeeper" / "version-2"
        Copy(data, backup / "zookeeper", scene).count()
        operator.restores("ZooKeeper")
        run_until_stored(traffic.producers, MORE)


def an_auditors_database_restored_by_the_page_says_again_what_it_said(scene: Scene) -> None:
    operator = Operator(scene.place)
    scene.stage.begin(batches=2)
    scene.stage.await_tier(OFFLINE, 20)
    backup = operator.backs_up()
    scene.stage.go_on(2)
    scene.stage.end()
    scene.stage.load()
    scene.await_complete()
    with scene.watched() as watch:
        Copy(scene.place.database, backup / "auditor.db", scene).count()
        operator.restores("the auditor's database")
        scene.await_complete()
    watch.check_no_alarm()


def a_warehouse_restored_by_the_page_is_complete_again(scene: Scene) -> None:
    copy = copy_behind_the_first_of_two_loads(scene, is_published=True)
    check_published_complete(scene)
    copy.put_back()
    scene.stage.await_says(GONE)
    Operator(scene.place).restores("the warehouse")
    scene.stage.await_tier(WAREHOUSE, EVENTS)
    scene.stage.await_tier(TABLE, EVENTS)
    scene.await_complete()
    check_published_complete(scene)
