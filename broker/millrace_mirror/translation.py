"""Translation of consumers' offsets between a datacenter's cluster and the aggregate cluster.

Only the brokers that lead the copies can translate; this module asks them. It finds the offsets of a group
that belong to an origin, and checks that all of them can be moved. It reads and commits through the brokers,
like any client.

TranslateOffsets v0 is Millrace's own API, key 10001, never advertised. It is sent to the leader of the
mirrored partition and answered in the request's order. A broker without this API answers only an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import TryAgain, raise_error
from millrace.client.group_client import GroupClient
from millrace.config import OriginConfig
from millrace.errors import ErrorCode, InvalidRequest, MillraceError, UnknownGroup
from millrace.wire.codec import decode, encode
from millrace.wire.fields import ApiMessage, array, boolean, i8, i16, i32, i64, string
from millrace.wire.messages import ApiKey
from millrace_broker.coordination.cluster import Cluster
from millrace_mirror.offset_search import Outcome, Translated

MAX_OFFSETS = 1_000
"""Most offsets in one request: each may read a MiB of headers."""
TIMEOUT_SECONDS = 10.0
EXPLAINED = {
    Outcome.TRANSLATED: "translated",
    Outcome.NOT_COPIED: "not copied yet: wait for the mirror",
    Outcome.NOT_RETAINED: "not retained: the copy of it has expired",
    Outcome.BEFORE_START: "not copied: the mirror began later",
    Outcome.BEFORE_RESET: "not known: copied before a reset of the mirror",
}
_API, _V0 = ApiKey.TRANSLATE_OFFSETS, 0


class TranslateOffsetsRequest(ApiMessage, request_of=ApiKey.TRANSLATE_OFFSETS):
    """Request to translate `offsets` of a mirrored partition from its origin, or to it."""

    to_origin: bool = boolean()
    topic: str = string()
    partition: int = i32()
    offsets: tuple[int, ...] = array(i64())


class TranslateOffsetsResult(ApiMessage):
    """The result for one offset: `outcome` is an `Outcome`, `offset` is -1 unless the offset
    was translated.
    """

    outcome: int = i8()
    offset: int = i64()


class TranslateOffsetsResponse(ApiMessage, response_of=ApiKey.TRANSLATE_OFFSETS):
    """A result for each offset, or an error and no results."""

    error_code: int = i16()
    message: str = string()
    results: tuple[TranslateOffsetsResult, ...] = array(TranslateOffsetsResult)


def translate(
    client: ClusterClient, topic: str, partition: int, offset: int, *, to_origin: bool
) -> Translated:
    """Translate an offset of a mirrored partition to its origin, or back."""
    request = TranslateOffsetsRequest(
        to_origin=to_origin, topic=topic, partition=partition, offsets=(offset,)
    )
    body = encode(request, _API, _V0)

    def attempt(_: float) -> Translated:
        leader = client.topic(topic).partitions.get(partition, -1)
        if leader < 0:
            raise TryAgain(f"{topic}-{partition} has no leader on {client.bootstrap}")
        raw = client.ask(leader, _API, _V0, body)
        if int.from_bytes(raw[:2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            raise MillraceError(
                f"{client.bootstrap} is no Millrace cluster: only Millrace translates offsets"
            )
        response = decode(TranslateOffsetsResponse, _API, _V0, raw)
        raise_error(response.error_code, f"{topic}-{partition}", response.message)
        try:
            (result,) = response.results
            return Translated(Outcome(result.outcome), result.offset)
        except ValueError:
            raise InvalidRequest("a TranslateOffsets response is malformed") from None

    return client.retry(attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """One offset on both sides; `answer` is the translated offset."""

    topic: str
    origin_partition: int
    partition: int
    """The copy's partition."""
    offset: int
    answer: Translated


class Translator:
    """A translator between one origin and this cluster; every method may raise MillraceError."""

    def __init__(self, cluster: Cluster, name: str, config: OriginConfig, *, to_origin: bool) -> None:
        self._cluster, self._name, self._to_origin = cluster, name, to_origin
        self._copy = ClusterClient(cluster.bootstrap, timeout_s=TIMEOUT_SECONDS)
        self._origin = ClusterClient(config.bootstrap, timeout_s=TIMEOUT_SECONDS, security=config.security)
        sides = (self._copy, self._origin) if to_origin else (self._origin, self._copy)
        self._source, self._destination = sides
        self._origin_ids: dict[str, UUID | None] = {}

    def close(self) -> None:
        self._copy.close()
        self._origin.close()

    def one(self, topic: str, partition: int, offset: int) -> Translation:
        """Translate one offset of the origin's partition, or back: one offset of the copy."""
        pairs = self._pairs(topic, partition)
        if not pairs:
            raise MillraceError(
                f"{topic}-{partition} is not a copy of any partition that {self._name} has now"
                if self._to_origin
                else f"{self._name} {topic}-{partition} is not mirrored here"
            )
        return self._translate(topic, *pairs[0], offset)

    def group(self, group: str) -> list[Translation]:
        """Translate every offset that a group has committed, in partitions that exist on both sides."""
        committed = GroupClient(self._source).offsets(group)
        if not committed:
            raise MillraceError(f"group {group!r} has committed nothing on {self._source.bootstrap}")
        return [
            self._translate(topic, origin, target, offset)
            for (topic, number), offset in sorted(committed.items())
            for origin, target in self._pairs(topic, number)
        ]

    def apply(self, group: str, translations: Sequence[Translation]) -> None:
        """Commit the translated offsets on the other side, all or none; the group must have no members."""
        for translation in translations:
            outcome, offset = translation.answer.outcome, translation.offset
            if outcome is not Outcome.TRANSLATED:
                reason = f"offset {offset} is {EXPLAINED[outcome]}"
                raise MillraceError(f"{translation.topic}: {reason}; nothing was committed")
        groups = GroupClient(self._destination)
        try:
            description = groups.describe(group)
            if description.active:
                raise MillraceError(
                    f"group {group!r} has {len(description.members)} members on "
                    f"{self._destination.bootstrap}: stop these consumers first"
                )
        except UnknownGroup:
            pass  # committing creates the group
        offsets = {
            (t.topic, t.origin_partition if self._to_origin else t.partition): t.answer.offset
            for t in translations
        }
        groups.commit(group, offsets)

    def _translate(self, topic: str, origin: int, target: int, offset: int) -> Translation:
        answer = translate(self._copy, topic, target, offset, to_origin=self._to_origin)
        if answer.outcome is Outcome.NOT_COPIED:
            answer = self._of_empty(topic, origin, target, offset) or answer
        return Translation(
            topic=topic, origin_partition=origin, partition=target, offset=offset, answer=answer
        )

    def _of_empty(self, topic: str, origin: int, target: int, offset: int) -> Translated | None:
        """Return the translated offset if the partition is empty on both sides: nothing has to be copied.

        Consumers also commit offsets in partitions without messages.
        """
        first, end = self._origin.bounds(topic, origin)
        if first < end or self._copy.bounds(topic, target)[1] > 0 or offset > (0 if self._to_origin else end):
            return None
        return Translated(Outcome.TRANSLATED, end if self._to_origin else 0)

    def _pairs(self, topic: str, number: int) -> list[tuple[int, int]]:
        """Return (origin partition, copy) for a partition that the group reads; nothing if it is not of this
        origin.

        A partition of a recreated origin topic has several copies: only the last may be of the current topic.
        Raise MillraceError if it is not.
        """
        state = self._cluster.topics.get(topic)
        targets = state.targets() if state is not None else {}
        copies = sorted(
            (target, origin)
            for origin, target in targets.items()
            if (origin.cluster, origin.topic) == (self._name, topic)
        )
        newest = {origin.partition: (target, origin) for target, origin in copies}
        pairs = [
            (partition, target, origin.topic_id)
            for partition, (target, origin) in newest.items()
            if number == (target if self._to_origin else partition)
        ]
        for partition, _, topic_id in pairs:
            if self._origin_id(topic) not in (None, topic_id):
                raise MillraceError(
                    f"{self._name} {topic}-{partition} was deleted and recreated, and the copy here is of the"
                    " former topic: to copy the new one, run millrace mirror reset"
                )
        return [(partition, target) for partition, target, _ in pairs]

    def _origin_id(self, topic: str) -> UUID | None:
        """Return the id of the origin's topic as it is now, or None if the topic was deleted."""
        if topic not in self._origin_ids:
            there = self._origin.topics([topic]).get(topic)
            self._origin_ids[topic] = None if there is None else there.topic_id
        return self._origin_ids[topic]
