"""A topic's table in the layout of its policy, through every verb that writes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType

from millrace.errors import MillraceError
from millrace_warehouse.context import Context
from millrace_warehouse.history.layout import Topic
from millrace_warehouse.history.schemas import TableSchema, first_schema, pin, pinned, promote, with_layout
from millrace_warehouse.publish.branch_commit import LIVE
from millrace_warehouse.publish.live import Live
from tests.loaded import pin_first
from tests.unit.warehouse.erase.scene import (
    ELEVEN,
    MEMBER,
    MEMBERS,
    NAME,
    TEN,
    TWELVE,
    WITH_MEMBER,
    Scene,
    holding,
    scene,
)
from tests.unit.warehouse.memory_log import SCHEMA_ID, START, TOPIC, event, with_field

BUCKETS = "bucket(4, memberId)"
BUCKET = BucketTransform(4).transform(LongType())


@pytest.fixture
def s(tmp_path: Path) -> Iterator[Scene]:
    yield from scene(tmp_path / "w")


def lay_out(s: Scene, partition: list[str] | None = None, sort: list[str] | None = None) -> TableSchema:
    """Record the layout of a policy, as the topic's next load does."""
    topic = Topic(s.storage, TOPIC)
    now = pinned(topic) or pin_first(topic, WITH_MEMBER, MEMBERS)
    return with_layout(topic, now, partition, sort)


def send(s: Scene, *members: int | None, hour: int = 0) -> None:
    for member in members:
        s.send(member, hour)


def head(s: Scene) -> list[DataFile]:
    return [task.file for task in s.table.scan().plan_files()]


def rows_in(file: DataFile) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
    return rows


def check_files(s: Scene) -> Counter[int]:
    """Check every file of the table by the plainest means. Return the number of files by spec."""
    specs = Counter[int]()
    for file in head(s):
        rows, spec = rows_in(file), s.table.specs()[file.spec_id]
        specs[file.spec_id] += 1
        assert len(rows) == file.record_count
        assert len(file.partition) == len(spec.fields)
        for number, field in enumerate(spec.fields[1:], 1):
            members = [row["memberId"] for row in rows]
            found = {BUCKET(member) if str(field.transform) == "bucket[4]" else member for member in members}
            assert found == {file.partition[number]}
        order = s.table.metadata.sort_order_by_id(file.sort_order_id or 0)
        if order is not None and order.fields:
            urls = [row["url"] for row in rows]
            assert urls == sorted(urls, reverse=str(order.fields[0].direction) == "DESC")
    return specs


def published(s: Scene, *hours: str) -> Scene:
    s.load_new()
    s.publish(*(hours or (TEN,)))
    return s


def test_a_first_load_writes_a_file_for_each_partition_and_readers_skip_the_others(s: Scene) -> None:
    lay_out(s, [BUCKETS], ["url DESC"])
    send(s, *range(40), None)
    published(s)
    assert set(check_files(s)) == {1}
    assert {file.partition[1] for file in head(s)} == {0, 1, 2, 3, None}
    assert [str(field.transform) for field in s.table.spec().fields] == ["hour", "bucket[4]"]
    assert s.table.sort_order().order_id == 1
    assert {file.sort_order_id for file in head(s)} == {1}
    found = s.table.scan("memberId = 7")
    assert {task.file.partition[1] for task in found.plan_files()} == {BUCKET(7)}
    assert found.to_arrow()["memberId"].to_pylist() == [7]
    assert s.members() == sorted([*range(40), None], key=str)
    assert s.problems(rows=True) == []


def test_the_first_schema_may_have_a_layout(s: Scene) -> None:
    first = first_schema(s.stored, WITH_MEMBER, MEMBERS)
    assert pin(s.stored, with_layout(s.stored, first, [BUCKETS], ["url"], is_first=True))
    send(s, *range(8))
    published(s)
    assert [str(field.transform) for field in s.table.spec().fields] == ["hour", "bucket[4]"]
    assert len(s.table.sort_order().fields) == 1
    assert set(check_files(s)) == {1}
    assert s.problems(rows=True) == []
    send(s, 9, hour=1)
    published(s, ELEVEN)
    assert s.problems(rows=True) == []


def test_branch_live_has_files_of_a_layout_before_main_has_one(s: Scene) -> None:
    live = Live(Context(storage=s.storage, catalog=s.catalog), s.stored)
    send(s, 1, 2)
    s.load_new()
    live.follow(on=True)
    lay_out(s, [BUCKETS], ["url"])
    send(s, *range(8), hour=1)
    s.load_new()
    live.follow()
    shown = s.table.scan("memberId = 7").use_ref(LIVE)
    assert {task.file.partition[1] for task in shown.plan_files()} == {BUCKET(7)}
    assert shown.to_arrow().num_rows == 1
    assert s.table.scan().use_ref(LIVE).to_arrow().num_rows == 10
    assert len(s.table.spec().fields) == 1, "main has no such file yet"
    s.publish(TEN, ELEVEN)
    live.follow()
    assert len(s.table.spec().fields) == 2
    assert s.table.scan().use_ref(LIVE).to_arrow().num_rows == len(s.members()) == 10
    assert len(s.table.metadata.partition_specs) == 2
    assert s.problems(rows=True) == []


def test_bounds_of_a_sorted_text_skip_files(s: Scene) -> None:
    lay_out(s, sort=["url"])
    send(s, 1, 2)
    published(s)
    send(s, 3, 4, hour=1)
    published(s, ELEVEN)
    url = s.table.schema().find_field("url").field_id
    bounds = sorted((file.lower_bounds[url], file.upper_bounds[url]) for file in head(s))
    assert bounds == [(b"/0", b"/1"), (b"/2", b"/3")]
    assert len(list(s.table.scan("url = '/2'").plan_files())) == 1


def test_a_table_that_exists_gets_a_layout_and_its_old_files_keep_theirs(s: Scene) -> None:
    send(s, 1, 2, 3)
    published(s)
    lay_out(s, [BUCKETS])
    send(s, 4, 5, 6, 7, hour=1)
    published(s, ELEVEN)
    before = check_files(s)
    assert set(before) == {0, 1}
    assert s.members() == [1, 2, 3, 4, 5, 6, 7]
    assert [task.file.spec_id for task in s.table.scan("memberId = 2").plan_files()] == [0]
    assert s.problems(rows=True) == []


def test_one_publication_adds_waiting_loads_of_several_layouts(s: Scene) -> None:
    for number, layout in enumerate(([], [BUCKETS], ["memberId"], [])):
        lay_out(s, layout, ["url"] if number == 2 else [])
        send(s, 1, 2, 3, hour=number % 3)
        s.load_new()
    s.publish(TEN, ELEVEN, TWELVE)
    assert set(check_files(s)) == {0, 1, 2}
    assert (s.table.spec().spec_id, s.table.sort_order().order_id) == (0, 0)
    assert {field.field_id for spec in s.table.specs().values() for field in spec.fields} == {
        1000,
        1001,
        1002,
    }
    assert s.members() == sorted([1, 2, 3] * 4)
    assert s.problems(rows=True) == []


def test_a_process_without_the_policy_keeps_the_layout_and_an_empty_one_removes_it(s: Scene) -> None:
    laid_out = lay_out(s, [BUCKETS], ["url"])
    assert lay_out(s) == laid_out
    assert lay_out(s, sort=["url ASC NULLS FIRST"]) == laid_out
    assert lay_out(s, []).reason.endswith(": partition by hours alone; sort by url ASC NULLS FIRST")
    assert lay_out(s, sort=[]).number == laid_out.number + 2


def test_a_re_load_writes_the_layout_of_today(s: Scene) -> None:
    send(s, *range(12))
    published(s)
    lay_out(s, [BUCKETS], ["url DESC"])
    s.reload(1)
    s.publish()
    assert check_files(s) == {1: 4}
    assert s.members() == sorted(range(12), key=str)
    assert s.problems(rows=True) == []


def test_compaction_merges_by_partition_and_keeps_the_order(s: Scene) -> None:
    lay_out(s, [BUCKETS], ["url DESC"])
    for _ in range(3):
        send(s, *range(12))
        s.load_new()
    s.publish(TEN)
    assert check_files(s) == {1: 12}
    result = s.compact()
    assert [(hour.files_before, hour.files_after, hour.rows) for hour in result.hours] == [(12, 4, 36)]
    assert check_files(s) == {1: 4}
    assert s.compact().hours == []
    assert s.problems(rows=True) == []


def test_compaction_of_partitions_without_an_order_merges_them(s: Scene) -> None:
    lay_out(s, [BUCKETS])
    for _ in range(2):
        send(s, *range(12))
        s.load_new()
    s.publish(TEN)
    s.compact()
    assert check_files(s) == {1: 4}
    assert s.problems(rows=True) == []


def test_compaction_rewrites_files_of_an_earlier_layout_once(s: Scene) -> None:
    send(s, *range(12), None)
    published(s)
    lay_out(s, [BUCKETS], ["url DESC"])
    send(s, 1, hour=1)
    published(s, ELEVEN)
    before = s.members()
    assert [(hour.hour, hour.files_after) for hour in s.compact().hours] == [(TEN, 5)]
    assert check_files(s) == {1: 6}
    assert s.members() == before
    assert s.compact().hours == []
    assert s.problems(rows=True) == []
    lay_out(s, [], [])
    send(s, 2, hour=2)
    published(s, TWELVE)
    s.compact()
    assert check_files(s) == {0: 3}
    assert s.problems(rows=True) == []


def test_an_erasure_takes_rows_out_of_files_of_every_layout(s: Scene) -> None:
    send(s, 1, MEMBER, 2)
    published(s)
    lay_out(s, [BUCKETS], ["url DESC"])
    send(s, *range(12), MEMBER, hour=1)
    published(s, ELEVEN)
    s.compact()
    s.expire()
    send(s, 3, MEMBER, hour=1)
    published(s)
    assert s.erase().rows == 3
    assert MEMBER not in s.members()
    assert len(s.members()) == 15
    check_files(s)
    assert s.problems(rows=True) == []


def test_an_erasure_takes_values_out_of_partitions_and_bounds(s: Scene) -> None:
    lay_out(s, ["memberId"], ["memberId", "url"])
    send(s, 1, 2)
    s.log.append(0, [event(99, START, schema=(WITH_MEMBER, MEMBERS), memberId=MEMBER, url=NAME)])
    published(s)
    s.compact()
    assert len(holding(s.folder, NAME)) > 2
    s.erase()
    assert holding(s.folder, NAME) == []
    assert [path for path in holding(s.folder, MEMBER) if not path.endswith(".where")] == []
    assert s.problems(rows=True) == []


def test_a_re_load_takes_its_rows_out_of_compacted_files_which_keep_their_layout(s: Scene) -> None:
    lay_out(s, [BUCKETS], ["url DESC"])
    for _ in range(2):
        send(s, *range(12))
        s.load_new()
    s.publish(TEN)
    s.compact()
    s.reload(1)
    s.publish()
    assert check_files(s) == {1: 8}
    assert len(s.members()) == 24
    assert s.problems(rows=True) == []


@pytest.mark.parametrize("compacted", [False, True])
def test_a_dropped_table_is_rebuilt_in_its_layouts(s: Scene, compacted: bool) -> None:
    send(s, 1, 2, 3)
    published(s)
    lay_out(s, [BUCKETS], ["url DESC"])
    send(s, *range(12), hour=1)
    published(s, ELEVEN)
    if compacted:
        s.compact()
        s.forget_snapshots()
        s.expire()
    before, specs = s.members(), check_files(s)
    s.catalog.drop_table(s.table.name())
    s.publish(rebuild=True)
    assert (s.members(), check_files(s)) == (before, specs)
    assert s.problems(rows=True) == []


def test_a_table_that_another_program_partitions_is_rebuilt_in_its_layout(s: Scene) -> None:
    lay_out(s, [BUCKETS])
    send(s, *range(12))
    published(s)
    with s.table.update_spec() as update:
        update.add_field("url", "identity", "by_url")
    with pytest.raises(MillraceError, match="changed the partitions"):
        s.publish()
    s.publish(rebuild=True)
    assert check_files(s) == {1: 4}
    assert s.problems(rows=True) == []


def test_an_order_that_another_program_has_set_stays(s: Scene) -> None:
    send(s, 1)
    published(s)
    with s.table.update_sort_order() as update:
        update.asc("url", IdentityTransform())
    send(s, 2, hour=1)
    published(s, ELEVEN)
    assert s.table.sort_order().order_id == 1
    assert s.compact().hours == []


def test_a_promotion_keeps_the_layout_and_may_not_drop_its_columns(s: Scene) -> None:
    lay_out(s, [BUCKETS], ["url"])
    send(s, 1)
    published(s)
    with pytest.raises(MillraceError, match=r"there is no column memberId.*laid out by it"):
        promote(Topic(s.storage, TOPIC), SCHEMA_ID, "a test", s.log.schemas.get)
    lay_out(s, [])
    with pytest.raises(MillraceError, match="there is no column memberId"):
        promote(Topic(s.storage, TOPIC), SCHEMA_ID, "a test", s.log.schemas.get)


def test_verify_finds_rows_of_another_partition_and_a_false_order(s: Scene) -> None:
    lay_out(s, [BUCKETS], ["url"])
    send(s, 1)
    published(s)
    (file,) = head(s)
    path = Path(file.file_path.removeprefix("file://"))
    rows = pq.read_table(path)
    foreign = pa.concat_tables([rows, rows]).set_column(
        rows.column_names.index("url"), rows.schema.field("url"), [["/b", "/a"]]
    )
    moved = foreign.set_column(
        rows.column_names.index("memberId"), rows.schema.field("memberId"), [pa.array([3, 3])]
    )
    pq.write_table(moved, path)
    problems = "\n".join(s.problems(rows=True))
    assert "has 2 rows of other partitions" in problems
    assert "is not sorted as its sort order states" in problems


@pytest.mark.parametrize(
    ("partition", "sort", "error"),
    [
        (["bucket(4, member)"], [], "there is no column member; the columns are"),
        (["bucket(4, header)"], [], "partition bucket.4, header. is impossible: header is struct"),
        (["days(url)"], [], "days.url. is impossible: url is string"),
        (["days(_time)"], [], "the hour of _time is a table's first partition"),
        (["days(_timestamp)", "months(_timestamp)"], [], "names two times of _timestamp"),
        (["url", "url"], [], "partition names url twice"),
        (["_time.hour"], [], "there is no column _time.hour"),
        (["bucket(memberId)"], [], "write bucket.16, COLUMN."),
        ([], ["header"], "sort header is impossible: its type is struct"),
        ([], ["url UP"], "write COLUMN .ASC.DESC."),
        ([], ["url", "url DESC"], "sort names url twice"),
    ],
)
def test_a_layout_that_a_table_cannot_have_is_refused(
    s: Scene, partition: list[str], sort: list[str], error: str
) -> None:
    before = lay_out(s)
    with pytest.raises(MillraceError, match=error):
        lay_out(s, partition, sort)
    assert lay_out(s) == before


def test_nested_columns_partition_and_sort(s: Scene) -> None:
    lay_out(s, ["header.server", "truncate(2, url)"], ["header.sequence DESC"])
    send(s, *range(12))
    published(s)
    assert [field.name for field in s.table.spec().fields] == ["_time_hour", "header_server", "url_trunc_2"]
    for file in head(s):
        rows = rows_in(file)
        assert {(row["header"]["server"], row["url"][:2]) for row in rows} == {
            (file.partition[1], file.partition[2])
        }
        sequences = [row["header"]["sequence"] for row in rows]
        assert sequences == sorted(sequences, reverse=True)
    assert pc.sum(s.table.scan("url = '/7'").to_arrow()["memberId"]).as_py() == 7
    assert s.problems(rows=True) == []


def test_a_partition_whose_column_is_widened_is_one_partition(s: Scene) -> None:
    narrow, wide = with_field("shelf", "int", 0), with_field("shelf", "long", 0)
    s.log.schemas |= {21: narrow, 22: wide}
    topic = Topic(s.storage, TOPIC)
    with_layout(topic, pin_first(topic, 21, narrow), ["shelf", "truncate(10, shelf)"], ["shelf DESC"])
    for number in range(2):
        s.log.append(
            0, [event(10 * number + n, START, schema=(21 + number, wide), shelf=n) for n in range(3)]
        )
        s.load_new()
        s.publish(TEN)
        if not number:
            promote(topic, 22, "a test", s.log.schemas.get)
    assert len(list(s.table.scan("shelf = 2").plan_files())) == 2
    assert s.table.scan("shelf > 0").to_arrow().num_rows == 4
    assert s.problems(rows=True) == []
    s.compact()
    assert len(head(s)) == 3
    assert s.problems(rows=True) == []
