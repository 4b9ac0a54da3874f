"""`millrace log`: list, check, compare and repair the batches in a broker's log directory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from millrace.errors import MillraceError
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_json, say
from millrace.records.mirror_position import MirrorPosition
from millrace.steps import Count, own_steps
from millrace_broker.storage.comparison import Comparison
from millrace_broker.storage.comparison import compare as compare_replicas
from millrace_broker.storage.inspection import (
    Damage,
    Finding,
    InspectedBatch,
    inspect_partition,
    partition_directories,
)
from millrace_broker.storage.log_directory import lock_directory
from millrace_broker.storage.repair import repair_partition

_DIRECTORY = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_JSON = json_option("Print one JSON object per line for a script.")


@click.group(cls=CommandGroup)
def log() -> None:
    """List, check, compare and repair batches on disk. DIR is a broker's log_dir or one partition in it.

    Example: millrace log verify data/broker-1
    """


@log.command()
@_DIRECTORY
@_JSON
def dump(directory: Path, as_json: bool) -> None:
    """List every batch in DIR: position, content, sender. Works beside a running broker.

    Example: millrace log dump data/broker-1 --json
    """
    for partition in partition_directories(directory):
        if not as_json:
            say(partition.name)
            say(_HEADING)
        for finding in inspect_partition(partition):
            print_json(_as_json(partition, finding)) if as_json else say(_as_row(finding))


@log.command()
@_DIRECTORY
@_JSON
def verify(directory: Path, as_json: bool) -> None:
    """Check every batch in DIR with a second CRC implementation; exit 1 if one is damaged or missing.

    Damage above a partition's checkpoint is printed but is no failure: these bytes are still being written,
    or the next start of the broker cuts them off. The second implementation, crcmod, is slow: 300 MB a second
    with batches of 100 KB, 100 MB with batches of 1 KB, and 2 MB without its C extension.

    Example: millrace log verify data/broker-1
    """
    if find_spec("crcmod._crcfunext") is None:
        say("crcmod has no C extension here: this takes 100 times as long", err=True)
    batches = size = failures = 0
    partitions = partition_directories(directory)
    total = sum(path.stat().st_size for partition in partitions for path in partition.glob("*.log"))
    with own_steps("log verify", counts_only=True) as progress:
        count = Count(progress, "bytes", total, "batches")
        for partition, finding in ((p, finding) for p in partitions for finding in inspect_partition(p)):
            if isinstance(finding, InspectedBatch):
                batches += 1
                size += finding.header.size
                count.add(finding.header.size, records=1)
                continue
            failures += finding.flushed
            count.add(finding.length)
            print_json(_as_json(partition, finding)) if as_json else say(_describe(finding))
    summary = f"{batches} batches, {size} bytes"
    if as_json:
        print_json({"batches": batches, "bytes": size, "damaged": failures})
    elif not failures:
        say(f"{summary}: all intact")
    if failures:
        raise MillraceError(
            f"{failures} damaged places beside {summary}: restore the files named above from a copy, or stop "
            f"the broker and run `millrace log repair {directory}`"
        )


@log.command()
@click.argument("directories", metavar="DIR DIR...", type=click.Path(path_type=Path), nargs=-1, required=True)
@_JSON
def compare(directories: Sequence[Path], as_json: bool) -> None:
    """Compare the replicas in two or more DIRs, byte by byte and file by file.

    The comparison ends at the lowest committed end that a replica knows. Exit 1 with file and position if
    replicas differ. Works beside running brokers: the commits of the last seconds may be left out.

    Example: millrace log compare data/broker-1 data/broker-2
    """
    partitions = size = 0
    differing = []
    for found in compare_replicas(directories):
        partitions += 1
        size += found.compared
        if found.difference is not None:
            differing.append(found.partition)
        if as_json:
            print_json(_comparison_json(found))
        elif (difference := found.difference) is not None:
            where = " and ".join(f"{path}, byte {at}" for path, at in difference.files)
            say(f"{found.partition}, position {difference.position}: {difference.reason}: {where}")
    if not as_json and not differing:
        say(f"{partitions} partitions, {size} bytes of each replica: all the same")
    if differing:
        raise MillraceError(
            f"{len(differing)} of {partitions} partitions differ: keep the replica that leads; reassign the"
            " partition without the broker of the other one, and then with it: it copies everything again"
        )


def _comparison_json(found: Comparison) -> dict[str, Any]:
    first = found.difference
    return {
        "partition": found.partition,
        "replicas": [str(path) for path in found.replicas],
        "start": found.start,
        "end": found.end,
        "difference": None
        if first is None
        else {
            "position": first.position,
            "reason": first.reason,
            "files": [{"file": str(path), "byte": at} for path, at in first.files],
        },
    }


@log.command()
@_DIRECTORY
@click.option(
    "--give-up-neighbours",
    is_flag=True,
    help="If a damaged batch is smaller than its replacement (72 bytes), also give up the batch beside it.",
)
@_JSON
def repair(directory: Path, give_up_neighbours: bool, as_json: bool) -> None:
    """Replace every damaged batch in DIR by a control batch that readers skip, and print what was lost.

    The command is refused while a broker uses the directory. If there is a copy of the file, restore it
    instead.

    Example: millrace log repair data/broker-1
    """
    repaired = 0
    with _locked(directory):
        for partition in partition_directories(directory):
            now = int(time.time() * 1000)
            for damage in repair_partition(partition, now, give_up_neighbours=give_up_neighbours):
                repaired += 1
                print_json(_as_json(partition, damage)) if as_json else say(_describe(damage))
    if not as_json:
        say(f"{repaired} damaged places replaced" if repaired else "nothing to repair")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a log directory, given by its own path or by the path of a partition in it."""
    is_partition = partition_directories(directory) == [directory]
    fd = lock_directory(directory.resolve().parent if is_partition else directory)
    try:
        yield
    finally:
        os.close(fd)


_HEADING = (
    f"{'position':>14} {'bytes':>9} {'kind':<9} {'records':>7} {'codec':<6} {'max timestamp':>14}  detail"
)


def _as_row(finding: Finding) -> str:
    if isinstance(finding, Damage):
        return f"{finding.position:>14} {finding.length:>9} DAMAGED   {_describe(finding)}"
    header, detail = finding.header, ""
    if finding.mirror is not None:
        origin = finding.mirror.origin
        detail = (
            f"{origin.cluster} {origin.topic}-{origin.partition} up to {finding.mirror.cursor.next_offset}"
        )
    elif header.producer_id >= 0:
        detail = f"producer {header.producer_id}/{header.producer_epoch} sequence {header.base_sequence}"
    return (
        f"{finding.position:>14} {header.size:>9} {finding.kind:<9} {header.records_count:>7} "
        f"{_codec(header.attributes):<6} {header.max_timestamp:>14}  {detail}"
    ).rstrip()


def _codec(attributes: int) -> str:
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    return names[attributes & 7] if attributes & 7 < len(names) else "?"


def _describe(damage: Damage) -> str:
    where = f"{damage.path}, position {damage.position}, {damage.length} bytes: {damage.reason}"
    if not damage.flushed:
        return f"{where} (above the checkpoint: not yet flushed)"
    if damage.lost_offsets is None:
        return where
    return f"{where}; lost offsets {damage.lost_offsets[0]} to {damage.lost_offsets[1]}"


def _as_json(partition: Path, finding: Finding) -> dict[str, Any]:
    fields = {"partition": partition.name, "segment": finding.path.name, "position": finding.position}
    if isinstance(finding, Damage):
        own = {"reason": finding.reason, "flushed": finding.flushed, "lost_offsets": finding.lost_offsets}
        return {**fields, "kind": "damage", "size": finding.length, **own}
    header = finding.header
    fields |= {
        "kind": finding.kind,
        "size": header.size,
        "base_offset": header.base_offset,
        "next_offset": header.next_offset,
        "records": header.records_count,
        "codec": _codec(header.attributes),
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "crc": header.crc,
    }
    return fields if finding.mirror is None else {**fields, "mirror": _mirror_json(finding.mirror)}


def _mirror_json(position: MirrorPosition) -> dict[str, Any]:
    return {
        **asdict(position.origin),
        "topic_id": str(position.origin.topic_id),
        "start": position.start,
        "next_offset": position.cursor.next_offset,
        "next_base": position.cursor.next_base,
        "batches": position.batches,
        "records": position.records,
        "dropped": position.dropped,
    }
