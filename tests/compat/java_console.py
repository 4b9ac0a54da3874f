"""The Java client through the console tools of Apache Kafka: produce lines, read a partition."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.compat.clients import BEGINNING, Delivered, KafkaClient
from tests.peers.kafka import kafka_tool

_ROW = re.compile(rb"Offset:(\d+)\t(.*)")
_IDLE_MS = (1500, 30_000)
"""The console consumer knows no end of a partition: it stops when nothing has come for this long.

On a busy machine it may not have begun by then: it is asked again with more patience if it has read nothing.
"""


def tool(bootstrap: str, name: str, *arguments: str, stdin: bytes = b"") -> str:
    """Return a tool's standard output and error; fail unless the tool succeeds."""
    done = kafka_tool(name, "--bootstrap-server", bootstrap, *arguments, stdin=stdin)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, f"{name} {arguments}: {output}"
    return output


def _produce(bootstrap: str, topic: str, partition: int, values: Sequence[bytes], codec: str) -> None:
    assert partition == 0, "the console producer picks partitions itself: give it a topic with one"
    lines = b"".join(value + b"\n" for value in values)
    output = tool(bootstrap, "ConsoleProducer", "--topic", topic, "--compression-codec", codec, stdin=lines)
    assert "ERROR" not in output, output


def _read(bootstrap: str, topic: str, partition: int, offset: int) -> Delivered:
    first, second = _IDLE_MS
    place = (bootstrap, topic, partition, offset)
    return _read_until_idle(*place, first) or _read_until_idle(*place, second)


def _read_until_idle(bootstrap: str, topic: str, partition: int, offset: int, idle_ms: int) -> Delivered:
    done = kafka_tool(
        "ConsoleConsumer",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--partition",
        str(partition),
        "--offset",
        "earliest" if offset == BEGINNING else str(offset),
        "--timeout-ms",
        str(idle_ms),
        "--property",
        "print.offset=true",
        "--consumer-property",
        "fetch.max.wait.ms=20",
        "--consumer-property",
        "auto.offset.reset=none",
    )
    rows = [_ROW.fullmatch(line) for line in done.stdout.splitlines()]
    words = done.stderr.decode()
    assert all(rows), done.stdout
    assert f"Processed a total of {len(rows)} messages" in words, words
    assert "TimeoutException" in words, f"it did not reach the end: {words}"
    return [(int(row[1]), row[2]) for row in rows if row is not None]


JAVA = KafkaClient("java", _produce, _read)
