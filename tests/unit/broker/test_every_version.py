"""Every API at every version that clients are told: its own bytes are understood, its answer is whole."""

from __future__ import annotations

import dataclasses
import random
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from millrace.config import LogConfig
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import TooManyItems
from millrace_broker.handlers import all_apis
from millrace_broker.handlers.table import Api
from millrace_broker.server.request import Request
from tests.trials.attack.requests import body_of
from tests.unit.broker.asking import (
    AskingClient,
    ChangingCluster,
    Values,
    ask,
    ask_or_close,
    error_codes,
    handlers_of,
    request_body,
)
from tests.unit.broker.running import Running, topic

TOLD = {
    0: (0, 12),
    1: (4, 17),
    2: (1, 10),
    3: (0, 13),
    8: (2, 9),
    9: (1, 9),
    10: (0, 5),
    11: (0, 9),
    12: (0, 4),
    13: (0, 5),
    14: (0, 5),
    15: (0, 6),
    16: (0, 5),
    17: (0, 1),
    18: (0, 4),
    19: (2, 7),
    20: (1, 6),
    21: (0, 2),
    22: (0, 5),
    23: (2, 4),
    29: (1, 3),
    30: (1, 3),
    31: (1, 3),
    32: (1, 4),
    33: (0, 2),
    35: (1, 4),
    36: (0, 1),
    37: (0, 3),
    42: (0, 2),
    43: (1, 2),
    44: (0, 1),
    45: (0, 1),
    46: (0, 0),
    47: (0, 0),
    48: (0, 1),
    49: (0, 1),
    50: (0, 0),
    51: (0, 0),
    60: (0, 2),
    61: (0, 0),
    64: (0, 0),
    66: (0, 2),
    74: (0, 1),
    75: (0, 0),
}
"""API -> versions: what the clients we know ask for."""

BATCH = build_batch([Message(1, None, b"x" * 50)])
T = topic("t", 1)
IDS = {"t": T.topic_id, "nope": uuid.UUID(int=99)}
_ALTERED = {"resource_type": 2, "resource_name": "t"}


def requests(name: str) -> dict[int, Values]:
    """What is asked of each API about a topic."""
    number = {"partition_index": 0}
    return {
        ApiKey.PRODUCE: {
            "acks": -1,
            "topic_data": [{"name": name, "partition_data": [{"index": 0, "records": BATCH}]}],
        },
        ApiKey.FETCH: {
            "max_wait": 0,
            "max_bytes": 1 << 20,
            "topics": [
                {
                    "topic": name,
                    "topic_id": IDS[name],
                    "partitions": [{"partition": 0, "partition_max_bytes": 99}],
                }
            ],
        },
        ApiKey.LIST_OFFSETS: {"replica_id": -1, "topics": [{"name": name, "partitions": [number]}]},
        ApiKey.METADATA: {"topics": [{"name": name}], "allow_auto_topic_creation": False},
        ApiKey.DELETE_TOPICS: {"topic_names": [name], "topics": [{"name": name}], "timeout": 1000},
        ApiKey.DELETE_RECORDS: {
            "topics": [{"name": name, "partitions": [{**number, "offset": 1}]}],
            "timeout": 1000,
        },
        ApiKey.DESCRIBE_PRODUCERS: {"topics": [{"name": name, "partition_indexes": [0]}]},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [{"name": name}], "cursor": None},
        ApiKey.DESCRIBE_CONFIGS: {
            "resources": [{"resource_type": 2, "resource_name": name, "configuration_keys": None}],
            "include_synonyms": True,
        },
        ApiKey.ALTER_CONFIGS: {
            "resources": [
                {**_ALTERED, "resource_name": name, "configs": [{"name": "flush.ms", "value": "7"}]}
            ]
        },
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [
                {
                    **_ALTERED,
                    "resource_name": name,
                    "configs": [{"name": "flush.ms", "config_operation": 0, "value": "7"}],
                }
            ]
        },
        ApiKey.CREATE_PARTITIONS: {
            "topics": [{"name": name, "count": 3, "assignments": None}],
            "timeout": 1000,
        },
    }


WITHOUT_TOPIC: dict[int, Values] = {
    ApiKey.API_VERSIONS: {"client_software_name": "test", "client_software_version": "1"},
    ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 1000},
    ApiKey.DESCRIBE_CLUSTER: {},
    ApiKey.LIST_CONFIG_RESOURCES: {},
    ApiKey.LIST_TRANSACTIONS: {"state_filters": ["Ongoing"]},
    ApiKey.CREATE_TOPICS: {
        "topics": [{"name": "new", "num_partitions": 2, "replication_factor": 1}],
        "timeout": 10_000,
    },
}


ASKED: dict[int, Values] = {**requests("t"), **WITHOUT_TOPIC}


def versions(api_key: int) -> range:
    """Those that clients are told and the broker takes: Produce v0 to v2 are only told."""
    low, high = TOLD[api_key]
    return range(3 if api_key == ApiKey.PRODUCE else low, high + 1)


SERVED = [(key, version) for key in ASKED for version in versions(key)]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, ChangingCluster(T), LogConfig(flush_ms=1))
    made.produce()
    made.turn()
    made.until("the first message is flushed", lambda: made.high_watermark() == 1)
    yield made
    made.stop()


UNKNOWN_TO_KIO = {(ApiKey.PRODUCE, version) for version in range(3)}


def test_clients_are_told_what_they_need_and_no_more() -> None:
    told = {api.key: (api.versions[0], api.versions[-1]) for api in all_apis() if api.versions}
    assert told == TOLD


@pytest.mark.parametrize(("api_key", "version"), SERVED)
def test_a_clients_own_bytes_get_a_whole_answer_without_an_error(
    running: Running, api_key: int, version: int
) -> None:
    entity = ask(running, api_key, version, ASKED[api_key])
    codes = set(error_codes(entity))
    assert codes == {ErrorCode.NONE}


def test_a_fetch_of_version_18_which_nobody_is_told_of_is_answered_as_one_of_17(running: Running) -> None:
    body = request_body(ApiKey.FETCH, 17, requests("t")[ApiKey.FETCH])

    def answer(version: int) -> list[Any]:
        frame = struct.pack(">hhih", ApiKey.FETCH, version, 7, -1) + b"\0" + body
        request = handlers_of(running.broker).handle(AskingClient(), memoryview(bytearray(frame)))
        running.broker.end_of_turn()
        running.until(f"an answer to v{version}", lambda: request.parts is not None)
        return [one if isinstance(one, bytes) else (one.position, one.length) for one in request.parts or ()]

    assert answer(17) == answer(18) != []


@pytest.mark.parametrize("api_key", list(requests("t")))
def test_a_topic_that_is_not_there_is_an_error_of_its_own(running: Running, api_key: int) -> None:
    for version in versions(api_key):
        entity = ask(running, api_key, version, requests("nope")[api_key])
        by_id = api_key == ApiKey.FETCH and version >= 13
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert set(error_codes(entity)) - {ErrorCode.NONE} == {code}


@pytest.mark.parametrize("version", [8, 12])
@pytest.mark.parametrize("empty", [[], ["u"], ["u", "v"]])
def test_a_batch_is_answered_for_its_own_topic_beside_topics_without_one(
    running: Running, version: int, empty: list[str]
) -> None:
    batch = {"name": "t", "partition_data": [{"index": 0, "records": BATCH}]}
    data = [*({"name": name, "partition_data": []} for name in empty), batch]
    answer = ask(running, ApiKey.PRODUCE, version, {"acks": 1, "topic_data": data})
    answered = [(one.name, [part.index for part in one.partition_responses]) for one in answer.responses]
    assert answered == [*((name, []) for name in empty), ("t", [0])]


def test_a_topic_created_anew_is_not_fetched_by_the_id_it_had(running: Running) -> None:
    for version in range(13, 18):
        (answered,) = ask(running, ApiKey.FETCH, version, requests("t")[ApiKey.FETCH]).responses
        assert (answered.topic_id, bool(answered.partitions[0].records)) == (T.topic_id, True)
    anew = dataclasses.replace(T, topic_id=uuid.uuid4())
    running.cluster.topics = {"t": anew}  # known already, and its log not open yet
    for asked in (T.topic_id, anew.topic_id):
        values = {**requests("t")[ApiKey.FETCH]}
        values["topics"] = [{**values["topics"][0], "topic_id": asked}]
        (answered,) = ask(running, ApiKey.FETCH, 13, values).responses
        assert answered.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert not answered.partitions[0].records


@pytest.mark.parametrize("api_key", list(ASKED))
def test_a_request_cut_anywhere_is_answered(running: Running, api_key: int) -> None:
    before = dict(running.cluster.topics)
    for version in versions(api_key):
        body = request_body(api_key, version, ASKED[api_key])
        for cut in range(len(body)):
            entity = ask_or_close(running, api_key, version, body[:cut])
            if api_key != ApiKey.API_VERSIONS and entity is not None:  # whose body nobody reads
                assert set(error_codes(entity)) == {ErrorCode.INVALID_REQUEST}
    assert running.cluster.topics == before


@pytest.mark.parametrize("version", [5, 6, 9, 63])
def test_a_client_newer_than_the_broker_learns_what_the_broker_speaks(running: Running, version: int) -> None:
    client = AskingClient()
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 7, -1) + b"\0\5newer\0"
    request = handlers_of(running.broker).handle(client, memoryview(bytearray(frame)))
    (answer,) = request.parts or ()
    assert isinstance(answer, bytes)
    schema: Any = load_response_schema(ApiKey.API_VERSIONS, 0)
    told, size = entity_reader(schema)(answer[8:], 0)
    assert size == len(answer) - 8
    assert told.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert {api.api_key: (api.min_version, api.max_version) for api in told.api_keys}[18] == (0, 4)


@pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in all_apis()
        for version in api.versions
        if (api.key, version) not in UNKNOWN_TO_KIO
    ],
    ids=lambda part: getattr(getattr(part, "key", part), "name", str(part)),
)
def test_an_error_is_said_or_the_connection_closed_never_an_empty_answer(api: Api[Any], version: int) -> None:
    body = api.refusal(version, ErrorCode.INVALID_PARTITIONS, "", None)
    schema = load_response_schema(api.key, version)
    has_place = "error_code" in {field.name for field in dataclasses.fields(schema)}
    assert (body is not None) == has_place, "else the connection is closed"
    if body is None:
        return
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    assert getattr(entity, "error_code", None) == ErrorCode.INVALID_PARTITIONS
    values = [getattr(entity, field.name) for field in dataclasses.fields(entity)]
    assert [value for value in values if isinstance(value, tuple) and value] == []


REFUSED_AS_A_WHOLE = {
    *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS),
    *(ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_CLIENT_QUOTAS),
    *(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.DESCRIBE_LOG_DIRS),
}
"""Messages with a list and an error of their own alone."""
NOT_ANSWERED = {
    *((ApiKey.DESCRIBE_LOG_DIRS, 1), (ApiKey.DESCRIBE_LOG_DIRS, 2)),
    (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0),
}


def _codes(entity: Any) -> list[int]:
    """Every error code of an entity and of the items of its lists."""
    own = [int(entity.error_code)] if hasattr(entity, "error_code") else []
    values = [getattr(entity, field.name) for field in dataclasses.fields(entity)]
    items = [item for value in values if isinstance(value, tuple) for item in value]
    return own + [code for item in items if dataclasses.is_dataclass(item) for code in _codes(item)]


@pytest.mark.parametrize(
    ("api", "version"),
    [
        (api, version)
        for api in all_apis()
        for version in api.versions
        if (api.key, version) not in {*UNKNOWN_TO_KIO, *NOT_ANSWERED}
        if api.key not in {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS}
    ],
    ids=lambda part: getattr(getattr(part, "key", part), "name", str(part)),
)
def test_each_of_too_many_items_is_refused(api: Api[Any], version: int) -> None:
    """A client understands an error where it looks for the outcome of what it has asked for."""
    schema, told = load_response_schema(api.key, version), list[int]()
    for seed in range(10):  # a topic that is drawn may have no partitions
        body = body_of(api.key, version, random.Random(seed), 3)
        request = Request(AskingClient(), api.key, version, 1, memoryview(body), item_limit=2)
        try:
            api.decode(request)
            return  # it has no list at this version
        except TooManyItems as error:
            answer = api.refusal(version, error.code, str(error), error.request)
        assert answer is not None
        entity, size = entity_reader(schema)(answer, 0)
        assert size == len(answer)
        codes = [code for code in _codes(entity) if code]
        assert set(codes) <= {ErrorCode.INVALID_REQUEST}
        told.append(len(codes))
    assert max(told) >= (1 if api.key in REFUSED_AS_A_WHOLE else 3)
