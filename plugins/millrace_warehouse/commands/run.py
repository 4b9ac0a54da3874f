"""Does a verb in this process: opens storage, catalog and clients, asks the auditor, hands over. No JVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain

from millrace.client.cluster_client import ClusterClient
from millrace_audit.client import completeness
from millrace_registry.client import SchemaRegistryClient
from millrace_warehouse.commands.verbs import Compact, Expire, Promote, Publish, Tables, Verify
from millrace_warehouse.history.manifest import UNASKED, UNFILED, Verdict
from millrace_warehouse.history.schemas import PromoteResult, SchemaRecord, promote_registered, records
from millrace_warehouse.publish.catalog import open_catalog
from millrace_warehouse.publish.compact import CompactResult, CompactRun, compact_topic
from millrace_warehouse.publish.describe import TableDescription, describe_table
from millrace_warehouse.publish.expire import ExpireResult, ExpireRun, expire_topic
from millrace_warehouse.publish.publisher import PublishResult, PublishRun, publish_topic
from millrace_warehouse.storage import open_storage
from millrace_warehouse.verify import VerifyRun
from millrace_warehouse.verify import verify as verify_topics
from millrace_warehouse.verify.report import TopicReport

Progress = Callable[[str], None]


def publish_one(request: Publish, topic: str, progress: Progress) -> PublishResult:
    """Publish what a topic has to publish; what became of it."""
    storage = open_storage(request.warehouse)
    run = PublishRun(
        storage=storage,
        catalog=open_catalog(storage, request.catalog),
        verdict_of=partial(verdict_of, "" if request.unasked else request.auditor),
        hours=request.hours,
        proven=request.proven,
        unproven_after_s=request.unproven_after_s,
        run_id=request.run_id,
        dry_run=request.dry_run,
        rebuild=request.rebuild,
        progress=progress,
    )
    return publish_topic(run, topic)


def verdict_of(auditor: str, topic: str, hour: str) -> Verdict:
    """What the auditor at that URL says of an hour; without one the verdict is `unasked`."""
    if not auditor:
        return Verdict(verdict=UNASKED)
    if hour == UNFILED:
        return Verdict(
            verdict="unknown", reasons=["these rows have no time that counts: nobody can judge them"]
        )
    start = datetime.fromisoformat(f"{hour}:00:00").replace(tzinfo=UTC)
    answer = completeness(auditor, topic, start, start + timedelta(hours=1))
    reasons = chain.from_iterable(window.reasons for window in answer.windows)
    return Verdict(
        verdict=answer.verdict,
        watermark=None if answer.watermark is None else answer.watermark.isoformat(),
        checked=datetime.now(UTC).isoformat(timespec="seconds"),
        reasons=list(dict.fromkeys(reasons)),
    )


def compact_one(request: Compact, topic: str, progress: Progress) -> CompactResult:
    """Put the small files of a topic's quiet hours together."""
    storage = open_storage(request.warehouse)
    catalog = open_catalog(storage, request.catalog)
    run = CompactRun(storage=storage, catalog=catalog, dry_run=request.dry_run, progress=progress)
    return compact_topic(run, topic)


def describe_one(request: Tables, topic: str, _: Progress) -> TableDescription:
    """What there is to know of a topic's table."""
    storage = open_storage(request.warehouse)
    return describe_table(storage, open_catalog(storage, request.catalog), topic)


def expire(request: Expire, progress: Progress) -> ExpireResult:
    """Delete what is old and not needed; what that was."""
    storage = open_storage(request.warehouse)
    run = ExpireRun(
        storage=storage,
        catalog=open_catalog(storage, request.catalog),
        older_than_s=request.older_than_s,
        reader_grace_s=request.reader_grace_s,
        dry_run=request.dry_run,
        progress=progress,
    )
    return expire_topic(run, request.topic)


def promote(request: Promote) -> PromoteResult:
    """Record the promotion; what it changes."""
    with SchemaRegistryClient(request.registry) as registry:
        return promote_registered(
            open_storage(request.warehouse), registry, request.topic, request.schema_id, request.reason
        )


def schema_history(request: Promote) -> Sequence[SchemaRecord]:
    """Every schema that a topic's table has had, in order."""
    return records(open_storage(request.warehouse), request.topic)


def verify(request: Verify, progress: Progress) -> list[TopicReport]:
    """Check every topic of the warehouse, or one."""
    storage = open_storage(request.warehouse)
    catalog = None if request.no_catalog else open_catalog(storage, request.catalog)
    run = VerifyRun(storage=storage, catalog=catalog, rows=request.rows, on_step=progress)
    if request.bootstrap is None:
        return verify_topics(run, request.topic)
    with ClusterClient(request.bootstrap) as client:
        return verify_topics(replace(run, client=client), request.topic)
