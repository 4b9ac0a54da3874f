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
from millrace.wire.messages import ApiKey
from millrace.wire.primitives import TooManyItems
from millrace_broker.handlers import all_apis
from millrace_broker.handlers.table import Api
from millrace_broker.server.request import Request
from tests.trials.attack.requests import body_of
from tests.unit.broker.asking import (
    AskingClient,
    ChangingCluster,
    ask,
    ask_or_close,
    error_codes,
    handlers_of,
    request_body,
)
from tests.unit.broker.examples import BATCH, EXAMPLES, Example, T, renamed
from tests.unit.broker.running import Running
from tests.unit.protocol_page import LISTED

NOPE = {"t": "nope", T.topic_id: uuid.UUID(int=99)}
"""A topic that is not there, by name and id, in place of the one in the examples."""
SUCCEED = [example for example in EXAMPLES if example.succeeds and example.api in LISTED]
FETCH: Any = next(example.body for example in EXAMPLES if example.api == ApiKey.FETCH)


def of_a_topic(example: Example) -> bool:
    return bool(renamed(example.body, NOPE) != example.body)


def versions(example: Example) -> list[int]:
    """The versions of the page that the broker takes: it lists Produce v0 to v2 and refuses them."""
    return [version for version in LISTED[example.api] if version >= example.since]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, ChangingCluster(T), LogConfig(flush_ms=1))
    made.produce()
    made.turn()
    made.until("the first message is flushed", lambda: made.high_watermark() == 1)
    yield made
    made.stop()


UNKNOWN_TO_KIO = {(ApiKey.PRODUCE, version) for version in range(3)}


@pytest.mark.parametrize(
    ("example", "version"),
    [(example, version) for example in SUCCEED for version in versions(example)],
    ids=str,
)
def test_a_clients_own_bytes_get_a_whole_answer_without_an_error(
    running: Running, example: Example, version: int
) -> None:
    entity = ask(running, example.api, version, example.encoded(version))
    assert set(error_codes(entity)) == {ErrorCode.NONE}


def test_a_fetch_of_version_18_which_nobody_is_told_of_is_answered_as_one_of_17(running: Running) -> None:
    body = request_body(ApiKey.FETCH, 17, FETCH)

    def answer(version: int) -> list[Any]:
        frame = struct.pack(">hhih", ApiKey.FETCH, version, 7, -1) + b"\0" + body
        request = handlers_of(running.broker).handle(AskingClient(), memoryview(bytearray(frame)))
        running.broker.end_of_turn()
        running.until(f"an answer to v{version}", lambda: request.parts is not None)
        return [one if isinstance(one, bytes) else (one.position, one.length) for one in request.parts or ()]

    assert answer(17) == answer(18) != []


@pytest.mark.parametrize("example", [*filter(of_a_topic, SUCCEED)], ids=str)
def test_a_topic_that_is_not_there_is_an_error_of_its_own(running: Running, example: Example) -> None:
    for version in versions(example):
        entity = ask(running, example.api, version, example.encoded(version, NOPE))
        by_id = example.api == ApiKey.FETCH and version >= 13
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
        (answered,) = ask(running, ApiKey.FETCH, version, FETCH).responses
        assert (answered.topic_id, bool(answered.partitions[0].records)) == (T.topic_id, True)
    anew = dataclasses.replace(T, topic_id=uuid.uuid4())
    running.cluster.topics = {"t": anew}  # known already, and its log not open yet
    for asked in (T.topic_id, anew.topic_id):
        values = renamed(FETCH, {T.topic_id: asked})
        (answered,) = ask(running, ApiKey.FETCH, 13, values).responses
        assert answered.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert not answered.partitions[0].records


@pytest.mark.parametrize("example", SUCCEED, ids=str)
def test_a_request_cut_anywhere_is_answered(running: Running, example: Example) -> None:
    before = dict(running.cluster.topics)
    for version in versions(example):
        body = example.encoded(version)
        for cut in range(len(body)):
            entity = ask_or_close(running, example.api, version, body[:cut])
            if example.api != ApiKey.API_VERSIONS and entity is not None:  # whose body nobody reads
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


REFUSED_AS_A_WHOLE = {example.api for example in EXAMPLES if example.refused_as_a_whole}
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
    if api.key in REFUSED_AS_A_WHOLE:
        assert max(told) == 1
    else:
        assert max(told) >= 3
