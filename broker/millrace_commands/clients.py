"""`millrace produce` and `millrace consume`: lines in, records out, through confluent-kafka.

With a registry, `consume` decodes Avro values.
"""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import closing, nullcontext, suppress
from datetime import datetime
from io import BytesIO
from typing import Any, BinaryIO

import click
import fastavro
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, Producer, TopicPartition
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import connected, text_of
from millrace.errors import MillraceError
from millrace.printing import json_option, say
from millrace.signals import interruptible
from millrace_commands.message_counts import offset_of_last
from millrace_commands.topics import TIMEOUT_S, bootstrap_option, chosen_partitions, naming_the_remedy
from millrace_registry.client import SchemaRegistryClient, UnknownSchema
from millrace_registry.subjects import ENVIRONMENT, OPTION_HELP, Subjects, foreign_id_lines, foreign_ids

FLUSH_TIMEOUT_S = 60.0
PROGRESS_EVERY = 1000
MAX_LAST = 100_000
_ID_BYTES = 5
"""Bytes before an Avro value's record: a zero byte and the four bytes of its schema's id."""


@click.command()
@click.argument("topic")
@click.option("--key-separator", metavar="TEXT", help="Text that separates key and value in each line.")
@click.option(
    "--partition",
    type=click.IntRange(0),
    help="Send all messages to this partition; default: the key decides, and messages without "
    "a key are spread.",
)
@click.option(
    "--codec",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Compression of the batches.",
)
@bootstrap_option
def produce(topic: str, key_separator: str | None, partition: int | None, codec: str, bootstrap: str) -> None:
    """Send each line of standard input to TOPIC as one message, acknowledged when it is on disk.

    Example: printf 'k1:hello\\nk2:world\\n' | millrace produce PageView --key-separator :
    """
    _partitions(bootstrap, topic, partition)
    failures: list[str] = []

    def delivered(error: Any, message: Any) -> None:
        if error is not None:
            failures.append(f"{topic}: {text_of(error)}")

    settings = {"enable.idempotence": True, "compression.type": codec, "linger.ms": 5, "log_level": 0}
    producer = connected(Producer, {"bootstrap.servers": bootstrap, "on_delivery": delivered, **settings})
    options = {} if partition is None else {"partition": partition}
    sent = 0
    for key, value in _messages(_with_progress(sys.stdin.buffer), key_separator):
        _send(producer, topic, key, value, options)
        sent += 1
        if failures:
            break
    left = producer.flush(FLUSH_TIMEOUT_S)
    if failures or left:
        reason = failures[0] if failures else f"no answer within {FLUSH_TIMEOUT_S:g} s"
        raise MillraceError(f"{len(failures) + left} of {sent} messages were not stored: {reason}")
    say(f"produced {sent} messages", err=True)


def _partitions(bootstrap: str, topic: str, only: int | None) -> list[int]:
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, client):
        return chosen_partitions(client, topic, only)


def _send(producer: Any, topic: str, key: bytes | None, value: bytes, options: dict[str, int]) -> None:
    while True:
        try:
            producer.produce(topic, value, key, **options)
        except BufferError:
            producer.poll(0.1)  # the queue is full: let some messages leave first
        else:
            producer.poll(0)
            return


def _messages(lines: Iterable[bytes], separator: str | None) -> Iterator[tuple[bytes | None, bytes]]:
    for line in lines:
        text = line.rstrip(b"\r\n")
        key, separated, value = text.partition(separator.encode()) if separator else (text, b"", b"")
        yield (key, value) if separated else (None, text)


def _with_progress(lines: BinaryIO) -> Iterator[bytes]:
    """Yield the lines. Show a counter on the terminal unless the lines come from a terminal."""
    if sys.stdin.isatty() or not sys.stderr.isatty():
        yield from lines
        return
    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        for number, line in enumerate(lines, 1):
            yield line
            if number % PROGRESS_EVERY == 0:
                progress.update(task, completed=number)


@click.command()
@click.argument("topic")
@click.option(
    "--from-beginning", is_flag=True, help="Start with the oldest message; default: with new messages."
)
@click.option("--offset", type=click.IntRange(0), help="Start at this offset (with --partition).")
@click.option(
    "--last",
    type=click.IntRange(1, MAX_LAST),
    metavar="N",
    help="Start with the last N messages of each partition.",
)
@click.option("--partition", type=click.IntRange(0), help="Read only this partition.")
@click.option("--until-end", is_flag=True, help="Stop after the newest message instead of waiting for more.")
@click.option(
    "--group", metavar="NAME", help="Share the partitions with the group's other members, and commit."
)
@click.option("--registry", metavar="URL", help="Decode Avro values with this registry's schemas.")
@click.option(
    "--subject", "subjects", metavar="[TOPIC=]SUBJECT", multiple=True, envvar=ENVIRONMENT, help=OPTION_HELP
)
@json_option()
@bootstrap_option
def consume(
    topic: str,
    from_beginning: bool,
    offset: int | None,
    last: int | None,
    partition: int | None,
    until_end: bool,
    group: str | None,
    registry: str | None,
    subjects: Sequence[str],
    as_json: bool,
    bootstrap: str,
) -> None:
    """Print the messages of TOPIC, one line each: the value as text, or everything with --json.

    Control characters in a value except tabs are escaped; --json shows every value unchanged.

    With --registry an Avro value is a line of JSON, and any other value is shown unchanged. A schema of
    another subject than the topic's is reported at the end, on standard error.

    Example: millrace consume PageView --last 100 --until-end --registry http://127.0.0.1:8081
    """
    if offset is not None and (partition is None or from_beginning):
        raise click.UsageError("--offset needs --partition, and excludes --from-beginning")
    if last is not None and (offset is not None or from_beginning or group is not None):
        raise click.UsageError("--last excludes --offset, --from-beginning and --group")
    if group is not None and (partition is not None or until_end):
        raise click.UsageError("--group assigns the partitions: it excludes --partition and --until-end")
    client = SchemaRegistryClient(registry) if registry else None
    partitions = _partitions(bootstrap, topic, partition)
    if group is not None:
        consumer = _member(bootstrap, topic, group, from_beginning)
    else:
        start = offset if offset is not None else OFFSET_BEGINNING if from_beginning else OFFSET_END
        starts = (
            dict.fromkeys(partitions, start) if last is None else _last(bootstrap, topic, partitions, last)
        )
        consumer = _reader(bootstrap, [TopicPartition(topic, *place) for place in starts.items()])
    decoded = None if client is None else AvroValues(client)
    named_by = Subjects.of_environment(subjects)
    if not until_end:
        say(f"waiting for messages of {topic}; Ctrl-C ends, --until-end does not wait", err=True)
    with client or nullcontext(), closing(consumer):
        with suppress(KeyboardInterrupt), interruptible():
            for message in _received(consumer, len(partitions) if until_end else None):
                say(*_line(message, decoded, as_json).split("\t"))
        if client is not None and decoded is not None:
            try:
                lines = foreign_id_lines(topic, foreign_ids(topic, decoded.ids, named_by, client))
            except MillraceError as error:  # the registry may not know the subjects of an id
                lines = [f"{topic}: whether its messages are of its subject is not known: {error}"]
            for line in lines:
                say(f"note: {line}", err=True)


def _last(bootstrap: str, topic: str, partitions: list[int], count: int) -> dict[int, int]:
    """Return for each partition the offset at which its last `count` messages begin."""
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client, naming_the_remedy(topic, client):
        return {number: offset_of_last(client, topic, number, count) for number in partitions}


def _reader(bootstrap: str, positions: list[Any]) -> Any:
    """Return a consumer that begins at these positions and commits nothing."""
    settings = {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error"}
    # The library wants a group's name; nothing is committed under it.
    consumer = connected(Consumer, _consumer_settings(bootstrap, "millrace-consume") | settings)
    consumer.assign(positions)
    return consumer


def _member(bootstrap: str, topic: str, group: str, from_beginning: bool) -> Any:
    """Return a member of a group. Without a committed offset it begins at the oldest or at new messages."""
    reset = "earliest" if from_beginning else "latest"
    consumer = connected(Consumer, _consumer_settings(bootstrap, group) | {"auto.offset.reset": reset})
    consumer.subscribe([topic])
    return consumer


def _consumer_settings(bootstrap: str, group: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "group.id": group, "check.crcs": True, "log_level": 0}


def _received(consumer: Any, open_partitions: int | None) -> Iterator[Any]:
    """Yield messages as they come; end when `open_partitions` partitions were read to their end (None:
    never).
    """
    at_end: set[int] = set()
    while open_partitions is None or len(at_end) < open_partitions:
        message = consumer.poll(1.0)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            where = f"{message.topic()}-{message.partition()}"
            raise MillraceError(
                f"nothing at offset {message.offset()} of {where}: it is out of range, `millrace topics"
                f" describe {message.topic()}` shows where the partition begins and ends"
            )
        elif error.fatal() or not error.retriable():
            raise MillraceError(f"cannot read {message.topic() or 'the topic'}: {error.str()}")


def _line(message: Any, decoded: AvroValues | None, as_json: bool) -> str:
    if decoded is None and not as_json:
        return (message.value() or b"").decode(errors="replace")
    value = message.value() if decoded is None else decoded(message.value())
    if not as_json:
        return json.dumps(_finite(value), default=printable)
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": message.key(),
        "value": _finite(value),
        "headers": message.headers() or [],
    }
    return json.dumps(fields, default=printable)


def _finite(value: object) -> object:
    """Return the same value with text for NaN and the infinities, for which JSON has no numbers."""
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return value if not isinstance(value, float) or math.isfinite(value) else json.dumps(value)


class AvroValues:
    """Decodes Avro values with the schemas of a registry, each fetched once."""

    def __init__(self, registry: SchemaRegistryClient) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}

    @property
    def ids(self) -> Set[int]:
        """The schema ids of the values decoded so far."""
        return self._schemas.keys()

    def __call__(self, value: bytes | None) -> object:
        """Return the record for JSON; for any value but an Avro message of this registry, the result of
        `printable`.
        """
        if value is None or len(value) < _ID_BYTES or value[0]:
            return printable(value)
        schema = self._schema(int.from_bytes(value[1:_ID_BYTES], "big"))
        if schema is None:
            return printable(value)
        body = BytesIO(value[_ID_BYTES:])
        try:
            record = fastavro.schemaless_reader(body, schema, None)
        except Exception:  # fastavro raises any error; showing the bytes helps more
            return printable(value)
        return record if not body.read(1) else printable(value)

    def _schema(self, schema_id: int) -> Any:
        """Return the parsed schema; None without an Avro schema of that id, which may be registered later."""
        if schema_id not in self._schemas:
            try:
                self._schemas[schema_id] = fastavro.parse_schema(self._registry.schema(schema_id))
            except UnknownSchema:
                return None
            except (fastavro.schema.SchemaParseException, ValueError, KeyError, TypeError):
                self._schemas[schema_id] = None  # another kind, such as JSON Schema
        return self._schemas[schema_id]


def printable(value: object) -> object:
    """Return a value for JSON: bytes as text, or as base64 if not UTF-8; else text, times in ISO 8601."""
    if isinstance(value, datetime):
        return value.isoformat()
    if not isinstance(value, bytes):
        return value if value is None else str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
