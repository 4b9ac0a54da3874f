"""An erasure takes matching rows out of branch `live` at once."""

from __future__ import annotations

from millrace_warehouse.context import Context
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import Live
from tests.unit.warehouse.erase.scene import MEMBER, TEN, Scene, holding

CONDITION = "PageView/erasures/4711.where"


def live_members(s: Scene) -> list[int | None]:
    rows = s.table.scan(selected_fields=("memberId",)).use_ref(LIVE).to_arrow()
    return sorted(rows["memberId"].to_pylist(), key=str)


def test_rows_that_wait_and_published_rows_are_gone_and_no_file_holds_them(scene: Scene) -> None:
    live = Live(Context(storage=scene.storage, catalog=scene.catalog), scene.stored)
    scene.publish(TEN)
    live.follow(on=True)
    scene.send(MEMBER, 1)
    scene.load_new()
    live.follow()
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
