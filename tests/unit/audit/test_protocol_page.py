"""The test vectors of docs/audit-protocol.md, read from the page: they are what Millrace itself writes."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import fastavro
import pytest
import xxhash

from millrace.errors import MillraceError
from millrace_audit.reports.counts import window_start
from millrace_audit.reports.event import EventSchema, read_header
from millrace_audit.reports.fingerprints import fingerprint, split, strong_fingerprint, wrapped
from millrace_audit.reports.messages import AuditCodec, Hello, Report, schema_file
from millrace_audit.reports.ranges import from_deltas, to_deltas
from millrace_audit.reports.record_header import RecordHeader, decode_header, encode_header, topic_tag
from millrace_audit.reports.seals import is_signed, seal_of, sign, signed_turn
from tests.support import REPOSITORY

PAGE = (REPOSITORY / "docs" / "audit-protocol.md").read_text()
Vector = Mapping[str, Any]
VECTORS: list[Vector] = [
    vector for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL) for vector in json.loads(block)
]


def of_kind(kind: str) -> list[Vector]:
    return [vector for vector in VECTORS if vector["vector"] == kind]


def test_the_page_has_vectors_of_every_kind() -> None:
    kinds = {
        "event",
        "recordHeader",
        "fingerprint",
        "strong",
        "window",
        "ranges",
        "seal",
        "record",
        "signature",
    }
    assert {vector["vector"] for vector in VECTORS} == kinds


@pytest.mark.parametrize("vector", of_kind("event"))
def test_an_event(vector: Vector) -> None:
    schema = schema_file(vector["schema"])
    value = EventSchema(schema, vector["schemaId"]).encode(vector["header"], vector["fields"])
    assert value.hex() == vector["value"]
    body: Any = fastavro.schemaless_reader(BytesIO(value[5:]), fastavro.parse_schema(dict(schema)), None)
    assert {name: body[name] for name in vector["fields"]} == vector["fields"]
    assert read_header(value)._asdict() == vector["header"]
    assert window_start(vector["header"]["time"]) == vector["window"]
    assert wrapped(fingerprint(value)) == vector["fingerprint"]


@pytest.mark.parametrize("vector", of_kind("recordHeader"))
def test_a_record_header(vector: Vector) -> None:
    tag, value = topic_tag(vector["topic"]), bytes.fromhex(vector["value"])
    numbers = (vector["instance"], vector["sequence"], vector["time"])
    assert encode_header(tag, *numbers) == value
    assert value == b"\1" + zlib.crc32(vector["topic"].encode()).to_bytes(4, "big") + b"".join(
        number.to_bytes(8, "big") for number in numbers
    )
    assert decode_header(value, tag) == RecordHeader(vector["time"], vector["instance"], vector["sequence"])


def messages_of(vector: Vector) -> Iterator[tuple[bytes, int | None]]:
    """The value of each message, and the sequence in its record header."""
    values = [bytes.fromhex(value) for value in vector["values"]]
    return zip(values, vector.get("sequences", [None] * len(values)), strict=True)


def shake128(value: bytes, sequence: int | None) -> int:
    behind = b"" if sequence is None else struct.pack(">q", sequence)
    return int.from_bytes(hashlib.shake_128(value + behind).digest(504), "little")


@pytest.mark.parametrize("vector", of_kind("fingerprint"))
def test_a_fingerprint_is_a_sum_of_hashes(vector: Vector) -> None:
    messages = list(messages_of(vector))
    assert wrapped(sum(fingerprint(*message) for message in messages)) == vector["fingerprint"]
    total = sum(xxhash.xxh64(value, seed=number or 0).intdigest() for value, number in messages) % (1 << 64)
    assert int.from_bytes(total.to_bytes(8, "big"), "big", signed=True) == vector["fingerprint"]


@pytest.mark.parametrize("vector", of_kind("strong"))
def test_a_strong_fingerprint_is_a_longer_sum(vector: Vector) -> None:
    messages = list(messages_of(vector))
    fast, strong = split(wrapped(sum(strong_fingerprint(*message) for message in messages)))
    assert strong is not None
    assert (fast, strong.hex()) == (vector["fingerprint"], vector["strong"])
    total = sum(
        xxhash.xxh64_intdigest(value, number or 0) + (shake128(value, number) << 64)
        for value, number in messages
    )
    assert (b"\1" + (total % (1 << 4096) >> 64).to_bytes(504, "big")).hex() == vector["strong"]


@pytest.mark.parametrize("vector", of_kind("window"))
def test_a_window(vector: Vector) -> None:
    assert window_start(vector["time"]) == vector["window"]


@pytest.mark.parametrize("vector", of_kind("ranges"))
def test_ranges(vector: Vector) -> None:
    assert to_deltas(vector["ranges"]) == vector["flat"]
    assert [list(pair) for pair in from_deltas(vector["flat"])] == vector["ranges"]


@pytest.mark.parametrize("vector", of_kind("seal"))
def test_a_seal(vector: Vector) -> None:
    key = bytes.fromhex(vector["key"])
    assert hashlib.sha256(key).hexdigest() == seal_of(key).hex() == vector["seal"]


class Ids:
    """A registry in which every schema of the page has its id."""

    url = "http://registry"

    def register(self, subject: str, schema: Any, *, timeout_s: float | None = None) -> int:
        records = (v for v in of_kind("record") if v["schema"] == subject and "schemaId" in v)
        return int(next(records)["schemaId"])

    def schema(self, schema_id: int) -> Any:
        name = next((v["schema"] for v in of_kind("record") if v.get("schemaId") == schema_id), None)
        if name is None:
            raise MillraceError(f"no schema {schema_id}")
        return json.loads((REPOSITORY / "schemas" / f"{name}.avsc").read_text())


@pytest.mark.parametrize("vector", of_kind("record"))
def test_an_audit_record(vector: Vector) -> None:
    schema = fastavro.parse_schema(dict(schema_file(vector["schema"])))
    in_bytes = {
        name: bytes.fromhex(vector["record"][name]) for name in {"key", "seal"} & vector["record"].keys()
    }
    out = BytesIO()
    if "schemaId" in vector:
        out.write(b"\0" + vector["schemaId"].to_bytes(4, "big"))
    else:
        out.write(bytes((1, vector["kind"])))
    fastavro.schemaless_writer(out, schema, {**vector["record"], **in_bytes})
    assert out.getvalue().hex() == vector["value"]
    codec = AuditCodec(Ids())  # type: ignore[arg-type]
    record = codec.decode(bytes.fromhex(vector["value"]))
    assert isinstance(record, Hello | Report)
    assert record.seal == in_bytes["seal"]
    if "schemaId" in vector:
        assert codec.encode(record).hex() == vector["value"], "and what Millrace writes is the same"


@pytest.mark.parametrize("vector", of_kind("signature"))
def test_the_key_of_what_a_reader_says(vector: Vector) -> None:
    secret, value = bytes.fromhex(vector["secret"]), bytes.fromhex(vector["value"])
    key = bytes.fromhex(vector["key"])
    assert sign(vector["turn"], secret, value) == key
    assert key[8:] == hmac.new(secret, value, "sha256").digest()
    assert (signed_turn(key), is_signed(key, secret, value)) == (vector["turn"], True)


def test_the_page_names_the_fields_of_its_records() -> None:
    for name in ("AuditHello", "AuditReport"):
        for field in schema_file(name)["fields"]:
            assert f"`{field['name']}`" in PAGE or f"{field['name']}" in json.dumps(VECTORS), field["name"]
