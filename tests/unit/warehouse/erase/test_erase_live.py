"""An erasure takes matching rows out of branch `live` at once, and deletes no other row's only copy."""

from __future__ import annotations

from pathlib import Path

from millrace_warehouse.context import Context
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import Live, follow_load, switch_off
from tests.unit.warehouse.erase import scene as scenes
from tests.unit.warehouse.erase.scene import (
    ELEVEN,
    MEMBER,
    MEMBERS,
    NAME,
    OTHER,
    TEN,
    TWELVE,
    UNKNOWN,
    Scene,
    holding,
)
from tests.unit.warehouse.publish.live_scenes import tail

CONDITION = "PageView/erasures/4711.where"


def live_members(s: Scene) -> list[int | None]:
    rows = s.table.scan(selected_fields=("memberId",)).use_ref(LIVE).to_arrow()
    return sorted(rows["memberId"].to_pylist(), key=str)


def live(s: Scene) -> Live:
    return Live(Context(storage=s.storage, catalog=s.catalog), s.stored)


def test_rows_that_wait_and_published_rows_are_gone_and_no_file_holds_them(scene: Scene) -> None:
    scene.publish(TEN)
    live(scene).follow(on=True)
    scene.send(MEMBER, 1)
    scene.load_new()
    live(scene).follow()
    shown = live_members(scene)
    result = scene.erase(id="4711")
    assert result.rows == shown.count(MEMBER) == 5
    assert live_members(scene) == [member for member in shown if member != MEMBER]
    assert set(scene.members()) < set(shown)
    assert len(scene.table.metadata.snapshots) == 2, "the heads of main and of the branch"
    assert holding(scene.folder, MEMBER) == [CONDITION]
    assert result.purged is not None
    assert [left for left in result.purged.left if "condition" not in left.what] == []
    assert scene.problems(rows=True) == []


def test_waiting_rows_that_the_newest_publication_knows_are_gone_and_no_file_holds_them(
    tmp_path: Path,
) -> None:
    for scene in scenes.scene(tmp_path / "w"):
        scene.send(OTHER, times=3)
        scene.load_new()
        scene.send(MEMBER, hour=2, times=2)
        scene.send(OTHER, hour=2)
        scene.load_new()
        scene.publish(TEN)
        live(scene).follow(on=True)
        result = scene.erase(id="4711")
        assert live_members(scene) == [OTHER] * 4
        assert holding(scene.folder, MEMBER) == [CONDITION]
        assert result.purged is not None
        assert [left for left in result.purged.left if "condition" not in left.what] == []
        scene.erase("memberId = 1", id="4712")
        assert live_members(scene) == [OTHER] * 4
        assert scene.problems(rows=True) == []


def test_waiting_rows_stay_on_the_disk_after_the_branch_was_switched_off(scene: Scene) -> None:
    scene.send(OTHER, hour=2, times=5)
    scene.load_new()
    scene.publish(TEN)
    assert follow_load(scene.stored, "", on=True) == []
    assert follow_load(scene.stored, "", on=False) == []
    scene.erase(id="4711")
    assert holding(scene.folder, MEMBER) == [CONDITION]
    assert scene.problems(rows=True) == []
    scene.publish(ELEVEN, TWELVE)
    assert scene.members() == [*[OTHER] * 9, None, None]


def test_rows_of_an_open_load_stay_on_the_disk_after_the_branch_was_switched_off(scene: Scene) -> None:
    scene.erase(id="4711")
    live(scene).follow(on=True)
    opened = tail(scene)
    assert live(scene).follow(opened) is not None
    assert follow_load(scene.stored, "", on=False) == []
    files = [entry.file_path.removeprefix(scene.storage.uri("")) for entry in opened.entries]
    assert all(map(scene.storage.files, files))
    scene.erase(id="4711")
    assert all(map(scene.storage.files, files)), "the load may still be made of them"


def test_an_edition_that_the_branch_still_names_keeps_its_bounds_and_is_listed(scene: Scene) -> None:
    def replaced() -> list[str]:
        purged = scene.erase(id="4711").purged
        assert purged is not None
        return [left.what for left in purged.left if "replaced editions" in left.what]

    scene.send_unknown()
    scene.send(OTHER, hour=2)
    scene.load_new()
    scene.publish(TEN)
    live(scene).follow(on=True)
    assert replaced() == []
    shown = live_members(scene)
    scene.log.schemas[UNKNOWN] = MEMBERS
    scene.reload(3)  # no publication knows it yet
    (left,) = replaced()
    assert "millrace publish PageView" in left
    switch_off(Context(storage=scene.storage, catalog=scene.catalog), scene.stored)
    live(scene).follow(on=True)
    assert live_members(scene) == shown, "the branch can be made again"
    scene.publish()
    assert replaced() == []
    assert holding(scene.folder, NAME) == []
    assert live_members(scene) == shown
    assert scene.problems(rows=True) == []
