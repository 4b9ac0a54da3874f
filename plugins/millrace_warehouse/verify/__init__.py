"""Proof that a warehouse is what was published: every folder there, every byte, every row, every sequence.

Reads with pyarrow alone: no Spark, and no broker unless one is named, which is asked for its offsets only.
Compares manifests with their own hashes, with one another and with the ledger; files with their manifests;
rows with both. A problem is one line that names topic, partition and offsets, or the file. A note is
something that the next run puts right by itself.
"""

from __future__ import annotations

from collections.abc import Collection

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace_warehouse.history.layout import HOURLY, LEDGER, PLANS, load_numbers, read_load
from millrace_warehouse.history.same_log import another_log
from millrace_warehouse.storage.filesystem import Filesystem
from millrace_warehouse.verify.hours import note_unpublished, verify_hours
from millrace_warehouse.verify.loads import verify_loads
from millrace_warehouse.verify.report import OURS, OnFolder, TableCheck, TableReport, readable


def verify(
    fs: Filesystem, topic: str | None, client: ClusterClient | None, on_folder: OnFolder
) -> list[TableReport]:
    """Check every table of a warehouse, or those of one topic; MillraceError when there is none."""
    _refuse_others(fs)
    names = [name for name in fs.names("") if _is_table(fs, name)]
    topics = sorted({name.removesuffix(HOURLY) for name in names})
    if topic is not None:
        topics = [name for name in topics if name == topic]
    if not topics:
        raise MillraceError(f"nothing of {topic or 'any topic'} in {fs.root}: check the path and the topic")
    reports = []
    for name in topics:
        check = verify_loads(fs, name, on_folder)
        if client is not None:
            _check_log(check, client)
        note_unpublished(check)
        reports.append(check.report)
        if f"{name}{HOURLY}" in names:
            reports.append(verify_hours(check))
    return reports if topic is not None else [*reports, *_strays(fs, names)]


def _strays(fs: Filesystem, tables: Collection[str]) -> list[TableReport]:
    """A report of everything in the warehouse that is no table; what is hidden is nobody's business."""
    return [
        TableReport(name, notes=[f"{name} is no table: nothing that Millrace writes is in it"])
        for name in fs.names("")
        if not {name, f"{name}{HOURLY}"} & {*tables} and not name.startswith((".", "_"))
    ]


def _refuse_others(fs: Filesystem) -> None:
    """MillraceError for a broker's folder, a log in it, or one table: all that is there belongs there."""
    names = [name for name in fs.names("") if not _is_table(fs, name)]
    if LEDGER in names or PLANS in names:
        raise MillraceError(
            f"{fs.root} is one table of a warehouse: name the folder above it, and the table with --topic"
        )
    if "owner.json" in names or any(name.endswith(".log") for name in names):
        raise MillraceError(
            f"{fs.root} is a broker's log directory, not a warehouse: check it with `millrace log verify`"
        )


def _is_table(fs: Filesystem, name: str) -> bool:
    """True for a folder with anything in it that lies in a table's; its ledger's files are called alike."""
    return any(
        inside in OURS or (inside.startswith(("load=", "date=")) and not inside.endswith(".json"))
        for inside in fs.names(name)
    )


def _check_log(check: TableCheck, client: ClusterClient) -> None:
    """Compare the published end with the log itself: the same topic, not shorter, nothing lost in between."""
    topic, numbers = check.topic, load_numbers(check.fs, check.topic)
    newest = readable(read_load, check.fs, topic, numbers[-1]) if numbers else None
    if newest is None:
        return
    try:
        topic_id = client.topic(topic).topic_id.hex
    except UnknownTopicOrPartition:
        check.problem(f"{topic} does not exist on {client.bootstrap}: its log is gone")
        return
    if different := another_log(client, topic_id, newest):
        check.problem(different)
        return
    first, last = client.list_offsets(topic, EARLIEST), client.list_offsets(topic, LATEST)
    for part in newest.partitions:
        where, end = f"{topic}-{part.partition}", last.get(part.partition, 0)
        if part.partition not in last or end < part.end:
            check.problem(f"{where} ends at offset {end}, loaded was up to {part.end}: messages are lost")
        elif first[part.partition] > part.end and first[part.partition] != part.end_base:
            check.problem(f"{where} offsets [{part.end}, {first[part.partition]}) expired before a load")
        elif end > part.end:
            check.note(f"{where} offsets [{part.end}, {end}) are not loaded yet")
