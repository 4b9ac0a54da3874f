"""One load: what is new in a topic, read once, accounted for, made visible by one rename.

The run: heal what a crash left, freeze the end, then until one attempt is published or nothing is left to
do: start at the published end, have the rows written and accounted for (`load_writing`), rename. Another
driver that was first makes the rename fail; then this one starts over from what that one published. Written
without Spark: sinks bring it along.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.errors import MillraceError, UnknownTopicOrPartition
from millrace.manifest import LoadManifest, sealed
from millrace.wire.client import LATEST, ClusterClient, TopicMetadata
from millrace_spark.filesystem import Filesystem
from millrace_spark.load_writing import (
    Heading,
    Pinned,
    WritingRun,
    now,
    parts_of,
    reached_by,
    write_ranges,
)
from millrace_spark.plan import Plan, PlannedEnd, check_topic_id, freeze
from millrace_spark.warehouse import (
    STAGING,
    check_topic_name,
    load_folder,
    newest_load,
    publish,
    read_load,
    record,
    sweep_staging,
)

ATTEMPTS = 20
"""Races lost in a row before a run gives up: each means that another one got its load through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun(WritingRun):
    """Everything one run needs; built in one place, by the job."""

    pin: Callable[[str], Pinned]
    """The source of a topic; asked once per attempt that reads."""
    publish_counts: Callable[[LoadManifest], None]
    """Tells the auditor what a load holds; harmless to repeat."""
    accept_new_topic: bool = False
    """Go on with a topic that was deleted and created anew, from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """What a run did, for people and for scripts."""

    topic: str
    run_id: str
    load: int | None
    """The load that holds everything this run set out to load; None while the topic is empty."""
    published: bool
    """True if this call published it."""
    rows: int
    rejected: int
    hours: Mapping[str, int]
    gaps: Sequence[str]
    message: str


def load_topic(run: LoadRun, topic: str) -> LoadResult:
    """Load what the run's plan says, unless it is loaded already; MillraceError when it cannot be done."""
    check_topic_name(topic)
    metadata = _metadata(run.client, topic)
    newest = _healed(run, topic, None)
    sweep_staging(run.fs, topic)
    plan, fresh = freeze(run.fs, topic, run.run_id, lambda: _propose(run, metadata, newest))
    run.progress("planned")
    for _ in range(ATTEMPTS):
        newest = _healed(run, topic, newest)
        check_topic_id(plan, _metadata(run.client, topic).topic_id.hex)
        _check_same_topic(run, plan, newest)
        if _covered(plan, newest):
            return _nothing_to_do(run.fs, plan, newest, fresh)
        manifest = _attempt(run, plan, newest)
        if manifest is not None:
            run.publish_counts(manifest)
            run.progress("counted")
            return _published(manifest)
    raise MillraceError(f"{topic}: other runs were faster {ATTEMPTS} times; run one load at a time")


def _metadata(client: ClusterClient, topic: str) -> TopicMetadata:
    try:
        return client.topic(topic)
    except UnknownTopicOrPartition:
        raise MillraceError(
            f"topic {topic!r} does not exist on {client.bootstrap}: check its name, or create it first"
        ) from None


def _healed(run: LoadRun, topic: str, seen: LoadManifest | None) -> LoadManifest | None:
    """The newest load, its ledger entry and its counts made good unless it is the one seen before.

    Asked before every attempt: whoever publishes the next load hides this one from all later runs, and the
    driver that published it may have died right after its rename.
    """
    newest = newest_load(run.fs, topic)
    if newest is not None and newest != seen:
        record(run.fs, topic, load_folder(newest.load), newest)
        run.publish_counts(newest)
        run.progress("healed")
    return newest


def _propose(run: LoadRun, metadata: TopicMetadata, newest: LoadManifest | None) -> Plan:
    ends = run.client.list_offsets(metadata.name, LATEST, metadata.partitions)
    if newest is not None and newest.topic_id == metadata.topic_id.hex:
        for partition, end in newest.ends.items():
            if ends.get(partition, 0) < end:
                raise MillraceError(
                    f"{metadata.name}-{partition} ends at offset {ends.get(partition, 0)}, but was loaded"
                    f" up to {end}: its log has lost messages; restore it before you load on"
                )
    return Plan(
        topic=metadata.name,
        topic_id=metadata.topic_id.hex,
        cluster_id=run.client.cluster_id,
        run_id=run.run_id,
        created=now(),
        ends=tuple(PlannedEnd(partition=p, end=end) for p, end in sorted(ends.items())),
    )


def _check_same_topic(run: LoadRun, plan: Plan, newest: LoadManifest | None) -> None:
    if newest is None or newest.topic_id == plan.topic_id or run.accept_new_topic:
        return
    raise MillraceError(
        f"topic {plan.topic} was deleted and created anew (id {plan.topic_id}, the loads are of"
        f" {newest.topic_id}): load with --accept-new-topic to go on with it from its beginning"
    )


def _covered(plan: Plan, newest: LoadManifest | None) -> bool:
    if newest is None:
        return not any(plan.end_offsets.values())
    return newest.covers(plan.topic_id, plan.end_offsets)


def _attempt(run: LoadRun, plan: Plan, newest: LoadManifest | None) -> LoadManifest | None:
    """One try to load from the published end to the plan's; None when another driver was first."""
    staging = f"{plan.topic}/{STAGING}/{uuid.uuid4().hex}"
    try:
        manifest = _write(run, plan, newest, staging)
    except BaseException:
        run.fs.delete(staging)
        raise
    run.progress("verified")
    folder = load_folder(manifest.load)
    return manifest if publish(run.fs, plan.topic, staging, folder, manifest, run.progress) else None


def _write(run: LoadRun, plan: Plan, newest: LoadManifest | None, staging: str) -> LoadManifest:
    same_topic = newest is not None and newest.topic_id == plan.topic_id
    reached = reached_by(newest.partitions) if newest is not None and same_topic else {}
    parts = parts_of(run.client, plan.topic, plan.topic_id, reached, plan.end_offsets)
    heading = Heading(
        topic=plan.topic,
        topic_id=plan.topic_id,
        cluster_id=plan.cluster_id,
        load=1 if newest is None else newest.load + 1,
        previous=None if newest is None else newest.sha256,
    )
    return sealed(write_ranges(run, heading, run.pin(plan.topic), parts, staging))


def _nothing_to_do(fs: Filesystem, plan: Plan, newest: LoadManifest | None, fresh: bool) -> LoadResult:
    if newest is None:
        return _result(plan.topic, plan.run_id, None, "the topic is empty, there is nothing to load")
    holder = newest
    while holder.load > 1:
        earlier = read_load(fs, plan.topic, holder.load - 1)
        if not earlier.covers(plan.topic_id, plan.end_offsets):
            break
        holder = earlier
    if fresh:
        message = f"nothing new since load={newest.load:010d}"
        return _result(plan.topic, plan.run_id, newest, message)
    return _result(plan.topic, plan.run_id, holder, f"load={holder.load:010d} holds it already")


def _published(manifest: LoadManifest) -> LoadResult:
    gaps = [
        f"{manifest.topic}-{part.partition} offsets [{gap.start}, {gap.end}) are {gap.reason}"
        for part in manifest.partitions
        for gap in part.gaps
    ]
    return LoadResult(
        topic=manifest.topic, run_id=manifest.run_id, load=manifest.load, published=True,
        rows=manifest.rows, rejected=manifest.rejected, hours=manifest.rows_by_hour(), gaps=gaps,
        message=f"published load={manifest.load:010d}",
    )  # fmt: skip


def _result(topic: str, run_id: str, load: LoadManifest | None, message: str) -> LoadResult:
    """What to say when nothing is left to do; a load that this very run published is told in full."""
    if load is not None and load.run_id == run_id:
        return dataclasses.replace(_published(load), published=False, message=message)
    return LoadResult(
        topic=topic, run_id=run_id, load=None if load is None else load.load, published=False,
        rows=0, rejected=0, hours={}, gaps=(), message=message,
    )  # fmt: skip


def as_json(result: LoadResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {name: getattr(result, name) for name in LoadResult.__slots__}
