"""Rows of one member leave loads, table, snapshots and bounds; counts close, and nothing brings them back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.erase import purge
from millrace_warehouse.history import layout, ledger
from millrace_warehouse.history.manifest import ErasedRows, LoadManifest, encode, sealed
from millrace_warehouse.publish import publisher
from millrace_warehouse.publish.table import find_table
from millrace_warehouse.verify.check import TopicReport
from tests.crashing import KILLED, exit_at, exit_code
from tests.unit.warehouse.erase import scene as scenes
from tests.unit.warehouse.erase.scene import ELEVEN, MEMBER, NAME, OTHER, TEN, TWELVE, Scene, holding
from tests.unit.warehouse.memory_log import TOPIC

CONDITION = f"{TOPIC}/erasures/4711.where"
STEPS = (
    "looked at load 2",
    "erasure recorded",
    "committed",  # the load that fences
    "fenced",
    "prepared:2",
    "edition made",
    "edition made:2",
    "publication written",
    "committed:5",  # the publication
    "recorded",
    "published",
    "done",
    "snapshots forgotten",
    "written down",
    "deleted",
    "deleted:5",
)
FEW = ("erasure recorded", "edition made", "committed:5", "snapshots forgotten")
"""`make soak` kills at the others, too."""


def assert_gone(scene: Scene) -> TopicReport:
    """Nothing but the condition holds the member, and everything else is proven."""
    assert holding(scene.folder, MEMBER) == [CONDITION]
    report = scene.verify(rows=True)
    assert report.problems == []
    return report


def erase_and_die(folder: Path, step: str) -> None:
    for scene in scenes.scene(folder):
        scene.erase(id="4711", rejected=True, progress=exit_at(step))


def test_published_rows_leave_the_table_the_files_and_every_bound(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    assert len(holding(scene.folder, MEMBER)) > 4
    done = scene.erase(id="4711")
    assert (done.rows, dict(done.hours), dict(done.loads)) == (4, {TEN: 3, ELEVEN: 1}, {"1": 3, "2": 1})
    assert scene.members() == [OTHER, OTHER, OTHER, None, None]
    assert assert_gone(scene).published == 5
    again = scene.erase(id="4711")
    assert again.message.startswith("nothing to do")
    assert again.rows == 4
    assert scene.publish(TWELVE).publication is not None
    assert scene.members() == [OTHER, OTHER, OTHER, OTHER, None, None]
    assert assert_gone(scene).rows == 6


def test_a_table_that_another_run_makes_and_fills_while_an_erasure_looks_for_it_is_read_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(TEN, ELEVEN)
    looks = [0]

    def made_meanwhile(catalog: Catalog, topic: str) -> Table | None:
        looks[0] += 1
        return find_table(catalog, topic) if looks[0] > 1 else None

    monkeypatch.setattr(purge, "find_table", made_meanwhile)
    scene.erase(id="4711")
    assert_gone(scene)


def test_a_complete_hour_stays_complete_and_its_change_names_the_erasure(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    before = scene.publish().publication
    scene.erase(id="4711", verdict_of=lambda *_: pytest.fail("nobody needs to be asked"))
    after = scene.publish().publication
    assert before is not None
    assert after is not None
    assert (after.complete_from, after.complete_until) == (before.complete_from, before.complete_until)
    changes = {change.hour: change for change in after.changes}
    assert {change.kind for change in changes.values()} == {"erase"}
    assert changes[TEN].removed - changes[TEN].added == 3
    assert "2 rows of load 1 were erased by 4711" in changes[TEN].verdict.reasons


def test_a_complete_hour_whose_rows_do_not_close_after_an_erasure_is_complete_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(TEN, ELEVEN)
    problems = {TEN: ["a file is damaged"]}
    monkeypatch.setattr(
        publisher, "unclosed", lambda *of: {hour: problems[hour] for hour in of[1] if hour in problems}
    )
    scene.erase(id="4711", verdict_of=lambda *_: pytest.fail("nobody needs to be asked"))
    after = scene.publish().publication
    assert after is not None
    verdicts = {change.hour: change.verdict for change in after.changes}
    assert (verdicts[TEN].verdict, verdicts[ELEVEN].verdict) == ("incomplete", "complete")
    assert list(verdicts[TEN].reasons) == ["a file is damaged"]


def test_rows_that_nobody_has_published_are_erased_before_they_ever_are(scene: Scene) -> None:
    scene.erase(id="4711")
    assert_gone(scene)
    scene.publish(TEN, ELEVEN, TWELVE)
    assert MEMBER not in scene.members()
    assert_gone(scene)


def test_rows_that_only_a_compacted_file_has_are_erased(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.compact()
    scene.forget_snapshots()
    scene.expire()
    assert len(scene.data_files()) < 4
    scene.erase(id="4711")
    assert MEMBER not in scene.members()
    assert_gone(scene)


def test_what_the_log_still_holds_comes_back_by_no_load_and_no_reload(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.erase(id="4711")
    scene.send(MEMBER, hour=1, times=2)  # late, or from a cluster that is mirrored later
    scene.send(OTHER, hour=1)
    scene.load_new()
    newest = layout.newest_load(scene.stored)
    assert newest is not None
    assert [(rows.erasure, rows.hour, rows.rows) for rows in newest.erased] == [("4711", ELEVEN, 2)]
    scene.reload(1, 2)
    scene.publish()
    assert MEMBER not in scene.members()
    assert len(scene.members()) == 7
    scene.publish(rebuild=True)
    assert len(scene.members()) == 7
    assert scene.problems(rows=True) == []


def test_a_load_that_was_running_begins_again_and_leaves_the_rows_out(scene: Scene) -> None:
    scene.send(MEMBER, hour=2)
    scene.send(OTHER, hour=2)
    begun: list[str] = []

    def erase_meanwhile(step: str) -> None:
        if step == "written" and not begun:
            begun.append(step)
            scene.erase(id="4711")

    scene.load_new(progress=erase_meanwhile)
    assert begun
    scene.publish(TEN, ELEVEN, TWELVE)
    assert MEMBER not in scene.members()
    assert_gone(scene)


def test_a_reload_that_was_running_leaves_the_rows_out(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    begun: list[str] = []

    def erase_meanwhile(step: str) -> None:
        if step == "written" and not begun:
            begun.append(step)
            scene.erase(id="4711")

    scene.reload(1, progress=erase_meanwhile)
    assert begun
    scene.publish(TWELVE)
    assert MEMBER not in scene.members()
    assert scene.problems(rows=True) == []


def test_an_erasure_that_is_no_longer_in_force_lets_new_rows_in_and_forgets_its_condition(
    scene: Scene,
) -> None:
    scene.publish(TEN, ELEVEN, TWELVE)
    scene.erase(id="4711", until="2015-05-18T00:00:00.000Z")
    scene.send(MEMBER, hour=1)
    scene.load_new()
    scene.publish()
    assert scene.members().count(MEMBER) == 1
    scene.expire()
    assert not (scene.folder / CONDITION).exists()
    assert scene.problems(rows=True) == []
    assert scene.erase(id="4712").rows == 1
    assert MEMBER not in scene.members()


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    before = sorted(scene.folder.rglob("*"))
    would = scene.erase(dry_run=True)
    assert (would.done, would.rows, would.files, dict(would.hours)) == (False, 4, 4, {TEN: 3, ELEVEN: 1})
    assert would.columns_not_everywhere == []
    assert sorted(scene.folder.rglob("*")) == before


def test_a_condition_that_matches_every_row_needs_all_rows(scene: Scene) -> None:
    everything = "memberId IS NULL OR memberId IS NOT NULL"
    for where in (everything, "true"):
        with pytest.raises(ConfigError, match=r"matches all 10 rows of PageView.*--all-rows"):
            scene.erase(where)
    assert not (scene.topic / "erasures").exists()
    assert scene.erase(everything, all_rows=True).rows == 10
    assert scene.problems(rows=True) == []


def test_a_name_stands_for_one_condition(scene: Scene) -> None:
    scene.erase(id="4711")
    with pytest.raises(MillraceError, match="another condition: choose another --id"):
        scene.erase("memberId = 1", id="4711")
    assert scene.erase().id == "4711", "the same condition without a name is the same erasure"


def test_a_second_erasure_takes_its_own_rows_and_the_first_one_stays_named(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    scene.erase(id="first")
    second = scene.erase(f"memberId = {OTHER}", id="second")
    assert dict(second.loads) == {"1": 3, "2": 1}
    assert scene.members() == [None, None]
    assert scene.problems(rows=True) == []
    manifest = layout.read_edition(scene.stored, 1, 3)
    assert {rows.erasure: rows.rows for rows in manifest.erased if rows.hour == TEN} == {
        "first": 2,
        "second": 3,
    }


def forge(scene: Scene, change: Callable[[LoadManifest], LoadManifest]) -> None:
    """Change an erasure's edition, its hash and the ledger, as whoever may write all of them can."""
    path = layout.edition_path(TOPIC, 1, 2)
    forged = sealed(change(layout.read_edition(scene.stored, 1, 2)))
    for each in (path, layout.ledger_path(path)):
        (scene.folder / each).unlink()
    assert scene.storage.create(path, encode(forged))
    ledger.add_to_ledger(scene.storage, path, forged)


def test_a_forged_erasure_whose_count_does_not_close_is_found(scene: Scene) -> None:
    scene.erase(id="4711")

    def one_more(manifest: LoadManifest) -> LoadManifest:
        first, *rest = manifest.erased
        parts = [
            dataclasses.replace(part, read=part.read + 1, filtered=part.filtered + 1)
            if part.partition == first.partition
            else part
            for part in manifest.partitions
        ]
        erased = [dataclasses.replace(first, rows=first.rows + 1), *rest]
        return dataclasses.replace(manifest, partitions=parts, erased=erased)

    forge(scene, one_more)
    assert any(
        "rows of" in problem and "are gone, erasure 4711 states" in problem for problem in scene.problems()
    )


def test_an_erasure_that_nobody_recorded_is_found(scene: Scene) -> None:
    scene.erase(id="4711")

    def unknown(manifest: LoadManifest) -> LoadManifest:
        erased = [
            ErasedRows(erasure="4712", partition=r.partition, hour=r.hour, rows=r.rows)
            for r in manifest.erased
        ]
        return dataclasses.replace(manifest, erases="4712", erased=erased)

    forge(scene, unknown)
    assert any("erasure 4712 took rows out, but is not recorded" in each for each in scene.problems())


def test_a_dry_run_of_an_erasure_that_was_cut_off_writes_nothing(scene: Scene) -> None:
    def cut_off(step: str) -> None:
        if step == "fenced":
            raise MillraceError("cut off")

    with pytest.raises(MillraceError, match="cut off"):
        scene.erase(id="4711", progress=cut_off)
    before = sorted(scene.folder.rglob("*"))
    would = scene.erase(id="4711", dry_run=True)
    assert (would.done, would.rows) == (False, 4)
    assert sorted(scene.folder.rglob("*")) == before


def test_branches_of_others_are_named(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    head = scene.table.current_snapshot()
    assert head is not None
    scene.table.manage_snapshots().create_branch(head.snapshot_id, "theirs").commit()
    done = scene.erase(id="4711")
    assert done.purged is not None
    left = [each.what for each in done.purged.left]
    assert any("branch theirs" in each for each in left), left
    assert any(CONDITION in each for each in left), left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "published"),
    [
        pytest.param(step, published, marks=[] if published and step in FEW else [pytest.mark.long])
        for step in STEPS
        for published in (True, False)
    ],
)
def test_an_erasure_that_is_killed_at_any_step_goes_on(tmp_path: Path, step: str, published: bool) -> None:
    for scene in scenes.scene(tmp_path / "w"):
        scenes.fill(scene)
        scene.send_unknown()
        scene.load_new()
        if published:
            scene.publish(TEN, ELEVEN)
    assert exit_code(erase_and_die, tmp_path / "w", step) in (0, KILLED)
    for scene in scenes.scene(tmp_path / "w"):
        scene.erase(id="4711", rejected=True)
        scene.publish(TEN, ELEVEN, TWELVE)
        assert scene.members() == [OTHER, OTHER, OTHER, OTHER, None, None]
        assert scene.problems(rows=True) == []
        taken = sum(
            rows.rows for load in (1, 2) for rows in layout.read_edition(scene.stored, load, 2).erased
        )
        assert taken == 4
        fences = [load for load in layout.loads_after(scene.stored, 0) if load.erases]
        assert len(fences) == 1
        assert holding(scene.folder, NAME) == []
        holding_it = holding(scene.folder, MEMBER)
        assert [path for path in holding_it if "/rows/" not in path and "/table/" not in path] == [CONDITION]
        assert scene.erase(id="4711").message.startswith("nothing to do")


def test_rows_that_came_back_are_named_by_verify(scene: Scene) -> None:
    scene.erase(id="4711")
    where = scene.folder / CONDITION
    where.write_text(f"memberId = {OTHER}")  # as if the erasure had left these
    assert scene.problems() == []
    assert any("rows that erasure 4711 matches" in each for each in scene.problems(rows=True))


def test_an_edition_that_an_erasure_cannot_have_seen_is_not_published(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    scene.erase(f"memberId = {OTHER} AND url = 'nobody'", id="4711")
    held = scene.topic / "erasures"
    held.rename(scene.folder / "away")
    scene.reload(1)  # as one that was begun before and made its edition after
    (scene.folder / "away").rename(held)
    with pytest.raises(MillraceError, match="edition 2 of load 1 of PageView was begun before erasure 4711"):
        scene.publish()
    assert any("was begun before erasure 4711" in each for each in scene.problems())


def test_the_erasure_again_heals_an_edition_that_the_first_cannot_have_seen(scene: Scene) -> None:
    scene.publish(TEN, ELEVEN)
    nobody = f"memberId = {OTHER} AND url = 'nobody'"
    scene.erase(nobody, id="4711")
    held = scene.topic / "erasures"
    held.rename(scene.folder / "away")
    scene.reload(1)
    (scene.folder / "away").rename(held)
    assert scene.erase(nobody, id="4712").message == "no row matched"
    scene.publish()
    assert scene.problems(rows=True) == []
