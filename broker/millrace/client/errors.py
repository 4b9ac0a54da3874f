"""What a client makes of the error code in an answer: nothing, an exception, or another attempt."""

from __future__ import annotations

from millrace.errors import ERRORS, BrokerError, ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.wire.fetch import error_name

# The partition has moved or is about to appear: ask again who leads it.
LEADER_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
MOVED = LEADER_MOVED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # to a broker that reads or copies all the time
# A new leader does not know yet how far the old one had come; Apache Kafka's controller has moved (41).
_NOT_YET = LEADER_MOVED | {41, ErrorCode.OFFSET_NOT_AVAILABLE}


class TryAgain(MillraceError):
    """The answer may be another one in a moment; the text is what to say when nobody asks again."""


def raise_error(code: int, what: str, message: str | None = None) -> None:
    """Raise what an error code means: nothing for 0, TryAgain where the leader has moved."""
    if not code:
        return
    if code in _NOT_YET:
        raise TryAgain(f"{what}: {message or in_words(code)}")
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicOrPartition(f"{what}: there is no such topic or partition")
    raise ERRORS.get(code, BrokerError)(f"{what}: {message or error_name(code)}")


def in_words(code: int) -> str:
    """What an error code says of a partition, and where to look; while its leader changes, nowhere."""
    if code in _NOT_YET:
        return "no broker leads it at the moment"
    return f"its broker answers {error_name(code)}: see the broker's log"
