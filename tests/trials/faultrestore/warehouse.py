"""Cases of the warehouse: a topic's folder, and the catalog of its tables."""

from __future__ import annotations

from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import OFFLINE, TABLE, WAREHOUSE
from millrace_warehouse.publish.catalog import connect, table_identifier
from millrace_warehouse.storage import open_storage
from tests.trials.faultaudit.place import WAREHOUSE_READER
from tests.trials.faultaudit.stage import Says
from tests.trials.faultrestore.scene import EVENTS, HOUR, TOPIC, Copy, Scene, Wrong

GONE = Says(
    verdict=Verdict.INCOMPLETE,
    beside=Verdict.INCOMPLETE,
    reason=r"load 2 was counted with \d+ rows and is gone: the warehouse's newest load is 1",
)


def a_folder_that_is_put_back_at_rest_waits_until_its_lost_loads_are_replaced(scene: Scene) -> None:
    copy = copy_behind_the_first_of_two_loads(scene)
    with scene.stage.without(WAREHOUSE_READER):
        copy.put_back()
        _check_refused(scene)
    scene.stage.await_says(GONE)
    scene.place.load(TOPIC)
    _check_not_published_as_complete(scene)
    auditor = ("--auditor", scene.place.auditor_url)
    scene.place.millrace("audit", TOPIC, "--replace-loads", "--reason", "its disk is lost", *auditor)
    scene.await_complete()
    check_published_complete(scene)


def a_folder_that_is_put_back_at_once_behind_its_publication_is_mended_by_a_newer_copy(scene: Scene) -> None:
    copy = copy_behind_the_first_of_two_loads(scene)
    check_published_complete(scene)
    newer = scene.copy(scene.place.warehouse / TOPIC)
    copy.put_back()
    _check_refused(scene)
    scene.stage.await_says(GONE)
    newer.put_back()
    _verify(scene)
    scene.await_complete()
    check_published_complete(scene)


def a_catalog_that_is_put_back_is_refused_until_its_table_is_rebuilt(scene: Scene) -> None:
    scene.stage.begin(batches=2)
    scene.stage.await_tier(OFFLINE, 20)
    scene.place.load(TOPIC)
    publish = _publish(scene)
    scene.place.millrace(*publish)
    copy = scene.copy(scene.place.warehouse / "catalog.db")
    scene.stage.go_on(2)
    scene.stage.end()
    scene.stage.load()
    scene.stage.await_tier(WAREHOUSE, EVENTS)
    scene.place.millrace(*publish)
    assert _rows_in_table(scene) == EVENTS
    copy.put_back()
    assert _rows_in_table(scene) == 20
    assert "--rebuild" in scene.refused(*publish)
    scene.refused("verify", "--warehouse", str(scene.place.warehouse), TOPIC)
    scene.place.millrace(*publish, "--rebuild")
    _verify(scene)
    scene.stage.await_tier(TABLE, EVENTS)
    scene.await_complete()
    check_published_complete(scene)


def copy_behind_the_first_of_two_loads(scene: Scene, *, is_published: bool = False) -> Copy:
    """The folder with the first load only; both are counted and their windows are complete."""
    scene.stage.begin(batches=2)
    scene.stage.await_tier(OFFLINE, 20)
    scene.place.load(TOPIC)
    scene.stage.await_tier(WAREHOUSE, 20)
    if is_published:
        scene.place.millrace(*_publish(scene))
    copy = scene.copy(scene.place.warehouse / TOPIC)
    scene.stage.go_on(2)
    scene.stage.end()
    scene.stage.load()
    scene.await_complete()
    assert "loads/0000000002.json" in copy.lacks()
    return copy


def _publish(scene: Scene) -> tuple[str, ...]:
    """Words of the command that publishes the hour, whatever the auditor says of it."""
    return ("publish", TOPIC, "--hour", HOUR, "--unasked", "--warehouse", str(scene.place.warehouse))


def _check_refused(scene: Scene) -> None:
    """Every command that asks the auditor refuses the folder with the name of the lost load."""
    place, gone = scene.place, "loads/0000000002.json was counted by the auditor and is gone"
    auditor = ("--auditor", place.auditor_url)
    cluster = ("--bootstrap", place.clusters[OFFLINE].bootstrap, "--registry", place.registry)
    assert gone in scene.refused("load", TOPIC, "--warehouse", str(place.warehouse), *cluster, *auditor)
    assert gone in scene.refused("verify", "--warehouse", str(place.warehouse), TOPIC, *auditor)
    _check_not_published_as_complete(scene)


def _check_not_published_as_complete(scene: Scene) -> None:
    changes = scene.publish_proven()
    if any(change["verdict"]["verdict"] in (Verdict.COMPLETE, Verdict.CARRIED) for change in changes):
        raise Wrong(f"published as complete, and rows are gone: {changes}")


def check_published_complete(scene: Scene) -> None:
    """The hour is published as complete with every event, and `verify` finds nothing."""
    scene.publish_proven()
    assert _rows_in_table(scene) == EVENTS
    scene.stage.await_tier(TABLE, EVENTS)
    scene.await_complete()
    _verify(scene)


def _verify(scene: Scene) -> None:
    """Nothing is wrong any more; the auditor forgets what an earlier `verify` found."""
    verify = (TOPIC, "--rows", "--auditor", scene.place.auditor_url)
    scene.place.millrace("verify", "--warehouse", str(scene.place.warehouse), *verify)


def _rows_in_table(scene: Scene) -> int:
    storage = open_storage(str(scene.place.warehouse))
    with connect(storage) as catalog:
        return len(catalog.load_table(table_identifier(TOPIC)).scan().to_arrow())
