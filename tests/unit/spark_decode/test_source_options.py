"""The data source's options: read once, wrong ones refused by name, offsets frozen as numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace.wire.client import EARLIEST, LATEST
from millrace_spark.ranges import Range
from millrace_spark.source_options import SourceOptions, cuts_for, freeze, parse_options

NEEDED = {"bootstrap": "localhost:9092", "subscribe": "T"}
ID = UUID(int=1)


@dataclass(frozen=True)
class Topic:
    topic_id: UUID = ID
    partitions: Mapping[int, int] = field(default_factory=lambda: {0: 1, 1: 2})


class Cluster:
    """Two partitions: [100, 200) and an empty one at 50."""

    cluster_id = "millrace-in-memory"

    def topic(self, name: str) -> Topic:
        return Topic()

    def list_offsets(self, topic: str, timestamp: int) -> dict[int, int]:
        return {EARLIEST: {0: 100, 1: 50}, LATEST: {0: 200, 1: 50}}[timestamp]


def frozen(**options: str) -> list[Range]:
    return freeze(Cluster(), parse_options({**NEEDED, **options}))


def test_defaults_read_everything_there_is() -> None:
    assert parse_options(NEEDED) == SourceOptions("localhost:9092", ("T",))
    assert frozen() == [Range("T", 0, 100, 200, topic_id=ID)]


def test_spark_gives_option_names_in_lower_case_and_kafkas_own_name_is_known() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "SUBSCRIBE": "x, y,x",
            "failondataloss": "False",
            "minpartitions": "8",
        }
    )
    assert options == SourceOptions("a:1,b:2", ("x", "y"), min_partitions=8, fail_on_data_loss=False)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bootstrap": ""}, "'bootstrap' is missing"),
        ({"bootstrap": "nowhere"}, "is not HOST:PORT"),
        ({"kafka.bootstrap.servers": "b:2"}, "differ"),
        ({"subscribe": " "}, "'subscribe' is missing"),
        ({"subscribe": "a,b", "registry.url": "http://r"}, "give one topic"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"colour": "red"}, "unknown option 'colour'; known: "),
        ({"startingOffsets": "latest"}, "neither 'earliest' nor JSON"),
        ({"endingOffsets": "earliest"}, "neither 'latest' nor JSON"),
        ({"endingOffsets": '{"T": {"0": 1.5}}'}, "neither"),
        ({"endingOffsets": '{"T": {"0": true}}'}, "neither"),
        ({"endingOffsets": "[1]"}, "neither"),
        ({"endingOffsets": '{"U": {"0": 5}}'}, "differ in topic 'T'"),
        ({"startingOffsets": '{"T": {"0": -1, "1": 5}}'}, "cannot hold -1"),
        ({"endingOffsets": '{"T": {"0": -2, "1": 5}}'}, "cannot hold -2"),
        ({"minPartitions": "0"}, "not a positive number"),
        ({"minPartitions": "many"}, "not a positive number"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_options({**NEEDED, **options})


def test_offsets_of_every_partition_as_numbers_or_by_their_ends() -> None:
    starting, ending = json.dumps({"T": {"0": -2, "1": 50}}), json.dumps({"T": {"0": 150, "1": -1}})
    assert frozen(startingOffsets=starting, endingOffsets=ending) == [Range("T", 0, 100, 150, topic_id=ID)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"startingOffsets": {"0": 99, "1": 50}}, "offset 99 has expired"),
        ({"endingOffsets": {"0": 201, "1": 50}}, "ends at 200, before endingOffsets 201"),
        ({"endingOffsets": {"0": 150}}, "name no partition 1"),
        ({"endingOffsets": {"0": 150, "1": 50, "2": 7}}, "has no partition 2"),
    ],
)
def test_offsets_that_cannot_be_read_are_refused(options: dict[str, dict[str, int]], reason: str) -> None:
    with pytest.raises(MillraceError, match=reason):
        frozen(**{name: json.dumps({"T": offsets}) for name, offsets in options.items()})


def test_expired_offsets_are_skipped_only_when_that_is_allowed() -> None:
    starting = json.dumps({"T": {"0": 7, "1": 50}})
    assert frozen(startingOffsets=starting, failOnDataLoss="false") == [Range("T", 0, 100, 200, topic_id=ID)]


def test_only_millrace_s_offsets_are_taken_for_byte_positions() -> None:
    assert frozen()[0].byte_positions
    kafka = Cluster()
    kafka.cluster_id = "4L6g3nShT-eMCtK--X86sw"
    assert not freeze(kafka, parse_options(NEEDED))[0].byte_positions


def test_ranges_become_as_many_tasks_as_asked_for() -> None:
    ranges = [Range("T", 0, 0, 1000), Range("T", 1, 0, 3000)]
    assert len(cuts_for(ranges, 1)) == 2
    assert len(cuts_for(ranges, 8)) >= 8
    assert cuts_for([], 5) == []
    assert len(cuts_for([Range("T", 0, 0, 3)], 10)) == 3


def test_on_kafka_where_offsets_count_records_tasks_are_cut_by_an_estimate_of_their_bytes() -> None:
    kafka = Range("T", 0, 0, 10_000_000, byte_positions=False)
    assert len(cuts_for([kafka], 1)) == 8, "a gigabyte or so in tasks of 128 MiB"
    assert len(cuts_for([Range("T", 0, 0, 3, byte_positions=False)], 10)) == 3, "no task without a record"
