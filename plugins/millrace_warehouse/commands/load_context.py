"""Context of a load or a re-load: its connections, the topic's schema, and comparisons with other services.

Spark's job and the resident loader share it; the functions that run the tasks are their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from millrace.client.cluster_client import ClusterClient
from millrace.errors import MillraceError
from millrace.security.client import of_process
from millrace.steps import to_stderr
from millrace.topics_file import NO_POLICY, TopicPolicy
from millrace_registry.client import RegisteredVersion, SchemaRegistryClient, UnknownSchema
from millrace_registry.retained import ids_in
from millrace_registry.subjects import Subjects, foreign_id_lines, foreign_ids
from millrace_warehouse.commands.auditor import newest_counted
from millrace_warehouse.history.layout import Topic, read_load, unpublished_since
from millrace_warehouse.history.manifest import now
from millrace_warehouse.history.restored import check_not_restored
from millrace_warehouse.history.schemas import (
    check_same_format,
    first_schema,
    pinned,
    plain_schema,
    with_layout,
    with_own_columns,
)
from millrace_warehouse.load.load import LoadResult, LoadRun
from millrace_warehouse.load.range_writer import LoadContext, Pinned
from millrace_warehouse.load.rejections import DEFAULT_LIMITS, RejectedLimits
from millrace_warehouse.load.task import RunTasks
from millrace_warehouse.log.bounds import Bounds
from millrace_warehouse.log.formats import AVRO, PLAIN_SCHEMAS, MessageFormat, check_is_avro, no_schema
from millrace_warehouse.requests import Load, Reload
from millrace_warehouse.storage import Storage

UNPUBLISHED_AFTER = timedelta(days=1)
"""Age at which later loads note an unpublished load: no schedule has published it."""


def run_of(context: LoadContext, request: Load) -> LoadRun:
    """Return the run of a topic's request."""
    limits = RejectedLimits.parse(request.max_rejected) if request.max_rejected else DEFAULT_LIMITS
    return LoadRun(
        context=replace(context, max_rejected=limits, accept_gaps=request.accept_gaps),
        bounds=Bounds(max_bytes=request.max_bytes, until_ms=request.until_ms),
        accept_new_topic=request.accept_new_topic,
    )


def notes_on(topic: Topic, request: Load, result: LoadResult) -> list[str]:
    """Return the notes on a load that other services and older loads give rise to."""
    return [*_other_subjects(topic, request, result), *unpublished_notes(topic, result)]


def show_live(request: Load, topic: Topic) -> list[str]:
    """Bring branch `live` up to date, or remove it, as the topic's policy says. Return notes."""
    if request.live is None:
        return []
    from millrace_warehouse.publish.live import follow_load  # pyiceberg's catalogs take 0.4 s to import

    return follow_load(topic, request.catalog, on=request.live)


def show_reloaded(request: Reload, topic: Topic) -> list[str]:
    """Show new editions in branch `live` if the table has it. Return a note if that fails.

    The tables of a warehouse that is not on a local disk are only in a catalog that the request names.
    """
    if not request.catalog and not topic.storage.root.startswith("file://"):
        return []
    from millrace_warehouse.publish.live import follow_load  # pyiceberg's catalogs take 0.4 s to import

    return follow_load(topic, request.catalog, on=None)


def compare_with_auditor(url: str, topic: Topic) -> list[str]:
    """Compare the topic's folder with the auditor's counts. Return a note when the auditor does not answer.

    Raise RefusedLog when the auditor has counted a load that the topic's folder does not have.
    """
    try:
        counted = newest_counted(url, topic.name) if url else None
    except MillraceError as error:
        return [f"{topic}: whether its folder is as new as what was counted is not known: {error}"]
    check_not_restored(topic, counted)
    return []


def _other_subjects(topic: Topic, request: Load, result: LoadResult) -> list[str]:
    """Return a note for each schema id in the load's messages that is of another subject."""
    if result.load is None or not result.published:
        return []
    try:
        load = read_load(topic, result.load)
        loaded = {id_ for part in load.partitions for id_ in part.schema_ids}
        with SchemaRegistryClient(request.registry) as registry:
            others = foreign_ids(
                topic.name, loaded, Subjects.parse(request.subjects, request.policies), registry
            )
    except MillraceError as error:  # the load is committed, whatever storage and registry answer now
        return [f"{topic}: whether its messages are of the topic's subject is not known: {error}"]
    return foreign_id_lines(topic.name, others)


def unpublished_notes(topic: Topic, result: LoadResult) -> list[str]:
    """Return a note on loads that wait for `publish`, when the oldest of them has waited for long.

    Only the first load of an hour checks, because listing the publications takes longer the more there are.
    """
    load = result.load
    if load is None or not result.published:
        return []
    try:
        if load > 1 and read_load(topic, load - 1).created[:13] == now()[:13]:
            return []
        waiting = unpublished_since(topic)
    except MillraceError as error:  # the load is committed, whatever the storage answers now
        return [f"{topic}: whether older loads wait for `publish` is not known: {error}"]
    if waiting is None or datetime.now(UTC) - datetime.fromisoformat(waiting.created) < UNPUBLISHED_AFTER:
        return []
    return [f"{topic}: no load since {waiting.created} is published: run `millrace publish {topic}`"]


@contextmanager
def load_context(
    request: Load | Reload, command: str, topic: Topic, run_tasks: RunTasks, *, timeout_s: float = 30
) -> Iterator[LoadContext]:
    """Yield the context of a load or re-load while its connections are open."""
    told = _told(request)
    if (told.name or told.time) and (table_schema := pinned(topic)) is not None:
        check_same_format(table_schema, told)  # a topic without new messages asks for no schema later
    # The tasks get the names of the files, which every worker has under the same names.
    connect = partial(ClusterClient, request.bootstrap, timeout_s=timeout_s, security=of_process())
    with connect() as client, SchemaRegistryClient(request.registry) as registry:
        subjects = Subjects.parse(request.subjects, request.policies)
        policy = request.policies.get(topic.name, NO_POLICY)
        context = LoadContext(
            storage=topic.storage,
            client=client,
            run_tasks=run_tasks,
            run_id=request.run_id,
            cut_bytes=request.cut_bytes,
            pin=partial(_pin, topic.storage, registry, subjects, connect, told, policy),
            progress=to_stderr(f"{command} {topic}"),
            tombstones_as_rows=policy.tombstones_as_rows,
        )
        yield context


def _told(request: Load | Reload) -> MessageFormat:
    """Return the format and time that the command or the topic's policy names, or empty values."""
    return MessageFormat(request.format, request.time) if isinstance(request, Load) else MessageFormat("")


def _pin(
    storage: Storage,
    registry: SchemaRegistryClient,
    subjects: Subjects,
    connect: partial[ClusterClient],
    told: MessageFormat,
    policy: TopicPolicy,
    name: str,
    used: int,
) -> Pinned:
    """Return the topic's newest schema, with the layout of its policy: for the first load the newest
    registered one, with the format.
    """
    topic = Topic(storage, name)
    table_schema = pinned(topic, used)
    is_first = table_schema is None
    if table_schema is None:
        messages = MessageFormat(told.name or AVRO, told.time)
        if messages.name in PLAIN_SCHEMAS:
            table_schema = plain_schema(topic, messages)
        else:
            with connect() as client:
                if not told.name:
                    check_is_avro(client, name, registry.find_schema)
                latest = _newest_registered(client, registry, subjects, name, messages.name)
            table_schema = first_schema(topic, latest.schema_id, latest.schema, messages)
    check_same_format(table_schema, told)
    table_schema = with_own_columns(topic, table_schema, registry.find_schema)
    table_schema = with_layout(topic, table_schema, policy.partition, policy.sort, is_first=is_first)
    return Pinned.from_schema(table_schema, connect, registry.find_schema)


def _newest_registered(
    client: ClusterClient, registry: SchemaRegistryClient, subjects: Subjects, topic: str, format: str
) -> RegisteredVersion:
    subject = subjects.of_messages(topic, lambda: ids_in(client, topic, tail_only=True), registry)
    try:
        return registry.latest(subject)
    except UnknownSchema:
        raise no_schema(client, topic, f"subject {subject!r}", registry, format) from None
