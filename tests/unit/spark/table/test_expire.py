"""Expiry: only what is folded and whole goes, what was there stays provable, and life goes on without it."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import MillraceError
from millrace_spark.files.filesystem import LocalFilesystem
from millrace_spark.reload import reload_topic
from millrace_spark.table.expire import ExpireResult, ExpireRun, expire_topic
from millrace_spark.table.publish import publish_hours, publish_late_hours
from millrace_spark.table.revisions import read_revision
from millrace_spark.verify import verify
from tests.unit.spark.interleaved import HOURS, Scenario, later_event
from tests.unit.spark.memory_log import HOUR, START, TOPIC, event, no_progress

TEN, ELEVEN = HOURS[:2]
LOAD = "load=0000000001"


@pytest.fixture
def scene(tmp_path: Path) -> Scenario:
    """One load: two rows at ten, one at eleven, one rejected; nothing is published."""
    scene = Scenario(tmp_path, random.Random(1))
    rows = [event(0, START), event(1, START), event(2, START + HOUR), later_event(3, START)]
    scene.log.append(0, rows)
    scene._load(fs_of(scene))
    return scene


def fs_of(scene: Scenario) -> LocalFilesystem:
    return LocalFilesystem(str(scene.folder))


def expire(scene: Scenario, **changes: Any) -> ExpireResult:
    run = ExpireRun(fs=fs_of(scene), older_than_s=-1, reader_grace_s=-1, progress=no_progress)
    return expire_topic(dataclasses.replace(run, **changes), TOPIC)


def publish(scene: Scenario, *hours: str) -> None:
    publish_hours(scene.hourly_run(fs_of(scene)), TOPIC, hours or HOURS)


def late(scene: Scenario, *times_ms: int) -> None:
    scene.log.append_events(1, times_ms)
    scene._load(fs_of(scene))


def data(scene: Scenario, folder: str = LOAD) -> list[Path]:
    return sorted((scene.folder / TOPIC / folder).glob("date=*/hour=*/*.parquet"))


def reports(scene: Scenario) -> dict[str, Any]:
    found = verify(fs_of(scene), TOPIC, None, no_progress)
    assert [problem for report in found for problem in report.problems] == []
    return {report.table: report for report in found}


def test_a_load_with_an_hour_that_is_not_published_stays_and_says_which(scene: Scenario) -> None:
    publish(scene, TEN)
    result = expire(scene)
    assert (result.loads, result.files) == (0, 0)
    reason = "1 rows of 2015-05-17T11 are in no hour: run `millrace hourly PageView --hour 2015-05-17T11`"
    assert result.kept == {f"{TOPIC}/{LOAD}": reason}
    assert len(data(scene)) == 2


def test_a_folded_load_loses_its_rows_and_keeps_its_manifest_and_its_rejected_records(
    scene: Scenario,
) -> None:
    publish(scene)
    before = scene.visible()
    result = expire(scene)
    assert (result.loads, result.files, result.kept) == (1, 2, {})
    kept = sorted(path.name for path in (scene.folder / TOPIC / LOAD).iterdir())
    assert kept == ["_manifest.json", "_rejected"]
    entry = json.loads((scene.folder / TOPIC / "_expired" / f"{LOAD}.json").read_text())
    assert entry["revisions"] == {TEN: 1, ELEVEN: 1}
    assert scene.visible() == before
    assert reports(scene)[TOPIC].expired == 1
    assert expire(scene).loads == 0


def test_a_young_load_stays_and_a_dry_run_deletes_nothing(scene: Scenario) -> None:
    publish(scene)
    assert expire(scene, older_than_s=3600.0) == expire(scene, older_than_s=3600.0, dry_run=True)
    assert expire(scene, dry_run=True).loads == 1
    assert len(data(scene)) == 2
    assert not (scene.folder / TOPIC / "_expired").exists()


def test_a_load_stays_while_an_hour_that_has_its_rows_is_damaged(scene: Scenario) -> None:
    publish(scene)
    (path,) = (scene.folder / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=11" / "rev=1").glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    assert "is missing or was changed" in expire(scene).kept[f"{TOPIC}/{LOAD}"]
    path.unlink()
    assert "is missing or was changed" in expire(scene).kept[f"{TOPIC}/{LOAD}"]
    assert len(data(scene)) == 2


def test_late_rows_after_expiry_are_added_to_what_the_newest_revision_has(scene: Scenario) -> None:
    publish(scene)
    expire(scene)
    late(scene, START, START + 3 * HOUR)
    (ten,) = publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    assert (ten.hour, ten.revision, ten.rows) == (TEN, 2, 3)
    assert read_revision(fs_of(scene), TOPIC, TEN, 2).manifest.base == 1
    publish(scene)
    assert sum(scene.visible().values()) == 5
    assert reports(scene)[TOPIC].expired == 1


def test_a_load_that_has_expired_is_read_again_from_the_log_and_takes_the_place_of_its_rows(
    scene: Scenario,
) -> None:
    publish(scene)
    late(scene, START)
    publish(scene)
    expire(scene)
    assert data(scene) == data(scene, "load=0000000002") == []
    scene.fixed = True
    reload_topic(scene.reload_run(fs_of(scene)), TOPIC, [1])
    assert (
        "2015-05-17T10 was published without it"
        in expire(scene).kept[f"{TOPIC}/_reloads/{LOAD}/edition=0002"]
    )
    results = publish_late_hours(scene.hourly_run(fs_of(scene)), TOPIC)
    assert [(each.hour, each.rows) for each in results] == [(TEN, 4), (ELEVEN, 1)]
    reports(scene)
    assert expire(scene).loads == 1
    assert data(scene, f"_reloads/{LOAD}/edition=0002") == []
    assert sum(scene.visible().values()) == 5
    assert reports(scene)[TOPIC].expired == 3


def test_a_superseded_revision_stays_for_the_readers_that_have_it_open(scene: Scenario) -> None:
    publish(scene)
    late(scene, START)
    publish(scene)
    assert expire(scene, reader_grace_s=3600.0).revisions == 0
    hour = scene.folder / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=10"
    assert list((hour / "rev=1").glob("*.parquet"))
    assert expire(scene).revisions == 1
    assert [path.name for path in (hour / "rev=1").iterdir()] == ["_manifest.json"]
    assert list((hour / "rev=2").glob("*.parquet"))
    assert reports(scene)[f"{TOPIC}.hourly"].expired == 1


def test_readers_have_their_grace_from_the_moment_the_next_revision_could_be_seen(
    scene: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that made it may have stood still between its manifest and its rename."""
    publish(scene)
    late(scene, START)

    earlier = (datetime.now(UTC) - timedelta(hours=7)).isoformat()
    monkeypatch.setattr("millrace_spark.table.publish.now", lambda: earlier)
    publish(scene)
    assert expire(scene, reader_grace_s=3600.0).revisions == 0
    assert expire(scene, reader_grace_s=3600.0, clock=lambda: time.time() + 3700).revisions == 1


def test_a_superseded_revision_stays_while_the_newest_one_is_damaged(scene: Scenario) -> None:
    publish(scene)
    late(scene, START)
    publish(scene)
    hour = scene.folder / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=10"
    (path,) = (hour / "rev=2").glob("*.parquet")
    path.write_bytes(b"")
    result = expire(scene)
    assert result.revisions == 0
    assert f"{TOPIC}.hourly/date=2015-05-17/hour=10/rev=1" in result.kept


def test_what_a_run_that_was_cut_off_wrote_down_is_deleted_by_the_next_one(scene: Scenario) -> None:
    publish(scene)

    class Killed(BaseException):
        pass

    def killed(step: str) -> None:
        if step == "written down":
            raise Killed

    with pytest.raises(Killed):
        expire(scene, progress=killed)
    assert len(data(scene)) == 2
    notes = reports(scene)[TOPIC].notes
    assert any("is not deleted: run `millrace expire` again" in note for note in notes)
    late(scene, START)
    publish(scene)
    expire(scene, older_than_s=3600.0)
    assert data(scene) == []
    assert sum(scene.visible().values()) == 4


def test_what_a_power_cut_brings_back_is_deleted_again_while_it_may(scene: Scenario) -> None:
    publish(scene)
    kept = scene.folder / "kept"
    shutil.copytree(scene.folder / TOPIC / LOAD, kept)
    expire(scene)
    shutil.copytree(kept, scene.folder / TOPIC / LOAD, dirs_exist_ok=True)
    expire(scene)
    assert data(scene) == []
    (marker,) = (scene.folder / TOPIC / "_expired").glob(".*")
    os.utime(marker, (time.time() - 100_000,) * 2)
    expire(scene)
    assert [path.name for path in (scene.folder / TOPIC / "_expired").iterdir()] == [f"{LOAD}.json"]
    shutil.copytree(kept, scene.folder / TOPIC / LOAD, dirs_exist_ok=True)
    (note,) = (note for note in reports(scene)[TOPIC].notes if "has expired" in note)
    assert note.endswith("is not deleted: it came back later, delete date=2015-05-17 in it")


def test_old_plans_go_and_the_newest_one_stays(scene: Scenario) -> None:
    late(scene, START)
    late(scene, START)
    plans = sorted((scene.folder / TOPIC / "_plans").iterdir())
    for path in plans:
        os.utime(path, (time.time() - 90_000, time.time() - 90_000 + len(path.name)))
    os.utime(plans[0], (time.time() - 80_000,) * 2)
    assert expire(scene, older_than_s=3600.0).plans == len(plans) - 1
    assert list((scene.folder / TOPIC / "_plans").iterdir()) == [plans[0]]


def test_an_expired_load_is_not_made_anew_while_it_is_written_down_as_expired(scene: Scenario) -> None:
    """The record would have the rows of the new one deleted, and taken for rows that the hours have."""
    publish(scene)
    expire(scene)
    shutil.rmtree(scene.folder / TOPIC / LOAD)
    (scene.folder / TOPIC / "_ledger" / f"{LOAD}.json").unlink()
    with pytest.raises(MillraceError, match=r"_expired/load=0000000001\.json says .* or move it away"):
        scene._load(fs_of(scene))
    assert not (scene.folder / TOPIC / LOAD).exists()
    (scene.folder / TOPIC / "_expired" / f"{LOAD}.json").unlink()
    scene._load(fs_of(scene))
    expire(scene)
    assert len(data(scene)) == 2


def test_a_missing_record_of_what_expired_is_a_problem_again(scene: Scenario) -> None:
    publish(scene)
    expire(scene)
    (scene.folder / TOPIC / "_expired" / f"{LOAD}.json").unlink()
    found = verify(fs_of(scene), TOPIC, None, no_progress)
    assert any("is missing: 2 rows are gone" in problem for report in found for problem in report.problems)


def test_a_row_of_an_expired_load_that_the_hour_lost_is_noticed(scene: Scenario) -> None:
    publish(scene)
    expire(scene)
    path = scene.folder / f"{TOPIC}.hourly" / "date=2015-05-17" / "hour=10" / "rev=1" / "_manifest.json"
    manifest = json.loads(path.read_text())
    manifest["loads"][0]["rows"] = manifest["rows"] = 1
    path.write_text(json.dumps(manifest))
    found = verify(fs_of(scene), TOPIC, None, no_progress)
    assert any("not 1" in problem for report in found for problem in report.problems)


def test_a_topic_that_was_never_loaded_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="no load of PageView"):
        expire(Scenario(tmp_path, random.Random(1)))
