"""Every error Millrace raises on purpose, and the wire code of those a Kafka client may see.

One small tree. `MillraceError` is for people: its text is one line that says what to do. `BrokerError`
is for clients: the class carries the protocol's code. One place each turns them into output: the command
line prints the first kind, the request handlers answer with the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class ErrorCode(IntEnum):
    """The error codes of the Kafka protocol that a Millrace broker answers with."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    STORAGE_ERROR = 56
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87


class MillraceError(Exception):
    """Something the user must act on; the text is one clear line that says what to do."""


class ConfigError(MillraceError):
    """A configuration file or option is wrong; the text names the file and the key."""


class BrokerError(MillraceError):
    """A request the broker refuses; `code` is what the client is answered with."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR


class OffsetOutOfRange(BrokerError):
    """The offset is before the log's start or after its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(BrokerError):
    """A batch fails its CRC or its length, in a request or on disk."""

    code = ErrorCode.CORRUPT_MESSAGE


class InvalidRecord(BrokerError):
    """A whole, intact batch that breaks a rule: its counts disagree, or it claims to be a control batch."""

    code = ErrorCode.INVALID_RECORD


class MessageTooLarge(BrokerError):
    """A batch exceeds the largest this topic takes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class UnknownTopicOrPartition(BrokerError):
    """No such topic or partition in this cluster."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(BrokerError):
    """The partition is about to be served here: ask again in a moment."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeader(BrokerError):
    """The partition lives on another broker."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class TopicAlreadyExists(BrokerError):
    """A topic of that name is there already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidTopic(BrokerError):
    """The topic's name is not legal: 1 to 249 of letters, digits, dot, underscore and hyphen."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class InvalidRequest(BrokerError):
    """The request is well formed but asks for something that makes no sense here."""

    code = ErrorCode.INVALID_REQUEST


class PolicyViolation(BrokerError):
    """The request is understood and refused on purpose, for example Produce to a mirrored topic."""

    code = ErrorCode.POLICY_VIOLATION


class InvalidPartitions(BrokerError):
    """A topic cannot have that many partitions."""

    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(BrokerError):
    """A partition cannot have that many replicas."""

    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(BrokerError):
    """The request picks the brokers of a partition itself."""

    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class NoLiveBroker(BrokerError):
    """No broker is alive to lead a partition."""

    code = ErrorCode.LEADER_NOT_AVAILABLE


class OutOfOrderSequence(BrokerError):
    """An idempotent producer's batch does not follow its last one."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class InvalidProducerEpoch(BrokerError):
    """An idempotent producer's batch carries an older epoch than its last one."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class RequestTimedOut(BrokerError):
    """What the request needs, such as ZooKeeper, did not answer in time: try again."""

    code = ErrorCode.REQUEST_TIMED_OUT


class StorageError(BrokerError):
    """The log cannot be written: no space left, or a flush failed; reads go on."""

    code = ErrorCode.STORAGE_ERROR


class InvalidGroup(BrokerError):
    """The group's name is empty."""

    code = ErrorCode.INVALID_GROUP_ID


class InconsistentGroupKind(BrokerError):
    """The group is one of the other kind: of Millrace's own consumers, or of Kafka's classic protocol."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class NotCoordinator(BrokerError):
    """Another broker coordinates the group, or this one does no longer."""

    code = ErrorCode.NOT_COORDINATOR


class GroupNotEmpty(BrokerError):
    """The group has members: what is asked for must wait until they have left."""

    code = ErrorCode.NON_EMPTY_GROUP


class UnknownGroup(BrokerError):
    """There is no group of that name."""

    code = ErrorCode.GROUP_ID_NOT_FOUND


class UnsupportedVersion(BrokerError):
    """A version of a request that is not served."""

    code = ErrorCode.UNSUPPORTED_VERSION


class TransactionsNotSupported(BrokerError):
    """A producer asks for a transaction: there are none."""

    code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class InvalidRequiredAcks(BrokerError):
    """A producer asks for acks that are none of -1, 0 and 1."""

    code = ErrorCode.INVALID_REQUIRED_ACKS


ERRORS: Mapping[int, type[BrokerError]] = {
    ErrorCode.OFFSET_OUT_OF_RANGE: OffsetOutOfRange,
    ErrorCode.CORRUPT_MESSAGE: CorruptMessage,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopicOrPartition,
    ErrorCode.LEADER_NOT_AVAILABLE: LeaderNotAvailable,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: NotLeader,
    ErrorCode.REQUEST_TIMED_OUT: RequestTimedOut,
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.NOT_COORDINATOR: NotCoordinator,
    ErrorCode.INVALID_TOPIC_EXCEPTION: InvalidTopic,
    ErrorCode.INVALID_REQUIRED_ACKS: InvalidRequiredAcks,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: InconsistentGroupKind,
    ErrorCode.INVALID_GROUP_ID: InvalidGroup,
    ErrorCode.UNSUPPORTED_VERSION: UnsupportedVersion,
    ErrorCode.TOPIC_ALREADY_EXISTS: TopicAlreadyExists,
    ErrorCode.INVALID_PARTITIONS: InvalidPartitions,
    ErrorCode.INVALID_REPLICATION_FACTOR: InvalidReplicationFactor,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: InvalidReplicaAssignment,
    ErrorCode.INVALID_REQUEST: InvalidRequest,
    ErrorCode.POLICY_VIOLATION: PolicyViolation,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: OutOfOrderSequence,
    ErrorCode.INVALID_PRODUCER_EPOCH: InvalidProducerEpoch,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionsNotSupported,
    ErrorCode.STORAGE_ERROR: StorageError,
    ErrorCode.NON_EMPTY_GROUP: GroupNotEmpty,
    ErrorCode.GROUP_ID_NOT_FOUND: UnknownGroup,
    ErrorCode.INVALID_RECORD: InvalidRecord,
}
"""What a client of ours raises for an error code in an answer; BrokerError itself for any other."""
