"""Options of each command, defined once: a command reads them from its command line, a Spark job from JSON.

A field made by `option` can be given on a command line. Other fields are for jobs and tests alone. Airflow's
operators pass options of the same names. This module depends on none of the code that executes the commands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, ClassVar, TypeVar, dataclass_transform

from millrace import topics_file
from millrace.topics_file import NO_POLICY, TopicPolicies
from millrace_registry import subjects as subject_words
from millrace_warehouse import option_values

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Option:
    """Spelling of a field on a command line."""

    name: str
    parse: Callable[[Any, str], Any] | None
    """Function that parses a value, given the option's name for its ConfigError; None for no parsing."""
    attributes: Mapping[str, Any]
    """Attributes of click's parameter."""


def option(
    spelling: str,
    help: str = "",
    parse: Callable[[Any, str], Any] | None = None,
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    repr: bool = True,
    **attributes: Any,
) -> Any:
    """Return a field that is an option `--name METAVAR`, a flag `--flag` or an argument `NAME`. `...` makes
    it repeatable.

    Without a default the option is required. A default that is text is parsed like a given value.
    """
    name, _, metavar = spelling.removesuffix("...").partition(" ")
    attributes |= {"metavar": metavar} if metavar else {}
    if spelling.endswith("..."):
        attributes |= {"multiple": True} if metavar else {"nargs": -1, "metavar": spelling}
    attributes |= {"help": help} if help else {}
    attributes |= {"is_flag": True} if default is False else {}
    attributes["required"] = default is MISSING and default_factory is MISSING
    if isinstance(default, str) and default:
        attributes |= {"default": default, "show_default": True}
        default = parse(default, name) if parse else default
    metadata = {"option": Option(name, parse, attributes)}
    return field(default=default, default_factory=default_factory, repr=repr, metadata=metadata)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(option,))
def command_options(cls: type[V]) -> type[V]:
    """Make a class a frozen dataclass whose fields may be options."""
    return dataclass(frozen=True, kw_only=True)(cls)


def command_line_fields(cls: type) -> Iterator[tuple[str, Option]]:
    """Yield the fields that a command line can give, in order."""
    for member in dataclasses.fields(cls):
        if "option" in member.metadata:
            yield member.name, member.metadata["option"]


def parse_request(cls: type[V], texts: Mapping[str, Any]) -> V:
    """Return the request that these option values mean. None and () mean that an option was not given."""
    values = {}
    for name, spelt in command_line_fields(cls):
        if (word := texts[name]) not in (None, ()):
            values[name] = spelt.parse(word, spelt.name) if spelt.parse else word
    return cls(**values)


WAREHOUSE = (
    "--warehouse URI",
    "Folder of the warehouse: a path, hdfs://, s3://, gs:// or abfss://.",
    option_values.absolute_warehouse,
)
REGISTRY = "--registry URL", "The schema registry."
TOPICS_FILE = (
    "--topics-file FILE",
    "Settings of each topic, in TOML (docs/configuration.md).",
    option_values.policies,
)
SUBJECTS = "--subject [TOPIC=]SUBJECT...", subject_words.OPTION_HELP, option_values.checked_subjects
RUN_ID = (
    "--run-id NAME",
    "Name of the run; repeating a run under its name finishes it.",
    option_values.run_id,
)
CATALOG = (
    "--catalog NAME",
    "Iceberg catalog of pyiceberg's configuration; a local warehouse has its own catalog.",
)
ACCESS = "--access FILE", "Show metrics only to users with a token in this file (`millrace access`)."
CERTIFICATE = "--certificate FILE", "Serve metrics by HTTPS with this PEM file."
KEY = "--key FILE", "Key of the certificate, if it is in another file; mode 0600."
CUT_BYTES = 64 << 20
"""Log bytes per task."""


@command_options
class Load:
    """`millrace load`."""

    after_interrupt: ClassVar[str] = (
        "each topic was loaded whole or not at all; run it again to load the rest"
    )
    topics: Sequence[str] = option("TOPIC...", parse=option_values.distinct, default=())
    warehouse: str = option(*WAREHOUSE)
    bootstrap: str = option(
        "--bootstrap HOST:PORT", "Brokers of the cluster to load from.", option_values.checked_addresses
    )
    registry: str = option(*REGISTRY, envvar="MILLRACE_REGISTRY", repr=False)
    subjects: Sequence[str] = option(*SUBJECTS, default=(), envvar=subject_words.ENVIRONMENT)
    policies: TopicPolicies = option(*TOPICS_FILE, default_factory=dict, envvar=topics_file.VARIABLE)
    format: str = option(
        "--format FORMAT",
        "Format of the messages: avro, avro-unframed, json, bytes or text. The first load of a topic pins it."
        "  [default: avro]",
        option_values.message_format,
        default="",
    )
    time: str = option(
        "--time FIELD",
        "Field with the time of an event. The first load of a topic pins it.  [default: the record's time]",
        default="",
    )
    auditor: str = option(
        "--auditor URL",
        "Auditor to ask whether the topic's folder has every load that it has counted.",
        default="",
        envvar="MILLRACE_AUDITOR",
        repr=False,
    )
    topics_matching: str = option(
        "--topics-matching REGEX",
        "Also load every topic whose whole name matches; topics without a schema are listed and left out.",
        option_values.checked_pattern,
        default="",
    )
    """The command adds the matching topics to `topics`."""
    run_id: str = option(*RUN_ID, default_factory=option_values.run_id)
    """Name of the plan. It is the same for every try of one run."""
    max_bytes: int | None = option(
        "--max-bytes SIZE",
        "Take at most this much of each topic's log (500MB, 2GiB); the next run takes the next part.",
        option_values.optional(option_values.parse_bytes),
        default=None,
    )
    until_ms: int | None = option(
        "--until TIME",
        "Load only messages that were produced before this time.",
        option_values.optional(option_values.parse_time_ms),
        default=None,
    )
    max_rejected: str = option(
        "--max-rejected N|P%[,KIND=N|P%...]",
        "Fail a topic if more records than this cannot be decoded for one of the reasons "
        "foreign_framing, unknown_schema or broken_body.  [default: 0.1%, or 100 where that "
        "is more]",
        default="",
    )
    """Text that `rejections.RejectedLimits` parses."""
    accept_rejected: bool = option(
        "--accept-rejected", "Succeed although records could not be decoded.", default=False
    )
    """The command applies it. The load is made either way."""
    accept_new_topic: bool = option(
        "--accept-new-topic",
        "Continue with a topic that was deleted and recreated, or is in a new cluster.",
        default=False,
    )
    accept_gaps: bool = option(
        "--accept-gaps", "Continue although offsets are missing in the log.", default=False
    )
    live: bool | None = option(
        "--live",
        "Show the rows at once in branch `live` of the topic's table, before their hours are proven.",
        default=False,
    )
    catalog: str = option(*CATALOG, default="")
    """Used for branch `live` only."""
    follow: bool = option(
        "--follow",
        "Keep running: read new messages continuously, and make a load of each topic every 5 "
        "minutes or 256 MiB, and at SIGTERM. Branch `live` shows the rows earlier; a topic "
        "without that branch gets a load every minute.",
        default=False,
    )
    engine: str = option(
        "--engine ENGINE",
        "`spark`, one Spark application; with --follow its limits of size are for each core. Or `local`,"
        " without Spark: N processes of this machine with --master local[N], one with --follow.  [default:"
        " spark; local with --follow]",
        option_values.engine,
        default="",
    )
    every_s: float = option(
        "--every AGE", "With --follow: pause between two readings.", option_values.parse_pause, default="5s"
    )
    metrics_listen: str = option(
        "--metrics-listen HOST:PORT",
        "With --follow: address on which to serve /metrics for Prometheus, and /healthz.",
        default="",
    )
    access_file: str = option(*ACCESS, default="")
    certificate: str = option(*CERTIFICATE, default="")
    key: str = option(*KEY, default="")
    cut_bytes: int = CUT_BYTES
    stop_pipe: str = ""
    """Named pipe in which a resident job finds a byte, or its end, when it must stop."""

    def for_topic(self, topic: str) -> Load:
        """Return the request for one topic. The topic's policy fills options that were not given."""
        policy = self.policies.get(topic, NO_POLICY)
        most = (
            option_values.parse_bytes(policy.max_bytes, f"{topic}: max_bytes") if policy.max_bytes else None
        )
        return dataclasses.replace(
            self,
            topics=[topic],
            format=self.format or policy.format,
            time=self.time or policy.time,
            max_bytes=most if self.max_bytes is None else self.max_bytes,
            max_rejected=self.max_rejected or policy.max_rejected,
            accept_rejected=self.accept_rejected or policy.accept_rejected,
            live=self.live or policy.live,
        )


@command_options
class Publish:
    """`millrace publish`."""

    after_interrupt: ClassVar[str] = (
        "each topic was published whole or not at all; run it again to publish the rest"
    )
    topics: Sequence[str] = option("TOPIC...", parse=option_values.distinct)
    warehouse: str = option(*WAREHOUSE)
    hours: Sequence[str] = option("--hour TIME...", "An hour to publish; may be repeated.", default=())
    """Hours such as `2015-05-17T10`, in UTC, or `none`, with or without rows. The command adds the hours of
    [start, end).
    """
    start: str = option("--from TIME", "Publish every hour from this whole hour on ...", default="")
    end: str = option("--to TIME", "... up to this whole hour, which is not included.", default="")
    proven: bool = option(
        "--proven", "Also publish every hour that waits and that the auditor calls proven.", default=False
    )
    unproven_after_s: float | None = option(
        "--unproven-after AGE",
        "Also publish hours that the auditor cannot judge and that ended at least this long "
        "ago, but no incomplete hour.",
        option_values.optional(option_values.parse_age),
        default=None,
    )
    auditor: str = option(
        "--auditor URL",
        "Auditor whose verdict is stored with each hour.",
        default="",
        envvar="MILLRACE_AUDITOR",
        repr=False,
    )
    unasked: bool = option(
        "--unasked", "Ask no auditor: the verdict of each hour is `unasked`.", default=False
    )
    catalog: str = option(*CATALOG, default="")
    run_id: str = option(*RUN_ID, default_factory=option_values.run_id)
    dry_run: bool = option("--dry-run", "Show what would be published, and publish nothing.", default=False)
    rebuild: bool = option(
        "--rebuild",
        "Rebuild the table from the loads and publications, after its catalog was lost or rolled back.",
        default=False,
    )


@command_options
class Compact:
    """`millrace compact`."""

    after_interrupt: ClassVar[str] = (
        "each topic was compacted whole or not at all; run it again to compact the rest"
    )
    topics: Sequence[str] = option("TOPIC...", parse=option_values.distinct)
    warehouse: str = option(*WAREHOUSE)
    catalog: str = option(*CATALOG, default="")
    dry_run: bool = option("--dry-run", "Show what would be compacted, and compact nothing.", default=False)
    quiet_s: float = 6 * 3600.0
    """Time in seconds: an hour that a publication has changed within it is not compacted."""
    small_bytes: int = 64 << 20
    """Size in bytes: smaller files are merged."""
    small_files: int = 8
    """Number of small files up to which an hour is not compacted."""
    target_bytes: int = 256 << 20
    """Size in bytes of the sources at which a new file begins."""


@command_options
class Tables:
    """`millrace tables`."""

    after_interrupt: ClassVar[str] = "nothing was changed"
    topics: Sequence[str] = option("TOPIC...", parse=option_values.distinct)
    warehouse: str = option(*WAREHOUSE)
    catalog: str = option(*CATALOG, default="")


@command_options
class Reload:
    """`millrace reload`: hours or loads."""

    after_interrupt: ClassVar[str] = "the loads were read again as a whole or not at all; run it again"
    topic: str = option("TOPIC")
    warehouse: str = option(*WAREHOUSE)
    bootstrap: str = option(
        "--bootstrap HOST:PORT", "Brokers of the cluster to read from.", option_values.checked_addresses
    )
    registry: str = option(*REGISTRY, envvar="MILLRACE_REGISTRY", repr=False)
    subjects: Sequence[str] = option(*SUBJECTS, default=(), envvar=subject_words.ENVIRONMENT)
    policies: TopicPolicies = option(*TOPICS_FILE, default_factory=dict, envvar=topics_file.VARIABLE)
    reason: str = option("--reason TEXT", "Reason; it is kept in the manifest.", option_values.checked_reason)
    hours: Sequence[str] = option("--hour TIME...", "An hour; may be repeated.", default=())
    """Hours such as `2015-05-17T10`, in UTC. The command adds the hours of [start, end)."""
    start: str = option("--from TIME", "Every hour from this time on ...", default="")
    end: str = option("--to TIME", "... up to this whole hour, which is not included.", default="")
    loads: Sequence[int] = option(
        "--loads A-B",
        "Instead of hours: these loads, by number, like 7 or 7-9.",
        option_values.parse_loads,
        default=(),
    )
    run_id: str = option(*RUN_ID, default_factory=option_values.run_id)
    """Name of the run. A repeated run of this name skips the loads that it has already read."""
    engine: str = option(
        "--engine ENGINE",
        "`spark`, one Spark application, or `local`: N processes of this machine with --master local[N].",
        option_values.engine,
        default=option_values.SPARK,
    )
    catalog: str = option(*CATALOG, default="")
    """Used for branch `live` only."""
    cut_bytes: int = CUT_BYTES


@command_options
class Expire:
    """`millrace expire`."""

    after_interrupt: ClassVar[str] = "some files may be deleted already; run it again to delete the rest"
    topic: str = option("TOPIC")
    warehouse: str = option(*WAREHOUSE)
    older_than_s: float = option(
        "--older-than AGE",
        "Delete no files of loads younger than this, for example 30d or 12h.",
        option_values.parse_age,
    )
    reader_grace_s: float = option(
        "--reader-grace AGE",
        "Keep a file that no snapshot names any more for at least this time, because queries "
        "may still read it.",
        option_values.parse_age,
        default="3d",
    )
    catalog: str = option(*CATALOG, default="")
    dry_run: bool = option("--dry-run", "Show what would be deleted, and delete nothing.", default=False)


@command_options
class Erase:
    """`millrace erase`."""

    after_interrupt: ClassVar[str] = "the erasure may have begun; run it again under its --id to finish it"
    topic: str = option("TOPIC")
    warehouse: str = option(*WAREHOUSE)
    where: str = option(
        "--where CONDITION",
        "Condition on the rows, like \"memberId = 42\" or \"header.server IN ('a', 'b')\".",
        default="",
    )
    reason: str = option("--reason TEXT", "Reason; it is kept with the erasure.", default="")
    by: str = option(
        "--by NAME",
        "Person who asked for the erasure.  [default: user@machine]",
        default_factory=option_values.user_at_machine,
    )
    id: str = option(
        "--id NAME",
        "Name of the erasure, such as a request's number; a repeated erasure continues where it stopped.",
        option_values.checked_name,
        default="",
    )
    all_rows: bool = option("--all-rows", "Continue although the condition matches every row.", default=False)
    rejected: bool = option(
        "--rejected",
        "Also erase the bytes and keys of all records that could not be decoded, and the keys "
        "of all tombstones: no condition can select them.",
        default=False,
    )
    logs: Sequence[str] = option(
        "--log HOST:PORT...",
        "A cluster that has the topic: show the offsets that its log still holds, and for how "
        "long. May be repeated.",
        option_values.each_checked_address,
        default=(),
    )
    auditor: str = option(
        "--auditor URL",
        "Auditor to ask about hours that are not complete.",
        default="",
        envvar="MILLRACE_AUDITOR",
        repr=False,
    )
    catalog: str = option(*CATALOG, default="")
    dry_run: bool = option("--dry-run", "Show what would be erased, and erase nothing.", default=False)
    fresh_id: str = field(default_factory=option_values.fresh_erasure)


@command_options
class Promote:
    """`millrace promote`."""

    after_interrupt: ClassVar[str] = "the schema was changed as a whole or not at all; --list shows it"
    topic: str = option("TOPIC")
    warehouse: str = option(*WAREHOUSE)
    registry: str = option(*REGISTRY, default="", envvar="MILLRACE_REGISTRY", repr=False)
    subjects: Sequence[str] = option(*SUBJECTS, default=(), envvar=subject_words.ENVIRONMENT)
    policies: TopicPolicies = option(*TOPICS_FILE, default_factory=dict, envvar=topics_file.VARIABLE)
    schema_id: int | None = option(
        "--schema-id",
        "Id of a registered schema of the topic; without it, the newest one.",
        default=None,
        type=int,
    )
    reason: str = option("--reason TEXT", "Reason, for readers of the history.", default="")
    history: bool = option(
        "--list", "Show the schemas that the table has had, and change nothing.", default=False
    )


@command_options
class Verify:
    """`millrace verify`."""

    after_interrupt: ClassVar[str] = "nothing was proven"
    topic: str | None = option("TOPIC", default=None)
    """None checks every topic."""
    warehouse: str = option(*WAREHOUSE)
    rows: bool = option(
        "--rows", "Also read every row, to check its hour and the sequences of its load.", default=False
    )
    no_catalog: bool = option(
        "--no-catalog", "Check only the loads, without tables and the catalog.", default=False
    )
    bootstrap: str | None = option(
        "--bootstrap HOST:PORT",
        "Also compare with this cluster's logs.",
        option_values.checked_addresses,
        default=None,
    )
    auditor: str = option(
        "--auditor URL",
        "Auditor to ask whether each topic's folder has every load that it has counted.",
        default="",
        envvar="MILLRACE_AUDITOR",
        repr=False,
    )
    catalog: str = option(*CATALOG, default="")


@command_options
class AuditWarehouse:
    """`millrace audit-warehouse`."""

    after_interrupt: ClassVar[str] = "what was reported stays reported"
    warehouse: str = option(*WAREHOUSE)
    bootstrap: str = option(
        "--bootstrap HOST:PORT", "Brokers of the aggregate cluster.", option_values.checked_addresses
    )
    zookeeper: str = option(
        "--zookeeper HOST:PORT",
        "ZooKeeper of the aggregate cluster, in which these processes agree which of them counts.",
        envvar="MILLRACE_ZOOKEEPER",
    )
    registry: str = option(*REGISTRY, envvar="MILLRACE_REGISTRY", repr=False)
    interval_ms: int = option(
        "--interval-ms N",
        "Interval at which the command looks for new loads.",
        default=10_000,
        type=int,
        show_default=True,
    )
    metrics_listen: str = option(
        "--metrics-listen HOST:PORT",
        "Address on which to serve /metrics for Prometheus, and /healthz.",
        default="",
    )
    access: str = option(*ACCESS, default="")
    certificate: str = option(*CERTIFICATE, default="")
    key: str = option(*KEY, default="")
    catalog: str = option(*CATALOG, default="")
    new_warehouse: bool = option(
        "--new-warehouse",
        "The warehouse was moved here; without this option only the last warehouse is accepted.",
        default=False,
    )
    count_tables_again: bool = option(
        "--count-tables-again",
        "After the auditor has lost records: first count every hour of the published tables again.",
        default=False,
    )


@command_options
class Mirror:
    """`millrace mirror-batch`."""

    after_interrupt: ClassVar[str] = (
        "each batch was copied as a whole or not at all; run it again to copy the rest"
    )
    topics: Sequence[str] = option("TOPIC...", parse=option_values.distinct)
    origin: str = option("--origin NAME", "Name of the origin cluster, for example dc1.")
    """The name that the positions of the mirrored partitions have."""
    origin_bootstrap: str = option(
        "--origin-bootstrap HOST:PORT", "Brokers of the origin cluster.", option_values.checked_addresses
    )
    bootstrap: str = option(
        "--bootstrap HOST:PORT", "Brokers of the aggregate cluster.", option_values.checked_addresses
    )
    origin_client: str = option(
        "--origin-client FILE",
        "Client file for the origin; default: the client file for the aggregate cluster.",
        option_values.absolute_file,
        default="",
    )
    max_bytes: int | None = option(
        "--max-bytes SIZE",
        "Copy about this many bytes of all topics together (500MB, 2GiB); the next run continues there.",
        option_values.optional(option_values.parse_bytes),
        default=None,
    )
