"""Executes commands in this process: opens storage, catalog and clients, and calls the function. No JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.subjects import Subjects
from millrace_warehouse.audit import findings
from millrace_warehouse.commands.auditor import auditor_at, newest_counted
from millrace_warehouse.context import Context, Progress, quiet
from millrace_warehouse.erase.erasing import erase_topic
from millrace_warehouse.erase.logs import ask_logs, in_force_until, origins
from millrace_warehouse.history.layout import Topic, read_checked
from millrace_warehouse.history.manifest import HourChange, Publication
from millrace_warehouse.history.restored import check_not_restored
from millrace_warehouse.history.schemas import HistoryEntry, PromoteResult, history, promote_registered
from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.publish.compact import compact_topic
from millrace_warehouse.publish.expire import ExpireResult, expire_topic
from millrace_warehouse.publish.publisher import PublishResult, publish_topic
from millrace_warehouse.publish.readers import describe_table
from millrace_warehouse.publish.table import PATH, RUN_ID, find_table
from millrace_warehouse.requests import Compact, Erase, Expire, Promote, Publish, Tables, Verify
from millrace_warehouse.storage import open_storage
from millrace_warehouse.verify import VerifyRun
from millrace_warehouse.verify import verify as verify_topics
from millrace_warehouse.verify.check import TopicReport


@contextmanager
def _opened(
    request: Publish | Compact | Expire | Erase | Tables | Verify, progress: Progress = quiet
) -> Iterator[Context]:
    """Open the request's warehouse and its catalog; only a publication creates the catalog's file."""
    storage = open_storage(request.warehouse)
    publishes = isinstance(request, Publish | Erase) and not request.dry_run
    with connect(storage, request.catalog, create=publishes) as catalog:
        yield Context(storage=storage, catalog=catalog, progress=progress)


def publish_one(request: Publish, topic: str, progress: Progress) -> dict[str, Any]:
    """Publish a topic. Return the result without the parts that grow with history."""
    with _opened(request, progress) as context:
        result = publish_topic(
            context, request, topic, auditor_at("" if request.unasked else request.auditor)
        )
        if earlier := _earlier_changes(context, request, result):
            changes = {(change.hour, change.last): change for change in (*earlier, *result.changes)}
            result = replace(result, published=True, changes=[*changes.values()])
    newest = result.publication
    answer = asdict(replace(result, publication=None))
    answer["publication"] = None if newest is None else newest.number
    answer["hours"] = len({hour for change in result.changes for hour in change.hours})
    answer["rejected"] = {} if newest is None else dict(newest.rejected)
    for name in ("sha256", "created", "rows", "complete_from", "complete_until"):
        answer[name] = None if newest is None else getattr(newest, name)
    return answer


def _earlier_changes(context: Context, request: Publish, result: PublishResult) -> list[HourChange]:
    """Return the changes by earlier publications of this run: a task that was killed did not report them."""
    table = None if request.dry_run else find_table(context.catalog, result.topic)
    changes: list[HourChange] = []
    for snapshot in table.metadata.snapshots if table is not None else ():
        properties = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        is_new = result.published and properties.get(PATH) == result.path
        if properties.get(RUN_ID) == request.run_id and not is_new:
            changes += read_checked(context.storage, Publication, properties[PATH]).changes
    return changes


def compact_one(request: Compact, topic: str, progress: Progress) -> dict[str, Any]:
    """Merge the small files of a topic's quiet hours."""
    with _opened(request, progress) as context:
        return asdict(compact_topic(context, request, topic))


def describe_one(request: Tables, topic: str, _: Progress) -> dict[str, Any]:
    with _opened(request) as context:
        return asdict(describe_table(context.storage, context.catalog, topic))


def expire(request: Expire, progress: Progress) -> ExpireResult:
    """Delete old files that are not needed; return their counts."""
    with _opened(request, progress) as context:
        return expire_topic(context, request)


def erase(request: Erase, progress: Progress) -> dict[str, Any]:
    """Erase the rows that a condition matches. Return counts, the files that remain, and the logs that still
    hold rows.
    """
    topic = Topic(open_storage(request.warehouse), request.topic)
    logs = ask_logs(topic, request.logs)
    with _opened(request, progress) as context:
        result = erase_topic(context, request, auditor_at(request.auditor), lambda: in_force_until(logs))
    mirrored = [*origins(topic)]
    return {
        **asdict(result),
        "logs": [asdict(log) for log in logs],
        "origins_not_asked": mirrored if len(request.logs) <= len(mirrored) else [],
    }


def promote(request: Promote) -> PromoteResult:
    """Promote the topic's table to another schema. Return the changes."""
    with SchemaRegistryClient(request.registry) as registry:
        return promote_registered(
            Topic(open_storage(request.warehouse), request.topic),
            registry,
            Subjects.parse(request.subjects, request.policies),
            request.schema_id,
            request.reason,
        )


def schema_history(request: Promote) -> Sequence[HistoryEntry]:
    """Return every schema that a topic's table has had, in order."""
    return history(Topic(open_storage(request.warehouse), request.topic))


def verify(request: Verify, progress: Progress) -> list[TopicReport]:
    with ExitStack() as stack:
        run = VerifyRun(
            storage=open_storage(request.warehouse),
            catalog=None if request.no_catalog else stack.enter_context(_opened(request)).catalog,
            client=stack.enter_context(ClusterClient(request.bootstrap)) if request.bootstrap else None,
            rows=request.rows,
            progress=progress,
        )
        reports = verify_topics(run, request.topic)
    asked = {"table": not request.no_catalog, "rows": request.rows, "log": request.bootstrap is not None}
    looked_at = {"history", *(what for what, was in asked.items() if was)}
    for report in reports:
        problems = [findings.Problem(text=text, hour=report.hours.get(text)) for text in report.problems]
        try:
            findings.write(Topic(run.storage, report.topic), looked_at, problems)
        except MillraceError as error:
            report.notes.append(f"the findings were not kept for the auditor: {error}")
    for report in reports if request.auditor else ():  # last: the auditor has counted these loads itself
        counted = newest_counted(request.auditor, report.topic)
        try:
            check_not_restored(Topic(run.storage, report.topic), counted)
        except MillraceError as error:
            report.problems.append(str(error))
    return reports
