"""Faults of disks and of those who administer them: segments, retention, topics, files of the warehouse."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.client.cluster_client import EARLIEST
from millrace_audit.answer import Verdict
from millrace_audit.reports.messages import AUDIT_TOPIC, COUNTS_TOPIC, OFFLINE, WAREHOUSE
from millrace_audit.reports.publish import AUDIT_TOPIC_SETTINGS
from tests.support import wait_until
from tests.trials.faultaudit import logs
from tests.trials.faultaudit.batches import alter, url
from tests.trials.faultaudit.place import WAREHOUSE_READER
from tests.trials.faultaudit.row import HOME, SMALL, Row
from tests.trials.faultaudit.stage import Says, Stage

UNKNOWN = Says(verdict=Verdict.UNKNOWN, beside=Verdict.UNKNOWN)
WELL = Says(verdict=Verdict.COMPLETE)
_CUT_OUT = "were never counted in full at tier dc1"


def rows() -> Iterator[Row]:
    yield from _segments()
    yield from _retention()
    yield Row(
        name="topic-made-again",
        what="a topic is deleted and made again after it was counted and before it was copied",
        plant=_made_again,
        says=Says(findings=[("missing", OFFLINE, "0-39")]),
    )
    yield from _warehouse()
    yield from _audit_topics()


# Segments of the producer's log and of the copy


def _segments() -> Iterator[Row]:
    for name, damage, says in (
        ("deleted", lambda folder: logs.delete_segment(folder, 1), "cannot be read at offset"),
        ("cut", lambda folder: logs.cut(folder, 0), "cannot be read at offset"),
        ("flipped", lambda folder: logs.flip_bit(folder, 1), "cannot be read at offset"),
    ):
        yield Row(
            name=f"segment-{name}",
            what=f"a segment of the producer's log is {name.replace('-', ' ')} before anybody has read it",
            plant=lambda stage, damage=damage: _damaged(stage, damage),  # type: ignore[misc]
            says=replace(UNKNOWN, reason=says),
            settings={} if name == "flipped" else SMALL,
        )
    yield Row(
        name="segment-first-deleted",
        what="the first segment of the producer's log is deleted before anybody has read it",
        plant=_first_deleted,
        says=Says(verdict=Verdict.UNKNOWN, reason=rf"offsets 0 to \d+ of partition 0 {_CUT_OUT}"),
        settings=SMALL,
    )
    yield Row(
        name="copy-flipped",
        what="a bit of the aggregate cluster's log is flipped before its reader has read it",
        plant=_copy_flipped,
        says=replace(UNKNOWN, reason=r"the log of copy-flipped\S*-\d in offline cannot be read at offset"),
    )
    yield Row(
        name="log-altered-late",
        what="the producer's log is altered after it was counted and copied",
        plant=_altered_late,
        says=WELL,
        unseen="A log that changes after it was counted and copied",
    )


def _first_deleted(stage: Stage) -> None:
    _damaged(stage, lambda folder: logs.delete_segment(folder, 0))
    stage.load()


def _damaged(stage: Stage, damage: Callable[[Path], None]) -> None:
    with stage.held(), stage.without(f"{HOME}-reader"):
        stage.traffic()
        stage.damage(HOME, damage)


def _copy_flipped(stage: Stage) -> None:
    with stage.without(f"{OFFLINE}-reader"):
        stage.traffic()
        stage.await_in_copy(5)
        stage.damage(OFFLINE, lambda folder: logs.flip_bit(folder, 1))


def _altered_late(stage: Stage) -> None:
    stage.traffic()
    stage.load()
    stage.edit_log(HOME, alter)


# Retention that does not wait for readers


def _retention() -> Iterator[Row]:
    yield Row(
        name="expired-before-counted",
        what="the producer's log expires before its reader has counted it",
        plant=_expired_before_counted,
        says=replace(UNKNOWN, reason=rf"offsets 0 to \d+ of partition 0 {_CUT_OUT}"),
        settings=SMALL,
    )
    yield Row(
        name="expired-before-copied",
        what="the producer's log expires after it was counted and before it was copied",
        plant=_expired_before_copied,
        says=Says(findings=[("missing", OFFLINE, "10-39")]),
        settings=SMALL,
    )
    yield Row(
        name="expired-before-loaded",
        what="the aggregate cluster's log expires after it was counted and before it was loaded",
        plant=_expired_before_loaded,
        says=Says(
            beside=Verdict.INCOMPLETE,
            findings=[("missing", WAREHOUSE, "0-39"), ("missing", WAREHOUSE, "0-9")],
        ),
    )


def _expire(stage: Stage, cluster: str) -> None:
    """Let the broker delete all segments but the last."""
    partition = stage.place.target_of(HOME, stage.topic) if cluster == OFFLINE else 0
    stage.place.alter(cluster, stage.topic, retention_ms="1")
    with stage.place.clusters[cluster].client() as client:
        gone = lambda: client.list_offsets(stage.topic, EARLIEST, [partition])[partition] > 0  # noqa: E731
        wait_until(f"{stage.topic} has expired", gone)
    stage.place.alter(cluster, stage.topic, retention_ms="-1")


def _expired_before_counted(stage: Stage) -> None:
    with stage.held(), stage.without(f"{HOME}-reader"):
        stage.traffic()
        _expire(stage, HOME)


def _expired_before_copied(stage: Stage) -> None:
    stage.begin(batches=1)
    stage.await_copied()
    with stage.held():
        stage.go_on(1)
        stage.await_tier(HOME, 40)
        _expire(stage, HOME)
    stage.place.await_mirror_stopped(stage.topic)
    stage.place.reset_mirror(HOME, stage.topic)
    stage.end()
    stage.load()


def _expired_before_loaded(stage: Stage) -> None:
    stage.place.alter(OFFLINE, stage.topic, segment_bytes="1024")
    stage.traffic()
    stage.await_counted()
    _expire(stage, OFFLINE)
    stage.place.load(stage.topic)


def _made_again(stage: Stage) -> None:
    with stage.held():
        stage.begin()
        stage.await_tier(HOME, 40)
        with stage.place.clusters[HOME].client() as client:
            client.delete_topic(stage.topic)
            client.create_topic(stage.topic, 1)
    stage.place.await_mirror_stopped(stage.topic)
    stage.place.reset_mirror(HOME, stage.topic)
    stage.end()
    stage.load()


# The warehouse


def _warehouse() -> Iterator[Row]:
    all_of_it = Says(beside=Verdict.INCOMPLETE, findings=[("missing", WAREHOUSE, "0-39")])
    yield Row(
        name="file-deleted",
        what="a load's file is deleted before it was counted",
        plant=lambda stage: _damage_file(stage, Path.unlink),
        says=all_of_it,
    )
    yield Row(
        name="file-cut",
        what="a load's file is cut before it was counted",
        plant=lambda stage: _damage_file(stage, _cut_file),
        says=all_of_it,
    )
    yield Row(
        name="file-edited",
        what="rows 10 to 19 of a load's file are taken out before it was counted",
        plant=lambda stage: _damage_file(stage, _take_rows_out),
        says=Says(findings=[("missing", WAREHOUSE, "10-19")]),
    )
    yield Row(
        name="manifest-edited",
        what="a file is taken out of a load's manifest before it was counted",
        plant=_manifest_edited,
        says=Says(
            verdict=Verdict.PENDING,
            beside=Verdict.PENDING,
            reason="by `millrace audit-warehouse`, not loaded yet",
            sentence="manifest-edited/loads/0000000001.json: the manifest was edited",
        ),
    )
    yield Row(
        name="file-rewritten",
        what="a column of a load's file is rewritten, but not the header",
        plant=lambda stage: _damage_file(stage, _change_a_column),
        says=WELL,
        unseen="Columns other than the audit header",
    )
    yield Row(
        name="file-deleted-late",
        what="a load's file is deleted after it was counted",
        plant=_delete_late,
        says=WELL,
        unseen="A file of a load that changes after it was counted",
    )


def _damage_file(stage: Stage, damage: Callable[[Path], object]) -> None:
    with stage.without(WAREHOUSE_READER):
        stage.traffic()
        stage.load()
        damage(_file_of(stage))


def _manifest_edited(stage: Stage) -> None:
    reader = stage.place.processes
    with stage.without(WAREHOUSE_READER):
        stage.traffic()
        stage.load()
        (manifest,) = (stage.place.warehouse / stage.topic / "loads").glob("[0-9]*.json")
        content = json.loads(manifest.read_text())
        content["files"] = content["files"][:1]
        manifest.write_text(json.dumps(content))
    said = lambda: stage.topic in reader[WAREHOUSE_READER].output  # noqa: E731
    wait_until("the warehouse's reader names the load", said)
    stage.sentence = reader[WAREHOUSE_READER].output


def _delete_late(stage: Stage) -> None:
    stage.traffic()
    stage.load()
    stage.await_says(WELL)
    _file_of(stage).unlink()


def _file_of(stage: Stage) -> Path:
    """That of dc1, by far the larger one: each partition has one of a load and hour."""
    files = (stage.place.warehouse / stage.topic / "rows").rglob("*.parquet")
    return max(files, key=lambda file: pq.read_metadata(file).num_rows)


def _cut_file(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def _take_rows_out(file: Path) -> None:
    table = pq.read_table(file)
    urls = table["url"].to_pylist()
    taken = {url(sequence) for sequence in range(10, 20)}
    pq.write_table(table.filter(pa.array([each not in taken for each in urls])), file)


def _change_a_column(file: Path) -> None:
    table = pq.read_table(file)
    index = table.schema.get_field_index("url")
    column = pa.array(["/elsewhere"] * len(table), table.schema.field(index).type)
    pq.write_table(table.set_column(index, table.schema.field(index), column), file)


# What the audit itself is told


def _audit_topics() -> Iterator[Row]:
    yield Row(
        name="reports-lost-at-home",
        what="the producer's cluster loses its audit topic before it was copied",
        plant=_reports_lost_at_home,
        says=replace(UNKNOWN, reason="audit records were lost before the auditor read them"),
    )
    yield Row(
        name="reports-lost",
        what="the aggregate cluster's audit topic expires before the auditor has read it",
        plant=_reports_lost,
        says=replace(UNKNOWN, reason="audit records were lost before the auditor read them"),
    )
    yield Row(
        name="counts-lost",
        what="the aggregate cluster's audit-counts topic expires before the auditor has read it",
        plant=_counts_lost,
        says=replace(UNKNOWN, reason=f"{_CUT_OUT}|counts had expired|audit records were lost"),
    )


def _reports_lost(stage: Stage) -> None:
    _lost(stage, AUDIT_TOPIC)


def _counts_lost(stage: Stage) -> None:
    _lost(stage, COUNTS_TOPIC)


def _lost(stage: Stage, topic: str) -> None:
    place = stage.place
    place.alter(OFFLINE, topic, segment_bytes="1024")
    partition = place.target_of(HOME, topic)
    with stage.without("auditor"):
        stage.traffic()
        stage.await_in_copy(5)
        with stage.without(f"{OFFLINE}-reader", f"{OFFLINE}-1"):
            logs.delete_all_but_the_last(place.log_folder(OFFLINE, topic, partition))
    place.load(stage.topic)


def _reports_lost_at_home(stage: Stage) -> None:
    place = stage.place
    place.alter(HOME, AUDIT_TOPIC, **{**_as_words(AUDIT_TOPIC_SETTINGS), "segment_bytes": "1024"})
    stage.before()
    stage.await_before()  # a mirror that has copied nothing yet would begin with what is there
    with place.holding(AUDIT_TOPIC):
        stage.traffic()
        for _ in range(3):
            stage.before()  # whose words are what is left
        with stage.without(f"{HOME}-1"):
            logs.delete_all_but_the_last(place.log_folder(HOME, AUDIT_TOPIC))
    place.await_mirror_stopped(AUDIT_TOPIC)
    place.reset_mirror(HOME, AUDIT_TOPIC)
    stage.place.load(stage.topic)


def _as_words(settings: dict[str, str]) -> dict[str, str]:
    return {key.replace(".", "_"): value for key, value in settings.items()}
