"""An example of a request of every API: what a client sends, and which rights it takes.

A new API needs a row here; tests ask each at every version that a broker serves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.errors import ErrorCode
from millrace.records import Cursor, Message, build_batch
from millrace.wire.codec import encode
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import MirrorAppend, MirrorMode, encode_request
from millrace.wire.replica import ReplicaAckRequest, ReplicaFetchRequest, encode_ack, encode_fetch
from millrace.wire.unclean_election import ElectUncleanRequest
from millrace_broker.security.rights import Operation, ResourceType
from millrace_mirror.translation import TranslateOffsetsRequest
from tests.unit.broker.asking import Values, request_body
from tests.unit.broker.running import ORIGIN, topic

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
)
DESCRIBE, MIRROR_WRITE = Operation.DESCRIBE, Operation.MIRROR_WRITE
CLUSTER_ACTION = Operation.CLUSTER_ACTION
DESCRIBE_CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS
Right = tuple[Operation, ResourceType]
RIGHTS: list[Right] = [(operation, type_) for operation in Operation for type_ in ResourceType]
CODES = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}
BATCH = build_batch([Message(1, None, b"x" * 50)])
NUMBER = {"partition_index": 0}
T = topic("t", 1)


@dataclass(frozen=True)
class Example:
    """A request, and the rights that it takes: all of those of one of `takes`."""

    api: ApiKey
    body: Values | bytes
    takes: Sequence[tuple[Right, ...]]
    what: str = ""
    since: int = 0
    """The first version that has this request."""
    succeeds: bool = True
    """False if a lone broker, which has no groups, users and access rules, answers with an error."""
    refused_as_a_whole: bool = False
    """True if the response states one error for all items of the request's list."""

    def is_allowed(self, rights: set[Right]) -> bool:
        return any(rights.issuperset(needed) for needed in self.takes)

    def refusal(self, rights: set[Right]) -> ErrorCode:
        return CODES[next(type_ for op, type_ in self.takes[0] if (op, type_) not in rights)]

    def encoded(self, version: int, names: Mapping[Any, Any] | None = None) -> bytes:
        """Return the request's bytes; those of Kafka's APIs name what `names` puts in place of its names."""
        if isinstance(self.body, bytes):
            return self.body
        return request_body(self.api, version, renamed(self.body, names or {}))

    def __str__(self) -> str:
        return f"{self.api.name} {self.what}".strip()


def renamed(value: Any, names: Mapping[Any, Any]) -> Any:
    """Return the fields of a request about other names and ids."""
    if isinstance(value, Mapping):
        return {key: renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, (str, UUID)) else value


def _mirror(mode: MirrorMode) -> bytes:
    cursor = None if mode is MirrorMode.DESCRIBE else Cursor(len(BATCH), None)
    records = BATCH if mode is MirrorMode.APPEND else b""
    return b"".join(
        encode_request("copy", MirrorAppend(mode=mode, origin=ORIGIN, cursor=cursor, records=records))
    )


def resource(type_: int, name: str, **fields: Any) -> Values:
    return {"resource_type": type_, "resource_name": name, **fields}


_RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
}
_FILTER = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
_FLUSH = [{"name": "flush.ms", "value": "7"}]
SET_FLUSH = [{"name": "flush.ms", "config_operation": 0, "value": "7"}]
_MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "m"}
_TRANSLATE = TranslateOffsetsRequest(to_origin=True, topic="copy", partition=0, offsets=(0,))
_COPY = ReplicaFetchRequest(2, "0" * 16, True, 0, 0, (), ())
_COPIED = ReplicaAckRequest(2, "0" * 16, ())
_UNCLEAN = ElectUncleanRequest(topic="t", partition=0, replica=2, reason="all is lost")
EXAMPLES = [
    Example(
        ApiKey.PRODUCE,
        {"acks": -1, "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": BATCH}]}]},
        [((WRITE, TOPIC),)],
        since=3,
    ),
    Example(
        ApiKey.FETCH,
        {
            "max_wait": 0,
            "max_bytes": 1 << 20,
            "topics": [
                {
                    "topic": "t",
                    "topic_id": T.topic_id,
                    "partitions": [{"partition": 0, "partition_max_bytes": 99}],
                }
            ],
        },
        [((READ, TOPIC),)],
    ),
    Example(
        ApiKey.LIST_OFFSETS,
        {"replica_id": -1, "topics": [{"name": "t", "partitions": [NUMBER]}]},
        [((DESCRIBE, TOPIC),)],
    ),
    Example(
        ApiKey.METADATA,
        {"topics": [{"name": "t"}], "allow_auto_topic_creation": False},
        [((DESCRIBE, TOPIC),)],
    ),
    Example(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}]},
        [((DESCRIBE, TOPIC),)],
    ),
    Example(
        ApiKey.OFFSET_COMMIT,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [NUMBER]}]},
        [((READ, GROUP), (READ, TOPIC))],
        succeeds=False,
    ),
    Example(
        ApiKey.OFFSET_FETCH,
        {
            "group_id": "g",
            "topics": (asked := [{"name": "t", "partition_indexes": [0]}]),
            "groups": [{"group_id": "g", "topics": asked}],
        },
        [((DESCRIBE, GROUP), (DESCRIBE, TOPIC))],
        succeeds=False,
    ),
    Example(
        ApiKey.OFFSET_DELETE,
        {"group_id": "g", "topics": [{"name": "t", "partitions": [NUMBER]}]},
        [((DELETE, GROUP), (READ, TOPIC))],
        succeeds=False,
    ),
    Example(
        ApiKey.FIND_COORDINATOR,
        {"key": "g", "coordinator_keys": ["g"]},
        [((DESCRIBE, GROUP),)],
        succeeds=False,
    ),
    Example(
        ApiKey.JOIN_GROUP, {"group_id": "g"}, [((READ, GROUP),)], succeeds=False, refused_as_a_whole=True
    ),
    Example(ApiKey.SYNC_GROUP, _MEMBER, [((READ, GROUP),)], succeeds=False, refused_as_a_whole=True),
    Example(ApiKey.HEARTBEAT, _MEMBER, [((READ, GROUP),)], succeeds=False),
    Example(ApiKey.LEAVE_GROUP, {"group_id": "g"}, [((READ, GROUP),)], succeeds=False),
    Example(ApiKey.DESCRIBE_GROUPS, {"groups": ["g"]}, [((DESCRIBE, GROUP),)], succeeds=False),
    Example(ApiKey.LIST_GROUPS, {}, [()], succeeds=False, refused_as_a_whole=True),
    Example(ApiKey.DELETE_GROUPS, {"groups_names": ["g"]}, [((DELETE, GROUP),)], succeeds=False),
    Example(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-256"}, [()], succeeds=False),
    Example(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"x"}, [()], succeeds=False),
    Example(ApiKey.API_VERSIONS, {"client_software_name": "test", "client_software_version": "1"}, [()]),
    Example(
        ApiKey.CREATE_TOPICS,
        {"topics": [{"name": "new", "num_partitions": 2, "replication_factor": 1}], "timeout": 1000},
        [((CREATE, TOPIC),), ((CREATE, CLUSTER),)],
    ),
    Example(
        ApiKey.DELETE_TOPICS,
        {"topic_names": ["t"], "topics": [{"name": "t"}], "timeout": 1000},
        [((DELETE, TOPIC),)],
    ),
    Example(
        ApiKey.DELETE_RECORDS,
        {"topics": [{"name": "t", "partitions": [{**NUMBER, "offset": 1}]}], "timeout": 1000},
        [((DELETE, TOPIC),)],
    ),
    Example(
        ApiKey.DESCRIBE_PRODUCERS, {"topics": [{"name": "t", "partition_indexes": [0]}]}, [((READ, TOPIC),)]
    ),
    Example(ApiKey.DESCRIBE_CLUSTER, {}, [()]),
    Example(ApiKey.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": "t"}]}, [((DESCRIBE, TOPIC),)]),
    Example(ApiKey.LIST_CONFIG_RESOURCES, {}, [((DESCRIBE_CONFIGS, CLUSTER),)], refused_as_a_whole=True),
    Example(ApiKey.LIST_TRANSACTIONS, {"state_filters": ["Ongoing"]}, [()], refused_as_a_whole=True),
    Example(ApiKey.UNREGISTER_BROKER, {"broker_id": 7}, [((ALTER, CLUSTER),)], succeeds=False),
    Example(
        ApiKey.CREATE_PARTITIONS,
        {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": 1000},
        [((ALTER, TOPIC),)],
    ),
    Example(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        {"topics": [{"name": "t", "partitions": [{**NUMBER, "replicas": (2,)}]}], "timeout": 1000},
        [((ALTER, CLUSTER),)],
        succeeds=False,
    ),
    Example(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        {"topics": None, "timeout": 1000},
        [((DESCRIBE, CLUSTER),)],
        refused_as_a_whole=True,
    ),
    Example(
        ApiKey.ELECT_LEADERS,
        {"topic_partitions": [{"topic": "t", "partitions": (0,)}], "timeout": 1000},
        [((ALTER, CLUSTER),)],
        succeeds=False,
    ),
    Example(ApiKey.ELECT_UNCLEAN, encode(_UNCLEAN, ApiKey.ELECT_UNCLEAN, 0), [((ALTER, CLUSTER),)]),
    Example(
        ApiKey.INIT_PRODUCER_ID,
        {"transactional_id": None, "transaction_timeout": 1000},
        [((Operation.IDEMPOTENT_WRITE, CLUSTER),), ((WRITE, TOPIC),)],
    ),
    Example(
        ApiKey.DESCRIBE_CONFIGS,
        {"resources": [resource(2, "t", configuration_keys=None)], "include_synonyms": True},
        [((DESCRIBE_CONFIGS, TOPIC),)],
        "of a topic",
    ),
    Example(
        ApiKey.DESCRIBE_CONFIGS,
        {"resources": [resource(4, "1", configuration_keys=None)], "include_synonyms": True},
        [((DESCRIBE_CONFIGS, CLUSTER),)],
        "of a broker",
    ),
    Example(
        ApiKey.ALTER_CONFIGS,
        {"resources": [resource(2, "t", configs=_FLUSH)]},
        [((ALTER_CONFIGS, TOPIC),)],
        "of a topic",
    ),
    Example(
        ApiKey.ALTER_CONFIGS,
        {"resources": [resource(4, "1", configs=_FLUSH)]},
        [((ALTER_CONFIGS, CLUSTER),)],
        "of a broker",
        succeeds=False,
    ),
    Example(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        {"resources": [resource(2, "t", configs=SET_FLUSH)]},
        [((ALTER_CONFIGS, TOPIC),)],
        "of a topic",
    ),
    Example(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        {"resources": [resource(4, "1", configs=SET_FLUSH)]},
        [((ALTER_CONFIGS, CLUSTER),)],
        "of a broker",
        succeeds=False,
    ),
    Example(ApiKey.DESCRIBE_ACLS, _FILTER, [((DESCRIBE, CLUSTER),)], succeeds=False),
    Example(
        ApiKey.CREATE_ACLS,
        {"creations": [{**_RULE, "operation": 3, "permission_type": 3}]},
        [((ALTER, CLUSTER),)],
        succeeds=False,
    ),
    Example(ApiKey.DELETE_ACLS, {"filters": [_FILTER]}, [((ALTER, CLUSTER),)], succeeds=False),
    Example(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        {"users": None},
        [((DESCRIBE, CLUSTER),)],
        refused_as_a_whole=True,
    ),
    Example(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []},
        [((ALTER, CLUSTER),)],
        succeeds=False,
    ),
    Example(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        {"components": [], "strict": False},
        [((DESCRIBE_CONFIGS, CLUSTER),)],
        refused_as_a_whole=True,
    ),
    Example(
        ApiKey.ALTER_CLIENT_QUOTAS,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "nobody"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ],
            "validate_only": False,
        },
        [((ALTER_CONFIGS, CLUSTER),)],
        succeeds=False,
    ),
    Example(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, [((DESCRIBE, CLUSTER),)], refused_as_a_whole=True),
    Example(ApiKey.MIRROR_APPEND, _mirror(MirrorMode.APPEND), [((MIRROR_WRITE, TOPIC),)], "append", since=1),
    Example(ApiKey.MIRROR_APPEND, _mirror(MirrorMode.DESCRIBE), [((DESCRIBE, TOPIC),)], "describe", since=1),
    Example(
        ApiKey.MIRROR_APPEND,
        _mirror(MirrorMode.RESET),
        [((MIRROR_WRITE, TOPIC), (ALTER, TOPIC))],
        "reset",
        since=1,
    ),
    Example(ApiKey.TRANSLATE_OFFSETS, encode(_TRANSLATE, 10_001, 0), [((DESCRIBE, TOPIC),)]),
    Example(ApiKey.REPLICA_FETCH, encode_fetch(_COPY), [((CLUSTER_ACTION, CLUSTER),)]),
    Example(ApiKey.REPLICA_ACK, encode_ack(_COPIED), [((CLUSTER_ACTION, CLUSTER),)]),
]
"""At least one request of every API."""
