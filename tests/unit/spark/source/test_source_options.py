"""The data source's options: read once, wrong ones refused by name, with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.client.cluster_client import EARLIEST, LATEST
from millrace.config import ClientSecurity
from millrace.errors import ConfigError
from millrace_spark.source.options import (
    Position,
    SourceOptions,
    Subscription,
    check_batch,
    check_stream,
    parse_options,
)

NEEDED = {"bootstrap": "localhost:9092", "subscribe": "T"}
TYPED = {**NEEDED, "registry.url": "http://r"}


def parsed(**options: str) -> SourceOptions:
    return parse_options({**NEEDED, **options})


def test_what_is_not_asked_for_is_left_to_the_query() -> None:
    assert parse_options(NEEDED) == SourceOptions(
        bootstrap="localhost:9092", subscription=Subscription(("T",))
    )


def test_spark_gives_option_names_in_lower_case_and_kafkas_own_name_is_known() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "SUBSCRIBE": "x, y,x",
            "failondataloss": "False",
            "minpartitions": "8",
        }
    )
    assert options == SourceOptions(
        bootstrap="a:1,b:2", subscription=Subscription(("x", "y")), min_partitions=8, fail_on_data_loss=False
    )


@pytest.mark.parametrize(
    ("option", "text", "subscription"),
    [
        ("subscribePattern", "Page.*", Subscription(pattern="Page.*")),
        ("assign", '{"a": [0, 2]}', Subscription(("a",), partitions={"a": (0, 2)})),
    ],
)
def test_topics_by_pattern_and_partitions_by_number(
    option: str, text: str, subscription: Subscription
) -> None:
    assert parse_options({"bootstrap": "a:1", option: text}).subscription == subscription


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ({"startingOffsets": "Earliest"}, Position(EARLIEST, option="startingOffsets")),
        ({"startingOffsets": "latest"}, Position(LATEST, option="startingOffsets")),
        ({"startingOffsets": '{"T": {"0": -1}}'}, Position({"T": {0: -1}}, option="startingOffsets")),
        (
            {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"T": {"0": 5}}'},
            Position({"T": {0: 5}}, by_time=True, option="startingOffsetsByTimestamp"),
        ),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"T": {"0": 5}}'},
            Position(7, by_time=True, option="startingTimestamp"),
        ),
    ],
)
def test_a_timestamp_goes_before_timestamps_by_partition_and_those_before_offsets(
    options: dict[str, str], starting: Position
) -> None:
    assert parsed(**options).starting == starting


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"bootstrap": ""}, r"'kafka.bootstrap.servers' \(or 'bootstrap'\) is missing"),
        ({"bootstrap": "nowhere"}, "is not HOST:PORT"),
        ({"kafka.bootstrap.servers": "b:2"}, "differ"),
        ({"subscribe": " "}, "'subscribe' is missing"),
        ({"assign": '{"T": [0]}'}, "'subscribe' and 'assign' exclude each other"),
        ({"subscribe": "", "assign": '{"T": 0}'}, "'assign' is not JSON like"),
        ({"subscribe": " , "}, "'subscribe' names no topic: give"),
        ({"subscribe": "", "assign": "{}"}, "'assign' is not JSON like"),
        ({"subscribe": "", "assign": '{"T": []}'}, "'assign' is not JSON like"),
        ({"subscribe": "", "subscribePattern": "(a"}, "not a regular expression"),
        ({"subscribe": "a,b", "registry.url": "http://r"}, "give one topic"),
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"colour": "red"}, "unknown option 'colour'; known: "),
        ({"includeHeaders": "true"}, "headers are always a column"),
        ({"kafka.fetch.min.bytes": "1"}, r"only kafka\.bootstrap\.servers"),
        ({"minOffsetsPerTrigger": "5"}, "trigger interval"),
        ({"startingOffsets": "newest"}, "neither earliest or latest nor JSON"),
        ({"endingOffsets": "earliest"}, "neither latest nor JSON"),
        ({"endingOffsets": '{"T": {"0": 1.5}}'}, "neither"),
        ({"endingOffsets": '{"T": {"0": true}}'}, "neither"),
        ({"endingOffsets": "[1]"}, "neither"),
        ({"endingOffsets": '{"U": {"0": 5}}'}, "differ in 'T'"),
        ({"endingOffsets": '{"T": {"0": -2, "1": 5}}'}, "cannot hold -2"),
        ({"startingOffsetsByTimestamp": '{"T": {"0": -1}}'}, "is not JSON like"),
        ({"startingTimestamp": "2026-01-01"}, "not a time in milliseconds"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "neither error nor latest"),
        ({"minPartitions": "0"}, "not a positive number"),
        ({"minPartitions": "many"}, "not a positive number"),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}, "give one of"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"mode": "permissive"}, "needs 'registry.url'"),
        ({"registry.schema.id": "3"}, "needs 'registry.url'"),
        ({"value.format": "csv"}, "'value.format' is none of avro, avro-unframed, json, bytes, text: 'csv'"),
        ({"value.format": "json"}, "'value.format' 'json' needs 'registry.url'"),
        ({"value.format": "json", "registry.subject": "s"}, "'value.format' 'json' needs 'registry.url'"),
        ({"value.format": "text", "registry.url": "http://r"}, "leave it out, and give value.format=text"),
        ({"value.format": "bytes", "registry.schema.id": "3"}, "leave it out, and give value.format=bytes"),
        ({"subscribe": "a,b", "value.format": "text"}, "give one topic"),
        ({"subscribe": "", "subscribePattern": "a.*", "value.format": "text"}, "give one topic"),
        ({"format": "json"}, "unknown option 'format'; give value.format"),
        ({"registry.url": "http://r", "mode": "DROPMALFORMED"}, "neither failfast nor permissive"),
        ({"registry.url": "http://r", "registry.subject": "s", "registry.schema.id": "3"}, "give either"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parsed(**options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "for spark.readStream"),
        ({"maxBytesPerTrigger": "5"}, "for spark.readStream"),
        ({"startingOffsets": "latest"}, "nothing would be read"),
        ({"startingOffsets": '{"T": {"0": -1, "1": 5}}'}, "nothing would be read"),
    ],
)
def test_a_batch_refuses_what_means_something_to_a_stream_only(options: dict[str, str], reason: str) -> None:
    check_stream(parsed(**options))
    with pytest.raises(ConfigError, match=reason):
        check_batch(parsed(**options))


@pytest.mark.parametrize("option", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_refuses_an_end(option: str) -> None:
    text = {"endingOffsets": "latest", "endingTimestamp": "5"}.get(option, '{"T": {"0": 5}}')
    check_batch(parsed(**{option: text}))
    with pytest.raises(ConfigError, match=f"'{option}' is for spark.read: a stream has no end"):
        check_stream(parsed(**{option: text}))


def test_the_schema_may_be_named_by_its_id_and_rows_of_nulls_be_asked_for() -> None:
    options = parse_options({**TYPED, "registry.schema.id": "7", "mode": "PERMISSIVE"})
    assert (options.registry_schema_id, options.permissive) == (7, True)
    assert not parse_options({**TYPED, "mode": "FAILFAST"}).permissive


@pytest.mark.parametrize(
    ("options", "value_format"),
    [
        ({}, ""),
        ({"registry.url": "http://r"}, "avro"),
        ({"registry.url": "http://r", "value.format": "JSON"}, "json"),
        ({"value.format": "text", "mode": "PERMISSIVE"}, "text"),
    ],
)
def test_messages_are_decoded_only_with_a_registry_or_a_format(
    options: dict[str, str], value_format: str
) -> None:
    assert parsed(**options).value_format == value_format


def test_the_file_of_topics_names_the_format_unless_an_option_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topics.toml").write_text('[T]\nformat = "json"\n[U]\nformat = "text"\n')
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(tmp_path / "topics.toml"))
    assert parse_options(TYPED).value_format == "json"
    assert parse_options({**TYPED, "value.format": "avro"}).value_format == "avro"
    assert parse_options({**TYPED, "subscribe": "V"}).value_format == "avro"
    assert parse_options(NEEDED).value_format == "", "raw columns stay raw"
    with pytest.raises(ConfigError, match=r"leave it out, and give value\.format=text"):
        parse_options({**TYPED, "subscribe": "U"})


def test_a_client_file_says_how_brokers_are_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_CLIENT", raising=False)
    given = {"bootstrap": "b:1", "subscribe": "T"}
    assert parse_options(given).security == ClientSecurity()
    for name in ("named", "of-process"):
        (tmp_path / f"{name}.toml").write_text(f"protocol = 'SSL'\nca = '{name}.pem'\n")
    monkeypatch.setenv("MILLRACE_CLIENT", str(tmp_path / "of-process.toml"))
    assert parse_options(given).security.ca == str(tmp_path / "of-process.pem")
    named = parse_options({**given, "client.file": str(tmp_path / "named.toml")})
    assert named.security.ca == str(tmp_path / "named.pem")


@pytest.mark.parametrize("key", ["kafka.sasl.password", "kafka.security.protocol", "kafka.ssl.ca.location"])
def test_secrets_are_no_options_because_plans_show_those(key: str) -> None:
    with pytest.raises(ConfigError, match=r"name it as 'client\.file'") as error:
        parse_options({"bootstrap": "b:1", "subscribe": "T", key: "canary-2c"})
    assert "canary-2c" not in str(error.value)
