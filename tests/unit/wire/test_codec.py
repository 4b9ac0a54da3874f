"""Messages come back as they were sent; what is none is refused by name."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import Any

import pytest

from millrace.errors import ErrorCode, InvalidRequest
from millrace.wire.admin_messages import DescribeConfigsRequest
from millrace.wire.codec import decode, decode_request, encode, encode_error, is_flexible
from millrace.wire.fields import TopicItems, replace
from millrace.wire.group_messages import FindCoordinatorResponse, OffsetCommitRequest, OffsetFetchRequest
from millrace.wire.messages import (
    ApiKey,
    ApiVersionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
)
from millrace.wire.primitives import RequestTooLarge
from tests.unit.broker.asking import request_body

TOPIC_ID = uuid.UUID(int=5)
PARTITION = MetadataResponse.Topic.Partition(
    error_code=5, partition_index=3, leader_id=1, replica_nodes=(1, 2), isr_nodes=(1,)
)
METADATA = MetadataResponse(
    brokers=(MetadataResponse.Broker(node_id=1, host="h", port=9092),),
    cluster_id="c",
    controller_id=1,
    topics=(MetadataResponse.Topic(error_code=0, name="t", topic_id=TOPIC_ID, partitions=(PARTITION,)),),
)
LIST_OFFSETS = ListOffsetsRequest(
    topics=(
        TopicItems(
            name="t",
            partitions=tuple(
                ListOffsetsRequest.Partition(partition_index=i, timestamp=t)
                for i, t in enumerate((-1, -2, 1 << 41))
            ),
        ),
    )
)
LISTED = ListOffsetsResponse(
    topics=(
        TopicItems(
            name="t",
            partitions=(
                ListOffsetsResponse.Partition(partition_index=0, error_code=0, timestamp=7, offset=8),
            ),
        ),
    )
)
CREATE = CreateTopicsRequest(
    topics=(
        CreateTopicsRequest.Topic(
            name="t",
            num_partitions=3,
            replication_factor=1,
            assignments=(CreateTopicsRequest.Topic.Assignment(partition_index=0, broker_ids=(1, 2)),),
            configs=(CreateTopicsRequest.Topic.Config(name="retention.ms", value="1"),),
        ),
    ),
    timeout=1234,
    validate_only=True,
)
CREATED = CreateTopicsResponse(
    topics=(CreateTopicsResponse.Topic(name="t", error_code=36, error_message="there"),)
)
DELETED = DeleteTopicsResponse(responses=(DeleteTopicsResponse.Topic(name="t", error_code=3),))
NAMED = MetadataRequest(topics=(MetadataRequest.Topic(name="t"),), allow_auto_topic_creation=False)


def cases(message: object, api_key: int, versions: Iterable[int]) -> list[object]:
    return [pytest.param(message, api_key, v, id=f"{type(message).__name__}-v{v}") for v in versions]


@pytest.mark.parametrize(
    ("message", "api_key", "version"),
    [
        *cases(METADATA, ApiKey.METADATA, [12]),
        *cases(NAMED, ApiKey.METADATA, [4, 5, 6, 7, 8, 12]),
        *cases(MetadataRequest(topics=None), ApiKey.METADATA, [*range(1, 9), 12]),
        *cases(LIST_OFFSETS, ApiKey.LIST_OFFSETS, range(2, 6)),
        *cases(LISTED, ApiKey.LIST_OFFSETS, range(1, 6)),
        *cases(CREATE, ApiKey.CREATE_TOPICS, range(2, 5)),
        *cases(CREATED, ApiKey.CREATE_TOPICS, range(2, 5)),
        *cases(DeleteTopicsRequest(topic_names=("a", "b"), timeout=5), ApiKey.DELETE_TOPICS, range(1, 4)),
        *cases(DELETED, ApiKey.DELETE_TOPICS, range(1, 4)),
        *cases(InitProducerIdRequest(transactional_id=None), ApiKey.INIT_PRODUCER_ID, range(2)),
        *cases(InitProducerIdRequest(transactional_id="x"), ApiKey.INIT_PRODUCER_ID, range(2)),
        *cases(
            InitProducerIdResponse(error_code=0, producer_id=(1 << 63) - 1, producer_epoch=0),
            ApiKey.INIT_PRODUCER_ID,
            range(2),
        ),
        *cases(
            FindCoordinatorResponse(error_code=0, error_message="m", node_id=1, host="h", port=5),
            ApiKey.FIND_COORDINATOR,
            [1, 2],
        ),
        *cases(
            ApiVersionsResponse(
                error_code=0,
                api_keys=(ApiVersionsResponse.ApiVersion(api_key=0, min_version=0, max_version=8),),
            ),
            ApiKey.API_VERSIONS,
            range(4),
        ),
    ],
)
def test_a_message_comes_back_as_it_was_sent(message: object, api_key: int, version: int) -> None:
    assert decode(type(message), api_key, version, encode(message, api_key, version)) == message


def test_old_metadata_requests_ask_for_creation_by_default() -> None:
    body = encode(NAMED, ApiKey.METADATA, 1)
    assert decode(MetadataRequest, ApiKey.METADATA, 1, body).allow_auto_topic_creation


@pytest.mark.parametrize("cut", range(10))
def test_a_request_that_does_not_fit_its_schema_is_refused_by_name(cut: int) -> None:
    body = encode(LIST_OFFSETS, ApiKey.LIST_OFFSETS, 5)
    with pytest.raises(InvalidRequest, match="malformed list_offsets v5"):
        decode(ListOffsetsRequest, ApiKey.LIST_OFFSETS, 5, body[:cut])


def test_a_length_beyond_the_request_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest):
        decode(MetadataRequest, ApiKey.METADATA, 8, b"\x7f\xff\xff\xff" + b"\0" * 20)


def test_an_unknown_api_has_no_flexible_versions() -> None:
    assert not is_flexible(999, 0)
    assert is_flexible(ApiKey.METADATA, 12)
    assert not is_flexible(ApiKey.METADATA, 8)


def test_a_request_cannot_take_far_more_memory_than_its_bytes() -> None:
    names = b"\0\0" * 10_000
    with pytest.raises(RequestTooLarge):
        decode_request(MetadataRequest, ApiKey.METADATA, 4, struct.pack(">i", 10_000) + names + b"\1", 2_000)
    with pytest.raises(RequestTooLarge, match=r"a request of \d+ bytes; 51200 are allowed"):
        decode_request(MetadataRequest, ApiKey.METADATA, 4, bytes(60_000), 10)


def test_a_response_may_be_as_long_as_the_cluster_is_large() -> None:
    topics = tuple(MetadataResponse.Topic(error_code=0, name=f"t{n}", topic_id=None) for n in range(10_001))
    response = MetadataResponse(brokers=(), cluster_id="c", controller_id=1, topics=topics)
    decoded = decode(MetadataResponse, ApiKey.METADATA, 8, encode(response, ApiKey.METADATA, 8))
    assert len(decoded.topics) == 10_001


@pytest.mark.parametrize(
    ("message", "api_key", "version", "values"),
    [
        (
            ListOffsetsRequest,
            ApiKey.LIST_OFFSETS,
            5,
            {"topics": [{"name": f"t{n}", "partitions": [{"partition_index": 0}]} for n in range(1_000)]},
        ),
        (
            OffsetCommitRequest,
            ApiKey.OFFSET_COMMIT,
            7,
            {"topics": [{"name": f"t{n}", "partitions": [{"partition_index": 0}]} for n in range(1_000)]},
        ),
        (
            OffsetFetchRequest,
            ApiKey.OFFSET_FETCH,
            5,
            {"topics": [{"name": f"t{n}", "partition_indexes": [0]} for n in range(1_000)]},
        ),
        (
            OffsetFetchRequest,
            ApiKey.OFFSET_FETCH,
            5,
            {"topics": [{"name": "t", "partition_indexes": range(1_000)}]},
        ),
        (MetadataRequest, ApiKey.METADATA, 8, {"topics": [{"name": f"t{n}"} for n in range(1_000)]}),
        (
            DescribeConfigsRequest,
            ApiKey.DESCRIBE_CONFIGS,
            3,
            {
                "resources": [
                    {"resource_type": 2, "resource_name": f"t{n}", "configuration_keys": None}
                    for n in range(200)
                ]
            },
        ),
    ],
)
def test_what_clients_ask_of_a_broker_with_a_thousand_partitions_is_no_item_too_much(
    message: type[Any], api_key: int, version: int, values: dict[str, Any]
) -> None:
    assert decode(message, api_key, version, request_body(api_key, version, values))


@pytest.mark.parametrize("field", ["replica_nodes", "isr_nodes"])
def test_a_null_that_a_version_does_not_allow_is_not_written(field: str) -> None:
    topic = replace(METADATA.topics[0], partitions=(replace(PARTITION, **{field: None}),))
    with pytest.raises(ValueError, match=f"^{field} is null$"):
        encode(replace(METADATA, topics=(topic,)), ApiKey.METADATA, 8)


def test_a_null_in_a_list_of_texts_is_malformed() -> None:
    names = struct.pack(">i", 2) + b"\0\1t" + b"\xff\xff"
    with pytest.raises(InvalidRequest, match="a string is null"):
        decode(DeleteTopicsRequest, ApiKey.DELETE_TOPICS, 1, names + bytes(4))


def test_a_refused_topic_without_a_name_has_an_empty_one_where_the_answer_must_have_one() -> None:
    asked = MetadataRequest(topics=(MetadataRequest.Topic(topic_id=TOPIC_ID),))
    named = {}
    for version in (11, 12):
        code = ErrorCode.INVALID_REQUEST
        refused = encode_error(MetadataResponse, ApiKey.METADATA, version, code, "", asked)
        assert refused is not None
        (topic,) = decode(MetadataResponse, ApiKey.METADATA, version, refused).topics
        named[version] = topic.name
        assert topic.error_code == code
    assert named == {11: "", 12: None}
