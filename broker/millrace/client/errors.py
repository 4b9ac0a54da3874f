"""A client's reaction to the error code in an answer: none, an exception, or a retry."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from millrace.errors import ERRORS, BrokerError, ErrorCode, MillraceError, UnknownTopicOrPartition
from millrace.wire.fetch import error_name

# The partition has moved or is about to appear: ask for its leader again.
LEADER_MOVED = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
MOVED = LEADER_MOVED | {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}  # for a broker that reads all the time
# A new leader does not know the high watermark yet; Apache Kafka's controller has moved (41).
_RETRIABLE = LEADER_MOVED | {41, ErrorCode.OFFSET_NOT_AVAILABLE}


class TryAgain(MillraceError):
    """A retry may succeed in a moment; the text is the error to report when retries end."""


def raise_error(code: int, what: str, message: str | None = None) -> None:
    """Raise the exception of an error code: none for 0. Raise TryAgain when the leader has moved."""
    if not code:
        return
    if code in _RETRIABLE:
        raise TryAgain(f"{what}: {message or in_words(code)}")
    if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopicOrPartition(f"{what}: there is no such topic or partition")
    raise ERRORS.get(code, BrokerError)(f"{what}: {message or error_name(code)}")


def no_topic(name: str, bootstrap: str, known: Iterable[str] = ()) -> UnknownTopicOrPartition:
    """Return the error of a topic that the cluster does not have, which says what to do.

    It suggests the most similar of the `known` topics.
    """
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {similar[0]!r}? See" if similar else "see"
    where = f"--bootstrap {bootstrap}"
    return UnknownTopicOrPartition(
        f"topic {name!r} does not exist on {bootstrap}: {hint} `millrace topics list {where}`, or create it"
        f" with `millrace topics create {name} {where}`"
    )


def in_words(code: int) -> str:
    """Describe a partition's error code in words, and name the log to read unless its leader is changing."""
    if code in _RETRIABLE:
        return "no broker leads it at the moment"
    return f"its broker answers {error_name(code)}: see the broker's log"
