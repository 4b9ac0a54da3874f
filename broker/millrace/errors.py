"""The errors that Millrace raises on purpose, and the protocol's codes of the errors that Kafka clients may
get.

`MillraceError` is for people: its text is one line with the remedy. The command line prints it. `BrokerError`
is for clients: its class has the protocol's code. Request handlers answer with that code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

from millrace.escaping import escaped


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
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
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
    SECURITY_DISABLED = 54
    STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    MISMATCHED_ENDPOINT_TYPE = 114
    UNACCEPTABLE_CREDENTIAL = 93
    FENCED_INSTANCE_ID = 82
    OFFSET_NOT_AVAILABLE = 78
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87


class MillraceError(Exception):
    """An error on which the user must act; the text is one line with the remedy."""

    exit_code: ClassVar[int] = 1
    """Exit code of a command that ends with the error."""


def is_bug(error: BaseException) -> bool:
    """Return True if no user, disk or network can cause the error: then log its traceback, too."""
    return not isinstance(error, (MillraceError, OSError))


class ConfigError(MillraceError):
    """A configuration file or option is wrong; the text names the file and the key."""

    exit_code = 2


class Interrupted(MillraceError):
    """A command was ended by Ctrl-C or SIGTERM; the text says what was and was not done."""

    exit_code = 130


ERRORS: dict[int, type[BrokerError]] = {}
"""Error code -> exception that Millrace's clients raise for it: the first class of this module with the code.
Any other code raises BrokerError."""


MAX_TEXT_CHARACTERS = 1_000
"""Longest text of a BrokerError; the rest is cut off."""


class BrokerError(MillraceError):
    """A request that the broker refuses; `code` is the error code of its answer."""

    code = ErrorCode.UNKNOWN_SERVER_ERROR

    def __init__(self, text: str = "") -> None:
        # The text may hold a client's names of any length, and one request may cause thousands of errors.
        super().__init__(escaped(text[:MAX_TEXT_CHARACTERS]))

    def __init_subclass__(cls, code: ErrorCode | None = None) -> None:
        if code is not None:
            cls.code = code
            if cls.__module__ == __name__:  # others may need more than a text
                ERRORS.setdefault(code, cls)


class OffsetOutOfRange(BrokerError, code=ErrorCode.OFFSET_OUT_OF_RANGE):
    """The offset is before the log's start or after its end."""


class CorruptMessage(BrokerError, code=ErrorCode.CORRUPT_MESSAGE):
    """A batch fails its CRC or its length, in a request or on disk."""


class InvalidRecord(BrokerError, code=ErrorCode.INVALID_RECORD):
    """An intact batch breaks a rule: its counts disagree, or it claims to be a control batch."""


class MessageTooLarge(BrokerError, code=ErrorCode.MESSAGE_TOO_LARGE):
    """A batch is larger than the topic's limit."""


class UnknownTopicOrPartition(BrokerError, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
    """The cluster has no such topic or partition."""


class UnknownTopicId(BrokerError, code=ErrorCode.UNKNOWN_TOPIC_ID):
    """No topic of this cluster has the id."""


class LeaderNotAvailable(BrokerError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """This broker will serve the partition soon: retry in a moment."""


class NotServedYet(LeaderNotAvailable):
    """A new leader does not know yet how much is committed: retry in a moment."""


class NotLeader(BrokerError, code=ErrorCode.NOT_LEADER_OR_FOLLOWER):
    """Another broker leads the partition."""


class FencedLeaderEpoch(BrokerError, code=ErrorCode.FENCED_LEADER_EPOCH):
    """The client knows an older leader of the partition than this broker: it must ask for metadata."""


class UnknownLeaderEpoch(BrokerError, code=ErrorCode.UNKNOWN_LEADER_EPOCH):
    """The client knows a newer leader of the partition than this broker does: retry in a moment."""


class BrokerNotRegistered(BrokerError, code=ErrorCode.BROKER_ID_NOT_REGISTERED):
    """No live broker has that id."""


class TopicAlreadyExists(BrokerError, code=ErrorCode.TOPIC_ALREADY_EXISTS):
    """A topic of that name exists already."""


class InvalidTopic(BrokerError, code=ErrorCode.INVALID_TOPIC_EXCEPTION):
    """The topic's name is not legal: 1 to 249 of letters, digits, dot, underscore and hyphen."""

    exit_code = 2


class InvalidRequest(BrokerError, code=ErrorCode.INVALID_REQUEST):
    """The request is well formed but asks for something impossible."""


class PolicyViolation(BrokerError, code=ErrorCode.POLICY_VIOLATION):
    """A rule of the cluster forbids the request, for example Produce to a mirrored topic."""


class InvalidPartitions(BrokerError, code=ErrorCode.INVALID_PARTITIONS):
    """A topic cannot have that many partitions."""


class InvalidReplicationFactor(BrokerError, code=ErrorCode.INVALID_REPLICATION_FACTOR):
    """A partition cannot have that many replicas."""


class InvalidReplicaAssignment(BrokerError, code=ErrorCode.INVALID_REPLICA_ASSIGNMENT):
    """The request names brokers for a partition that it cannot have there."""


class PreferredLeaderNotAvailable(BrokerError, code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
    """The first replica of a partition is not alive or not in sync."""


class ElectionNotNeeded(BrokerError, code=ErrorCode.ELECTION_NOT_NEEDED):
    """The wanted replica leads already, or the partition gets a leader without this election."""


class NoReassignmentInProgress(BrokerError, code=ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
    """The partition has no reassignment to cancel."""


class NoLiveBroker(BrokerError, code=ErrorCode.LEADER_NOT_AVAILABLE):
    """No broker is alive to lead a partition."""


class OutOfOrderSequence(BrokerError, code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
    """An idempotent producer's batch does not follow its last one."""


class InvalidProducerEpoch(BrokerError, code=ErrorCode.INVALID_PRODUCER_EPOCH):
    """An idempotent producer's batch carries an older epoch than its last one."""


class RequestTimedOut(BrokerError, code=ErrorCode.REQUEST_TIMED_OUT):
    """ZooKeeper or another service that the request needs did not answer in time: retry."""


class NotEnoughReplicas(BrokerError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """Fewer replicas are in sync than acks=all asks for; nothing was written."""


class TooManyProducers(BrokerError, code=ErrorCode.NOT_ENOUGH_REPLICAS):
    """A principal uses new producer ids faster than its old ids become inactive; nothing was written.

    librdkafka and aiokafka give up on THROTTLING_QUOTA_EXCEEDED at once. All clients retry this code.
    """


class NotEnoughReplicasAfterAppend(BrokerError, code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND):
    """Too few replicas are in sync for acks=all, after the batch was written; it may yet be committed."""


class StorageError(BrokerError, code=ErrorCode.STORAGE_ERROR):
    """The log cannot be written: no space left, or a flush failed; reading continues."""


class InvalidGroup(BrokerError, code=ErrorCode.INVALID_GROUP_ID):
    """The group's name is empty."""


class InconsistentGroupKind(BrokerError, code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL):
    """The group and the request differ in protocol: Millrace's own consumers, or Kafka's classic groups."""


class NotCoordinator(BrokerError, code=ErrorCode.NOT_COORDINATOR):
    """This broker does not coordinate the group, or no longer does."""


class TopicChanged(BrokerError, code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
    """A topic was deleted or recreated, and this broker has just learned of it: retry."""


class GroupNotEmpty(BrokerError, code=ErrorCode.NON_EMPTY_GROUP):
    """The group has members: the request must wait until they have left."""


class UnknownGroup(BrokerError, code=ErrorCode.GROUP_ID_NOT_FOUND):
    """There is no group of that name."""


class UnsupportedVersion(BrokerError, code=ErrorCode.UNSUPPORTED_VERSION):
    """The broker does not serve this version of the request."""


class TransactionsNotSupported(BrokerError, code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
    """A producer asks for a transaction; Millrace has none."""


class TopicAuthorizationFailed(BrokerError, code=ErrorCode.TOPIC_AUTHORIZATION_FAILED):
    """The client has no right to do this with the topic."""


class GroupAuthorizationFailed(BrokerError, code=ErrorCode.GROUP_AUTHORIZATION_FAILED):
    """The client has no right to do this with the consumer group."""


class ClusterAuthorizationFailed(BrokerError, code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
    """The client has no right to do this in the cluster."""


class SecurityDisabled(BrokerError, code=ErrorCode.SECURITY_DISABLED):
    """A request reads or changes rights, and the broker has no authorizer."""


class UnsupportedSaslMechanism(BrokerError, code=ErrorCode.UNSUPPORTED_SASL_MECHANISM):
    """The listener does not offer this login mechanism."""


class ResourceNotFound(BrokerError, code=ErrorCode.RESOURCE_NOT_FOUND):
    """The user does not exist, or has no such credential."""


class DuplicateResource(BrokerError, code=ErrorCode.DUPLICATE_RESOURCE):
    """A request names a user more than once."""


class UnacceptableCredential(BrokerError, code=ErrorCode.UNACCEPTABLE_CREDENTIAL):
    """A user may not have this name, salt or number of iterations."""


class InvalidRequiredAcks(BrokerError, code=ErrorCode.INVALID_REQUIRED_ACKS):
    """A producer asks for acks that are none of -1, 0 and 1."""
