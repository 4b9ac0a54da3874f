"""Loads read again after a fix: the next edition of exactly the same offsets, and what hours make of it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from millrace_warehouse.table.publish import publish_hours, publish_late_hours
from millrace_warehouse.table.revisions import newest_revisions, read_revision
from millrace_warehouse.table.sources import hours_with_news

from millrace.errors import MillraceError
from millrace_warehouse.history.editions import read_edition
from millrace_warehouse.history.manifest import LoadManifest
from millrace_warehouse.load.reload import ReloadRun, loads_of, reload_topic
from millrace_warehouse.storage.filesystem import LocalFilesystem
from millrace_warehouse.verify import verify
from tests.unit.warehouse.interleaved import HOURS, Scenario, later_event, moved_event
from tests.unit.warehouse.memory_log import HOUR, START, TOPIC, event, no_progress

TEN, ELEVEN, TWELVE, ONE = HOURS


@pytest.fixture
def scene(tmp_path: Path) -> Scenario:
    """Load 1: two plain rows at ten, one at ten that belongs to twelve. Load 2: only a rejected record."""
    scene = Scenario(tmp_path, random.Random(1))
    scene.log.append(0, [event(0, START), event(1, START), moved_event(2, START, START + 2 * HOUR)])
    scene._load(LocalFilesystem(str(tmp_path)))
    scene.log.append(1, [later_event(3, START + HOUR)])
    scene._load(LocalFilesystem(str(tmp_path)))
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
    scene.fixed = True
    return scene


def fs_of(scene: Scenario) -> LocalFilesystem:
    return LocalFilesystem(str(scene.folder))


def run_of(
    scene: Scenario, run_id: str = "again", progress: Callable[[str], None] = no_progress
) -> ReloadRun:
    run = scene.reload_run(fs_of(scene))
    writing = dataclasses.replace(run.writing, run_id=run_id, progress=progress)
    return dataclasses.replace(run, writing=writing)


def rows_by_hour(scene: Scenario) -> dict[str, tuple[int, int]]:
    """Hour -> (revision, rows)."""
    return {
        r.manifest.hour: (r.manifest.revision, r.manifest.rows) for r in newest_revisions(fs_of(scene), TOPIC)
    }


def problems(scene: Scenario) -> list[str]:
    return [p for report in verify(fs_of(scene), TOPIC, None, no_progress) for p in report.problems]


def test_an_edition_reads_the_same_offsets_and_names_what_it_replaces_and_why(scene: Scenario) -> None:
    one, two = reload_topic(run_of(scene), TOPIC, [1, 2])
    assert (one.edition, one.rows_before, one.rows, one.hours) == (2, 3, 3, {TEN: 2, TWELVE: 1})
    assert (two.rows_before, two.rejected_before, two.rows, two.rejected) == (0, 1, 1, 0)
    first, second = (read_edition(fs_of(scene), TOPIC, 2, edition) for edition in (1, 2))
    assert (second.previous, second.reason) == (first.sha256, "a test")
    assert [(p.start, p.end, p.read) for p in second.partitions] == [
        (p.start, p.end, p.read) for p in first.partitions
    ]
    assert problems(scene) == []
    loads, _ = verify(fs_of(scene), TOPIC, None, no_progress)
    assert loads.rows == one.rows + two.rows, "what an edition replaces does not count"


def test_rows_move_to_the_hours_they_belong_to_and_new_ones_come(scene: Scenario) -> None:
    assert rows_by_hour(scene) == {TEN: (1, 3)}
    reload_topic(run_of(scene), TOPIC, [1, 2])
    assert hours_with_news(fs_of(scene), TOPIC, "run") == [TEN]
    publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
    assert rows_by_hour(scene) == {TEN: (2, 2), ELEVEN: (1, 1), TWELVE: (1, 1)}
    assert read_revision(fs_of(scene), TOPIC, TEN, 2).manifest.base == 1
    assert problems(scene) == []


def test_an_hour_that_loses_all_its_rows_gets_a_revision_without_any(tmp_path: Path) -> None:
    scene = Scenario(tmp_path, random.Random(1))
    scene.log.append(0, [moved_event(0, START, START + HOUR), event(1, START + HOUR)])
    scene._load(fs_of(scene))
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
    scene.fixed = True
    reload_topic(run_of(scene), TOPIC, [1])
    results = publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    assert [(each.hour, each.revision, each.rows) for each in results] == [(TEN, 2, 0), (ELEVEN, 2, 2)]
    assert scene.visible() == {(ELEVEN, 0): 1, (ELEVEN, 1): 1}
    assert publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC) == []
    assert problems(scene) == []


def test_the_same_run_does_not_read_again_what_it_has_read_and_another_one_does(scene: Scenario) -> None:
    reload_topic(run_of(scene), TOPIC, [1])
    (again,) = reload_topic(run_of(scene), TOPIC, [1])
    assert (again.edition, again.published) == (2, False)
    (other,) = reload_topic(run_of(scene, "another"), TOPIC, [1])
    assert (other.edition, other.published) == (3, True)
    publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    assert [part.edition for part in read_revision(fs_of(scene), TOPIC, TEN, 2).manifest.loads] == [3]
    assert problems(scene) == []


def test_the_loser_of_a_race_for_an_edition_reads_again_as_the_next_one(scene: Scenario) -> None:
    raced: list[bool] = []

    def overtaken(step: str) -> None:
        if step == "verified" and not raced:
            raced.append(True)
            reload_topic(run_of(scene, "faster"), TOPIC, [1])

    (result,) = reload_topic(run_of(scene, progress=overtaken), TOPIC, [1])
    assert (result.edition, result.published) == (3, True)
    assert problems(scene) == []


@pytest.mark.parametrize("step", ["published", "recorded"])
def test_what_a_crash_behind_the_rename_left_undone_is_made_good_by_the_next_run(
    scene: Scenario, step: str
) -> None:
    class Killed(BaseException):
        pass

    def killed(at: str) -> None:
        if at == step:
            raise Killed

    with pytest.raises(Killed):
        reload_topic(run_of(scene, progress=killed), TOPIC, [1])
    assert scene.counted == {}
    reload_topic(run_of(scene, "another"), TOPIC, [])
    assert scene.counted == {1: 2}
    assert problems(scene) == []


def test_the_auditor_is_told_what_every_edition_holds(scene: Scenario) -> None:
    told: list[Sequence[LoadManifest]] = []
    run = run_of(scene)
    run = dataclasses.replace(run, writing=dataclasses.replace(run.writing, publish_counts=told.append))
    reload_topic(run, TOPIC, [2])
    (editions,) = told
    assert [(manifest.load, manifest.edition, manifest.rows) for manifest in editions] == [
        (2, 1, 0),
        (2, 2, 1),
    ]


def test_offsets_that_have_expired_are_refused_and_named_before_anything_is_read(scene: Scenario) -> None:
    scene.log.expire(0, 1)
    end = scene.log.partitions[0].high_watermark
    with pytest.raises(MillraceError, match=rf"load=0000000001 needs PageView-0 offsets \[0, {end}\)"):
        reload_topic(run_of(scene), TOPIC, [1, 2])
    assert not (scene.folder / TOPIC / "_reloads" / "load=0000000002").exists()
    (two,) = reload_topic(run_of(scene), TOPIC, [2])
    assert two.published


def test_a_log_that_has_lost_something_since_gives_no_edition(scene: Scenario) -> None:
    scene.log.append_events(0, [START] * 30)
    scene._load(fs_of(scene))
    first, last = scene.log.lose(0, 2)
    with pytest.raises(MillraceError, match=rf"offsets \[{first}, {last}\) were there and are gone"):
        reload_topic(run_of(scene), TOPIC, [3])
    assert not list((scene.folder / TOPIC / "_reloads" / "_staging").iterdir())


def test_what_was_a_gap_when_the_load_was_made_may_stay_one(tmp_path: Path) -> None:
    scene = Scenario(tmp_path, random.Random(1), fixed=True)
    scene.log.append_events(0, [START] * 60)
    scene.log.expire(0, 1)
    scene.log.lose(0, 2)
    from millrace_warehouse.load.load import load_topic
    from tests.unit.warehouse.memory_log import load_run

    load_topic(load_run(scene.log, tmp_path, accept_gaps=True, pin=scene.pin), TOPIC)
    (result,) = reload_topic(run_of(scene), TOPIC, [1])
    assert (result.rows, result.rows_before) == (40, 40)
    assert problems(scene) == []


def test_the_loads_of_an_hour_are_those_with_its_rows_and_those_whose_rejected_records_may_be_of_it(
    scene: Scenario,
) -> None:
    scene.fixed = False
    times = [START, START + 2 * HOUR]
    scene.log.append(0, [*(event(10 + n, at) for n, at in enumerate(times)), later_event(12, START + HOUR)])
    scene._load(fs_of(scene))
    assert loads_of(fs_of(scene), TOPIC, [TEN]) == [1, 2, 3]
    assert loads_of(fs_of(scene), TOPIC, [ELEVEN]) == [2, 3], "2 has no rows at all, 3 has some on both sides"
    assert loads_of(fs_of(scene), TOPIC, [ONE]) == [2]


def test_loads_that_are_not_there_are_one_clear_line(scene: Scenario) -> None:
    with pytest.raises(MillraceError, match="PageView has no load=0000000009: its loads are 1 to 2"):
        reload_topic(run_of(scene), TOPIC, [1, 9])


def test_an_edition_that_is_gone_stops_the_hours_instead_of_bringing_old_rows_back(scene: Scenario) -> None:
    reload_topic(run_of(scene), TOPIC, [1])
    folder = scene.folder / TOPIC / "_reloads" / "load=0000000001" / "edition=0002"
    folder.rename(scene.folder / "elsewhere")
    with pytest.raises(MillraceError, match="edition=0002 was published and is gone"):
        publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
    assert any("edition=0002 is missing" in problem for problem in problems(scene))


def test_an_edition_that_was_edited_is_named(scene: Scenario) -> None:
    reload_topic(run_of(scene), TOPIC, [1])
    path = scene.folder / TOPIC / "_reloads" / "load=0000000001" / "edition=0002" / "_manifest.json"
    path.write_text(path.read_text().replace('"a test"', '"no test"'))
    assert any("edition=0002: the manifest was edited" in problem for problem in problems(scene))


def test_an_edition_of_a_load_that_was_made_anew_is_not_taken_for_its_own(scene: Scenario) -> None:
    import shutil

    reload_topic(run_of(scene), TOPIC, [1])
    for name in ("load=0000000001", "load=0000000002"):
        shutil.rmtree(scene.folder / TOPIC / name)
        (scene.folder / TOPIC / "_ledger" / f"{name}.json").unlink()
    scene._load(fs_of(scene))
    with pytest.raises(MillraceError, match=r"replaces another load=0000000001 .* move this edition"):
        publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, HOURS)
