"""Manifests: what they say survives JSON, an edit breaks the hash, and the laws must close."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest

from millrace_warehouse.history.manifest import (
    AsideMessages,
    DataFile,
    ErasedRows,
    LoadManifest,
    ManifestError,
    OriginPartition,
    PartitionRange,
    ProducerSequences,
    RejectedFile,
    StoredFile,
    TombstoneFile,
    check_erased,
    check_follows,
    check_hash,
    check_law,
    decode,
    encode,
    sealed,
)
from millrace_warehouse.log.ranges import Gap

FILE = DataFile(path="rows/a/1.parquet", hour="2015-05-17T10", rows=9, bytes=100, sha256="00")
BAD_FILE = RejectedFile(path="rows/a/rejected-1.parquet", rows=1, records=1, bytes=100, sha256="00")
TOMBSTONES = TombstoneFile(path="rows/a/tombstones-1.parquet", rows=2, bytes=100, sha256="00")
PART = PartitionRange(
    partition=0,
    start=0,
    end=100,
    end_base=120,
    read=13,
    written=9,
    tombstones=2,
    rejected=1,
    rejected_by_kind={"broken_body": 1},
    filtered=1,
    data_batches=2,
    origin=OriginPartition(cluster="dc1", topic="PageView", topic_id="ab", partition=3),
)


def manifest(**changes: Any) -> LoadManifest:
    values: dict[str, Any] = {
        "topic": "PageView",
        "topic_id": "ab",
        "cluster_id": "c",
        "load": 1,
        "run_id": "run",
        "created": "2015-05-17T10:00:00Z",
        "attempt": "0001-ab",
        "schema": 2,
        "file_by_ms": 1_431_943_200_000,
        "partitions": (PART,),
        "files": (FILE,),
        "rejected_files": (BAD_FILE,),
        "tombstone_files": (TOMBSTONES,),
        "aside_by_hour": (
            AsideMessages(hour="2015-05-17T10", kind="broken_body", messages=1),
            AsideMessages(hour="2015-05-17T10", kind="tombstone", messages=2),
        ),
        "entries": StoredFile(path="rows/a/entries.avro", bytes=9, sha256="00"),
        "sequences": (
            ProducerSequences(server="web1", service="web", instance=1, window=0, ranges=((0, 8),)),
        ),
        "sequences_file": StoredFile(path="rows/a/sequences.json.gz", bytes=9, sha256="00"),
        "previous": None,
        "unknown_fields": {"coupon": 1},
        "erases": "4711",
        "erasures": ("4711",),
        "erased": (ErasedRows(erasure="4711", partition=0, hour="2015-05-17T10", rows=1),),
        "erased_sequences": (
            ProducerSequences(server="web1", service="web", instance=1, window=0, ranges=((9, 9),)),
        ),
        "erased_sequences_file": StoredFile(path="rows/a/erased.json.gz", bytes=9, sha256="00"),
    }
    return sealed(LoadManifest(**{**values, **changes}))


def test_a_manifest_survives_json() -> None:
    assert decode(LoadManifest, encode(manifest()), "here") == manifest()


def test_an_untouched_manifest_has_the_hash_it_states() -> None:
    assert check_hash(decode(LoadManifest, encode(manifest()), "here")) is None


@pytest.mark.parametrize("key", sorted({f.name for f in dataclasses.fields(LoadManifest)} - {"format"}))
def test_an_edit_of_any_key_breaks_the_hash(key: str) -> None:
    values = json.loads(encode(manifest()))
    edits: dict[type, Any] = {str: "other", int: 99, list: [], dict: None, type(None): "other"}
    values[key] = {"coupon": 2} if key == "unknown_fields" else edits[type(values[key])]
    problem = check_hash(decode(LoadManifest, json.dumps(values).encode(), "here"))
    assert problem is not None
    assert "edited" in problem


@pytest.mark.parametrize("cut", [0, 1, 50, -3])
def test_a_manifest_that_was_cut_is_one_clear_error(cut: int) -> None:
    with pytest.raises(ManifestError, match="there"):
        decode(LoadManifest, encode(manifest())[:cut], "there")


@pytest.mark.parametrize(
    ("key", "value"), [("load", "1"), ("partitions", {}), ("rows", 3), ("format", 1), ("files", [1])]
)
def test_a_value_of_the_wrong_type_is_one_clear_error(key: str, value: Any) -> None:
    values = {**json.loads(encode(manifest())), key: value}
    with pytest.raises(ManifestError, match="there"):
        decode(LoadManifest, json.dumps(values).encode(), "there")


def test_the_law_closes_on_a_whole_account() -> None:
    assert check_law(manifest()) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"written": 8}, "13 records read, but 8 written + 2 tombstones"),
        ({"rejected": 0}, "stand for 1 records"),
        ({"tombstones": 3, "read": 14}, "messages without rows by hour are {'tombstone': 2,"),
        ({"tombstones": 3}, "the files of tombstones have 2, the partitions state 3"),
        ({"rejected_by_kind": {"broken_body": 2}}, "1 rejected, by kind {'broken_body': 2}"),
        ({"start": 101}, "before the start"),
        ({"filtered": 0, "read": 12}, "rows erased by partition are {0: 1}, the partitions state {}"),
        ({"data_batches": 0}, "neither a batch nor a gap"),
        ({"gaps": (Gap(start=90, end=110, reason="expired"),)}, "lies outside"),
        ({"read": 14, "written": 10}, "the files have 9 rows"),
    ],
)
def test_the_law_names_what_does_not_close(changes: dict[str, Any], words: str) -> None:
    part = dataclasses.replace(PART, **changes)
    problems = check_law(manifest(partitions=(part,)))
    assert any(words in problem for problem in problems), problems


def test_a_manifest_that_files_none_of_its_tombstones_under_an_hour_breaks_the_law() -> None:
    (problem,) = check_law(manifest(aside_by_hour=()))
    assert problem.startswith("messages without rows by hour are {'tombstone': 0,")


def test_a_gap_alone_accounts_for_a_range() -> None:
    part = PartitionRange(partition=0, start=0, end=100, gaps=(Gap(start=0, end=100, reason="expired"),))
    nothing = {
        "files": (),
        "rejected_files": (),
        "tombstone_files": (),
        "aside_by_hour": (),
        "sequences": (),
        "erased": (),
    }
    assert check_law(manifest(partitions=(part,), **nothing)) == []


def test_a_load_must_begin_where_the_one_before_it_ended() -> None:
    first = manifest()
    part = PartitionRange(partition=0, start=100, end=150, read=9, written=9, data_batches=1)
    second = manifest(load=2, partitions=(part,), rejected_files=(), previous=first.sha256)
    assert check_follows(first, None) == []
    assert check_follows(second, first) == []
    late = manifest(load=2, partitions=(dataclasses.replace(part, start=110),), previous=first.sha256)
    assert check_follows(late, first) == ["partition 0, offsets [100, 110) are missing"]
    early = manifest(load=2, partitions=(dataclasses.replace(part, start=90),), previous=first.sha256)
    assert check_follows(early, first) == ["partition 0, offsets [90, 100) are there twice"]
    none = manifest(load=2, partitions=(), previous=first.sha256)
    assert "left out" in check_follows(none, first)[0]
    stranger = manifest(load=2, partitions=(part,), rejected_files=(), previous="00")
    assert "follows a load" in check_follows(stranger, first)[0]
    assert check_follows(second, None) == ["the first load names a load before it"]


@pytest.mark.parametrize("end_epoch", [None, 0, 3])
def test_a_manifest_of_before_there_were_erasures_and_tombstones_keeps_its_hash(
    end_epoch: int | None,
) -> None:
    part = dataclasses.replace(PART, read=11, tombstones=0, rejected_by_kind={}, end_epoch=end_epoch)
    nothing: dict[str, Any] = {"erases": None, "erasures": (), "erased": (), "erased_sequences": ()}
    nothing |= {"tombstone_files": (), "aside_by_hour": (), "unknown_fields": {}}
    plain = manifest(**nothing, erased_sequences_file=None, partitions=(part,))
    values = json.loads(encode(plain))
    for name in (*nothing, "erased_sequences_file"):
        del values[name]
    del values["sha256"]
    for each in values["partitions"]:
        assert not any(each.pop(name) for name in ("tombstones", "rejected_by_kind"))
        if end_epoch is None:
            del each["end_epoch"]
    written = hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    before = decode(LoadManifest, json.dumps({**values, "sha256": written}).encode(), "here")
    assert check_hash(before) is None
    assert before == plain


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"files": (dataclasses.replace(FILE, rows=5),)},
            "4 rows of 2015-05-17T10 are gone, erasure 4711 states 3",
        ),
        ({"erased": ()}, "no longer states the rows that erasure 4711 took out"),
        ({"partitions": (dataclasses.replace(PART, read=12),)}, "other records than the edition before"),
    ],
)
def test_an_erasure_whose_count_is_not_what_is_gone_is_named(changes: dict[str, Any], words: str) -> None:
    before = manifest()
    more = ErasedRows(erasure="4711", partition=0, hour="2015-05-17T10", rows=3)
    values: dict[str, Any] = {
        "edition": 2,
        "previous": before.sha256,
        "files": (dataclasses.replace(FILE, rows=6),),
        "partitions": (dataclasses.replace(PART, written=6, filtered=4),),
        "erased": (*before.erased, more),
    }
    assert check_erased(manifest(**values), before) == []
    problems = check_erased(manifest(**{**values, **changes}), before)
    assert any(words in problem for problem in problems), problems


def test_rows_by_hour_do_not_count_rejected_records() -> None:
    assert manifest().rows_by_hour() == {"2015-05-17T10": 9}
    assert (manifest().rows, manifest().rejected) == (9, 1)


def test_a_load_covers_ends_of_its_own_topic_only() -> None:
    assert manifest().covers("ab", {0: 100, 1: 0})
    assert manifest().covers("ab", {0: 120}), "where the next batch begins"
    assert not manifest().covers("ab", {0: 121})
    assert not manifest().covers("ab", {0: 100, 1: 5})
    assert not manifest().covers("cd", {0: 100})
