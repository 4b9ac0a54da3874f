"""Ten messages as Apache Kafka's own classes write and read them, in every version that is served.

One JVM reads lines and answers each. Drawn values become our bytes; Java must read them as these values and
write the same bytes again, and Java's bytes of the values must be ours. Produce and Fetch, laid out by hand,
go through the same JVM. What kio, another implementation, says of every message stands in `tests/unit/wire`.
"""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.wire import fetch, produce
from millrace.wire.codec import decode, encode
from millrace.wire.fetch import FetchedPartition
from millrace.wire.fields import fields_of
from millrace.wire.messages import ApiKey
from millrace.wire.produce import ProducedPartition
from millrace.zookeeper.embedded import find_java
from tests.peers import maven
from tests.support import ROUNDS, start_for_the_test_run
from tests.unit.wire.test_messages import CASES, Case, drawn
from tests.unit.wire.test_produce_and_fetch_bytes import Records, fetch_body, produce_body

POM = Path(maven.__file__).with_name("java-producer.pom.xml")
SOURCE = Path(__file__).with_name("java") / "Messages.java"
APIS = {
    ApiKey.METADATA,
    ApiKey.LIST_OFFSETS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.JOIN_GROUP,
    ApiKey.CREATE_TOPICS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.API_VERSIONS,
}
CHOSEN = [case for case in CASES if case.api_key in APIS]
IN_MS = {"max_wait", "rebalance_timeout", "retention_time", "session_timeout", "throttle_time", "timeout"}
"""Fields whose names say their unit in Kafka's schemas."""
once_each = settings(max_examples=5 * ROUNDS, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Java:
    """The JVM and its two questions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read(self, name: str, version: int, body: bytes) -> tuple[Any, bytes]:
        """Have Java read a message; return its values, and the bytes that Java writes of them."""
        values, again = self._ask("read", name, version, body.hex()).split("\t")
        return json.loads(values), bytes.fromhex(again)

    def write(self, name: str, version: int, values: Any) -> bytes:
        return bytes.fromhex(self._ask("write", name, version, json.dumps(values)))

    def _ask(self, *words: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().rstrip("\n")
        assert answer or words[-1] in ("", "{}"), f"Java ended at {words}"
        assert not answer.startswith("error"), f"{words}: {answer}"
        return answer


@pytest.fixture(scope="module")
def java(needs_maven: None) -> Iterator[Java]:
    words = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", maven.class_path(POM), str(SOURCE)]
    process = start_for_the_test_run(
        [find_java(), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    with process:
        yield Java(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def java_name(case: Case) -> str:
    return str(case.cls.__name__)


def as_json(value: Any, case: Case) -> Any:
    """The values of a message as Kafka's converters name and write them."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if not isinstance(value, tuple):
        return value
    if not hasattr(value, "_fields"):
        return [as_json(item, case) for item in value]
    found = {}
    for name, field in fields_of(type(value)).items():
        if field.is_in(case.api_key, case.version):
            first, *more = name.split("_")
            key = first + "".join(word.capitalize() for word in more) + ("Ms" if name in IN_MS else "")
            one = getattr(value, name)
            found[key] = as_json(uuid.UUID(int=0) if field.kind == "uuid" and one is None else one, case)
    return found


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: f"{case.cls.__name__}-v{case.version}")
@once_each
@given(data=st.data())
def test_we_and_java_write_the_same_bytes_and_read_each_other(
    java: Java, case: Case, data: st.DataObject
) -> None:
    message = data.draw(drawn(case))
    body, values = encode(message, case.api_key, case.version), as_json(message, case)
    assert java.read(java_name(case), case.version, body) == (values, body)
    written = java.write(java_name(case), case.version, values)
    assert written == body
    assert decode(case.cls, case.api_key, case.version, memoryview(written)) == message


def test_every_chosen_api_is_here_in_all_its_versions() -> None:
    assert {case.api_key for case in CHOSEN} == APIS
    assert len(CHOSEN) > 100


@pytest.mark.parametrize("version", range(3, 13))
def test_java_reads_and_writes_what_we_read_as_a_produce_request(java: Java, version: int) -> None:
    body = bytes(produce_body(version, transactional_id="tx" if version == 5 else None))
    values, again = java.read("ProduceRequest", version, body)
    assert (again, values["acks"], values["timeoutMs"]) == (body, -1, 30_000)
    request = produce.decode_request(version, memoryview(bytearray(again)))
    assert request.topics == [(topic["name"], len(topic["partitionData"])) for topic in values["topicData"]]
    theirs = [
        (topic["name"], partition["index"], partition.get("recordsSizeInBytes", 0))
        for topic in values["topicData"]
        for partition in topic["partitionData"]
    ]
    assert [(topic, partition, len(records)) for topic, partition, records in request.batches] == theirs


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
codes, offsets = st.integers(-1, 0x7FFF), st.integers(-(1 << 63), (1 << 63) - 1)
produced = st.builds(
    ProducedPartition,
    st.integers(0, 1 << 20),
    codes,
    offsets,
    offsets,
    st.none() | st.text("abc é", max_size=9),
)


@pytest.mark.parametrize("version", range(3, 13))
@once_each
@given(topics=st.lists(st.tuples(names, st.lists(produced, max_size=3)), max_size=3))
def test_java_reads_our_produce_response(
    java: Java, version: int, topics: list[tuple[str, list[ProducedPartition]]]
) -> None:
    results = [result for _, partitions in topics for result in partitions]
    body = produce.encode_response(
        version, [(name, len(partitions)) for name, partitions in topics], results, 7
    )
    body = body[1:] if version >= ApiKey.PRODUCE.flexible_since else body  # the header's tagged fields
    values, again = java.read("ProduceResponse", version, body)
    assert again == body
    assert values["throttleTimeMs"] == 7
    assert [topic["name"] for topic in values["responses"]] == [name for name, _ in topics]
    theirs = [result for topic in values["responses"] for result in topic["partitionResponses"]]
    for ours, read in zip(results, theirs, strict=True):
        assert (read["index"], read["errorCode"], read["baseOffset"]) == ours[:3]
        assert read["logAppendTimeMs"] == -1
        assert version < 5 or read["logStartOffset"] == ours.log_start_offset
        assert version < 8 or read["errorMessage"] == ours.message


@pytest.mark.parametrize("version", range(4, 18))
def test_java_reads_and_writes_what_we_read_as_a_fetch_request(java: Java, version: int) -> None:
    body = fetch_body(version)
    values, again = java.read("FetchRequest", version, body)
    assert again == body
    asked = fetch.decode_request(version, memoryview(again))
    assert list(asked[:3]) == [values["maxWaitMs"], values["minBytes"], values["maxBytes"]]
    theirs = [
        [
            (
                one["partition"],
                one["fetchOffset"],
                one["partitionMaxBytes"],
                one["currentLeaderEpoch"] if version >= 9 else -1,
                one["lastFetchedEpoch"] if version >= 12 else -1,
            )
            for one in topic["partitions"]
        ]
        for topic in values["topics"]
    ]
    assert [wanted for _, wanted in asked.topics] == theirs
    if version >= 13:
        ids = [
            uuid.UUID(bytes=base64.urlsafe_b64decode(topic["topicId"] + "==")) for topic in values["topics"]
        ]
        assert [uuid.UUID(bytes=bytes(one)) for one in asked.ids] == ids
    else:
        assert [name for name, _ in asked.topics] == [topic["topic"] for topic in values["topics"]]


def test_java_reads_and_writes_the_fetch_request_of_our_own_clients(java: Java) -> None:
    wanted = [("alpha", 0, 5, 100, -1, -1), ("alpha", 7, 1 << 40, 0x7FFFFFFF, 3, 2), ("β", 1, -1, 0, 0, 0)]
    body = fetch.encode_request(wanted, max_wait=500, max_bytes=1 << 20)
    values, again = java.read("FetchRequest", 12, body)
    assert again == body
    assert [
        (
            topic["topic"],
            one["partition"],
            one["fetchOffset"],
            one["partitionMaxBytes"],
            one["currentLeaderEpoch"],
            one["lastFetchedEpoch"],
        )
        for topic in values["topics"]
        for one in topic["partitions"]
    ] == wanted


fetched = st.tuples(
    st.integers(0, 1 << 20),
    codes,
    offsets,
    offsets,
    st.none() | st.builds(Records, st.binary()),
    st.none() | st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 60)),
)


@pytest.mark.parametrize("version", range(4, 18))
@once_each
@given(
    topics=st.lists(
        st.tuples(names, st.lists(fetched, max_size=3)), max_size=3, unique_by=lambda topic: topic[0]
    )
)
def test_java_reads_and_writes_our_fetch_response(java: Java, version: int, topics: list[Any]) -> None:
    by_id = version >= 13
    told = [(uuid.uuid5(uuid.NAMESPACE_URL, name).bytes if by_id else name, rows) for name, rows in topics]
    parts = fetch.encode_response(version, told)
    body = b"".join(part if isinstance(part, bytes) else part.data for part in parts)
    values, again = java.read("FetchResponse", version, body)
    assert again == body
    for (name, rows), topic in zip(told, values["responses"], strict=True):
        if by_id:
            assert base64.urlsafe_b64decode(topic["topicId"] + "==") == name
        else:
            assert topic["topic"] == name
        for (index, code, end, start, records, parting), one in zip(rows, topic["partitions"], strict=True):
            assert (one["partitionIndex"], one["errorCode"], one["highWatermark"]) == (index, code, end)
            assert one["lastStableOffset"] == end
            assert version < 5 or one["logStartOffset"] == start
            assert one["recordsSizeInBytes"] == (0 if records is None else len(records.data))
            if version >= 12 and parting is not None:
                assert (one["divergingEpoch"]["epoch"], one["divergingEpoch"]["endOffset"]) == parting
    if version == 12:
        ours = fetch.decode_response(again)
        expected = {
            name: {
                row[0]: FetchedPartition(
                    row[1], row[2], row[2], row[3], memoryview(row[4].data if row[4] else b""), (), row[5]
                )
                for row in rows
            }
            for name, rows in topics
        }
        assert ours == expected
