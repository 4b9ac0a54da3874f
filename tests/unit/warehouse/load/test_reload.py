"""Loads read again after a fix: the next edition of exactly the same offsets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace.records import Message, build_batch
from millrace.records.header import crc32c
from millrace_warehouse.history.hours import UNFILED
from millrace_warehouse.history.layout import Topic, newest_editions, read_edition
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.reload import ReloadRun, loads_of, reload_topic
from millrace_warehouse.storage import open_storage
from tests.unit.warehouse.memory_log import (
    HOUR,
    START,
    TOPIC,
    append_position,
    event,
    load_run,
    mirrored_log,
    rows_of,
)
from tests.unit.warehouse.mended import Mended, later_event, moved_event
from tests.unit.warehouse.storages import UnansweredStorage, problems

TEN, ELEVEN, TWELVE, ONE = (f"2015-05-17T{hour}" for hour in range(10, 14))


@pytest.fixture
def scene(tmp_path: Path) -> Mended:
    """Load 1: two plain rows at ten, one at ten that belongs to twelve. Load 2: only a rejected record."""
    scene = Mended(tmp_path)
    scene.log.append(0, [event(0, START), event(1, START), moved_event(2, START, START + 2 * HOUR)])
    scene.load()
    scene.log.append(1, [later_event(3, START + HOUR)])
    scene.load()
    scene.fixed = True
    return scene


def hours(scene: Mended) -> dict[int, str]:
    """Sequence -> hour of each row of the newest editions."""
    return {row.sequence: row.hour for row in rows_of(scene.folder)}


def test_an_edition_reads_the_same_offsets_and_names_what_it_replaces_and_why(scene: Mended) -> None:
    one, two = reload_topic(scene.reload_run(), TOPIC, [1, 2])
    assert (one.edition, one.rows_before, one.rows, one.hours) == (2, 3, 3, {TEN: 2, TWELVE: 1})
    assert (two.rows_before, two.rejected_before, two.rows, two.rejected) == (0, 1, 1, 0)
    first, second = (read_edition(scene.topic, 2, edition) for edition in (1, 2))
    assert (second.previous, second.reason) == (first.sha256, "a test")
    assert [(p.start, p.end, p.read) for p in second.partitions] == [
        (p.start, p.end, p.read) for p in first.partitions
    ]
    assert problems(scene.folder, TOPIC) == []


def test_rows_move_to_the_hours_they_belong_to_and_new_ones_come(scene: Mended) -> None:
    assert hours(scene) == {0: TEN, 1: TEN, 2: TEN}
    reload_topic(scene.reload_run(), TOPIC, [1, 2])
    assert hours(scene) == {0: TEN, 1: TEN, 2: TWELVE, 3: ELEVEN}
    assert all(row.load == (2 if row.sequence == 3 else 1) for row in rows_of(scene.folder))


def test_an_edition_files_its_rows_by_the_bound_of_the_load(scene: Mended) -> None:
    def stop(step: str) -> None:
        if step == "planned":
            raise InterruptedError

    scene.log.append(0, [event(4, START + 3 * HOUR)])
    with pytest.raises(InterruptedError):
        scene.load(progress=stop)
    path = scene.folder / TOPIC / "plans/run%203.json"
    path.write_text(re.sub('"created": "[^"]+"', '"created": "2015-05-16T12:00:00Z"', path.read_text()))
    scene.runs -= 1
    assert scene.load().hours == {UNFILED: 1}, "its clock is an hour ahead of the bound"
    (result,) = reload_topic(scene.reload_run(), TOPIC, [3])
    assert result.hours == {UNFILED: 1}


def test_a_topic_that_the_cluster_does_not_have_is_one_clear_line(scene: Mended) -> None:
    scene.log.name = "Renamed"
    with pytest.raises(
        MillraceError, match=r"^topic 'PageView' does not exist on memory:9092: see `millrace topics list"
    ):
        reload_topic(scene.reload_run(), TOPIC, [1])


def test_the_same_run_does_not_read_again_what_it_has_read_and_another_one_does(scene: Mended) -> None:
    reload_topic(scene.reload_run(), TOPIC, [1])
    (again,) = reload_topic(scene.reload_run(), TOPIC, [1])
    assert (again.edition, again.published) == (2, False)
    (other,) = reload_topic(scene.reload_run(run_id="another"), TOPIC, [1])
    assert (other.edition, other.published) == (3, True)
    assert newest_editions(scene.topic) == {1: 3}
    assert problems(scene.folder, TOPIC) == []


def test_the_loser_of_a_race_for_an_edition_reads_again_as_the_next_one(scene: Mended) -> None:
    raced: list[bool] = []

    def overtaken(step: str) -> None:
        if step == "prepared" and not raced:
            raced.append(True)
            reload_topic(scene.reload_run(run_id="faster"), TOPIC, [1])

    (result,) = reload_topic(scene.reload_run(progress=overtaken), TOPIC, [1])
    assert (result.edition, result.published) == (3, True)
    assert problems(scene.folder, TOPIC) == []
    assert len(scene.storage().names(f"{TOPIC}/rows")) == 4, "two loads, two editions, no lost attempt"


@pytest.mark.parametrize("happens", [[True], [False], [False, True]])
def test_an_edition_whose_create_is_not_answered_is_made_once(scene: Mended, happens: list[bool]) -> None:
    left = list(happens)

    def of(path: str) -> bool | None:
        return left.pop(0) if left and path == f"{TOPIC}/editions/0000000001.0002.json" else None

    (result,) = reload_topic(scene.reload_run(UnansweredStorage(scene.folder, of)), TOPIC, [1])
    assert (left, result.edition, result.published) == ([], 2, True)
    assert hours(scene)[2] == TWELVE
    assert problems(scene.folder, TOPIC) == []


def test_the_ledger_entry_that_a_crash_behind_the_create_left_out_is_made_by_the_next_run(
    scene: Mended,
) -> None:
    class Killed(BaseException):
        pass

    def killed(at: str) -> None:
        if at == "committed":
            raise Killed

    with pytest.raises(Killed):
        reload_topic(scene.reload_run(progress=killed), TOPIC, [1])
    entry = scene.folder / TOPIC / "ledger" / "editions" / "0000000001.0002.json"
    assert not entry.exists()
    reload_topic(scene.reload_run(run_id="another"), TOPIC, [])
    assert entry.exists()
    assert problems(scene.folder, TOPIC) == []


def test_offsets_that_have_expired_are_refused_and_named_before_anything_is_read(scene: Mended) -> None:
    scene.log.expire(0, 1)
    end = scene.log.partitions[0].high_watermark
    with pytest.raises(MillraceError, match=rf"load 1 needs PageView-0 offsets \[0, {end}\)"):
        reload_topic(scene.reload_run(), TOPIC, [1, 2])
    assert newest_editions(scene.topic) == {}
    (two,) = reload_topic(scene.reload_run(), TOPIC, [2])
    assert two.published


def test_a_log_that_has_lost_something_since_gives_no_edition(scene: Mended) -> None:
    scene.log.append_events(0, [START] * 30)
    scene.load()
    first, last = scene.log.lose(0, 2)
    with pytest.raises(MillraceError, match=rf"offsets \[{first}, {last}\) were in the log and are gone"):
        reload_topic(scene.reload_run(), TOPIC, [3])
    assert newest_editions(scene.topic) == {}
    assert len(scene.storage().names(f"{TOPIC}/rows")) == 3


def test_a_log_that_has_lost_a_message_inside_a_batch_gives_no_edition(scene: Mended) -> None:
    """As compaction of Apache Kafka leaves a batch: without a record, and with its first and last offset."""
    batch = bytearray(build_batch([event(0, START), event(1, START)], base_offset=0))
    batch[23:27] = (2).to_bytes(4, "big")  # the offset of the last record, which is gone
    batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
    before = rows_of(scene.folder)
    scene.log.partitions[0].log = batch
    with pytest.raises(
        MillraceError, match=r"PageView-0 of load 1: the log has 2 of its 3 messages, .* other loads"
    ):
        reload_topic(scene.reload_run(), TOPIC, [1])
    assert newest_editions(scene.topic) == {}
    assert rows_of(scene.folder) == before


def test_what_was_a_gap_when_the_load_was_made_may_stay_one(tmp_path: Path) -> None:
    scene = Mended(tmp_path, fixed=True)
    scene.log.append_events(0, [START] * 60)
    scene.log.expire(0, 1)
    scene.log.lose(0, 2)
    scene.load(accept_gaps=True)
    (result,) = reload_topic(scene.reload_run(), TOPIC, [1])
    assert (result.rows, result.rows_before) == (40, 40)
    assert problems(tmp_path, TOPIC) == []


def test_the_loads_of_an_hour_are_those_with_its_rows_and_those_whose_rejected_records_may_be_of_it(
    scene: Mended,
) -> None:
    scene.fixed = False
    times = [START, START + 2 * HOUR]
    scene.log.append(0, [*(event(10 + n, at) for n, at in enumerate(times)), later_event(12, START + HOUR)])
    scene.load()
    assert loads_of(scene.topic, [TEN]) == [1, 2, 3]
    assert loads_of(scene.topic, [ELEVEN]) == [2, 3], "2 has no rows at all, 3 has some on both sides"
    assert loads_of(scene.topic, [ONE]) == [2]
    assert loads_of(scene.topic, [UNFILED]) == [2]


def test_the_loads_of_an_hour_include_those_with_rejected_records_behind_all_rows(scene: Mended) -> None:
    scene.log.append(0, [event(4, START), Message(START + 3 * HOUR, None, b"text")])
    scene.load()
    assert 3 in loads_of(scene.topic, [ONE])


def test_the_loads_of_an_hour_include_those_whose_older_edition_has_its_rows(scene: Mended) -> None:
    """The table may still show these: the edition that moved them may not be published."""
    assert loads_of(scene.topic, [TWELVE]) == [2]
    reload_topic(scene.reload_run(), TOPIC, [1, 2])
    assert loads_of(scene.topic, [TWELVE]) == [1]
    scene.log.append(0, [moved_event(4, START + 3 * HOUR, START + 2 * HOUR)])
    scene.fixed = False
    scene.load()
    scene.fixed = True
    reload_topic(scene.reload_run(), TOPIC, [3])
    assert loads_of(scene.topic, [ONE]) == [3]


def test_loads_that_are_not_there_are_one_clear_line(scene: Mended) -> None:
    with pytest.raises(MillraceError, match="PageView has no load 9: its loads are 1 to 2"):
        reload_topic(scene.reload_run(), TOPIC, [1, 9])


def test_an_edition_that_is_gone_is_an_error_instead_of_bringing_old_rows_back(scene: Mended) -> None:
    reload_topic(scene.reload_run(), TOPIC, [1])
    (scene.folder / TOPIC / "editions/0000000001.0002.json").rename(scene.folder / "elsewhere")
    with pytest.raises(MillraceError, match=r"0000000001\.0002\.json was published and is gone"):
        newest_editions(scene.topic)
    with pytest.raises(MillraceError, match=r"0000000001\.0002\.json was published and is gone"):
        reload_topic(scene.reload_run(run_id="another"), TOPIC, [1])


def test_an_edition_that_was_edited_is_named(scene: Mended) -> None:
    reload_topic(scene.reload_run(), TOPIC, [1])
    path = scene.folder / TOPIC / "editions/0000000001.0002.json"
    path.write_text(path.read_text().replace('"a test"', '"no test"'))
    with pytest.raises(MillraceError, match=r"0000000001\.0002\.json: the manifest was edited"):
        reload_topic(scene.reload_run(run_id="another"), TOPIC, [1])


def test_an_edition_of_a_load_that_was_made_anew_is_not_taken_for_its_own(scene: Mended) -> None:
    reload_topic(scene.reload_run(), TOPIC, [1])
    for name in ("0000000001.json", "0000000002.json"):
        (scene.folder / TOPIC / "loads" / name).unlink()
        (scene.folder / TOPIC / "ledger/loads" / name).unlink()
    scene.load()
    with pytest.raises(
        MillraceError, match=r"0001\.0002\.json replaces another load .* or move this edition"
    ):
        reload_topic(scene.reload_run(run_id="another"), TOPIC, [1])


def test_a_load_that_began_behind_expired_positions_of_a_mirror_is_read_again(tmp_path: Path) -> None:
    log = mirrored_log()
    load_topic(load_run(log, tmp_path, "first"), TOPIC)
    append_position(log)
    log.expire(0, 6)
    log.append_events(0, [START] * 5)
    append_position(log)
    load_topic(load_run(log, tmp_path, "second"), TOPIC)
    context = load_run(log, tmp_path, "again").context
    [result] = reload_topic(ReloadRun(context=context, reason="a test"), TOPIC, [2])
    assert (result.edition, result.rows) == (2, 5)
    storage = open_storage(str(tmp_path))
    first, second = (read_edition(Topic(storage, TOPIC), 2, edition).partitions for edition in (1, 2))
    assert [gap.reason for gap in first[0].gaps] == ["control"]
    assert second[0].gaps == first[0].gaps
    assert problems(tmp_path, TOPIC) == []
