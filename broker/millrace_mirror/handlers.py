"""MirrorAppend v0 to v1 and TranslateOffsets v0, which are not advertised to clients.

MirrorAppend fills, describes and resets mirrored partitions. It answers an append or a reset once the data is
on the disk, so a successful batch job has really moved its data. A missing target partition is allocated in a
thread, because ZooKeeper is asked for it; everything else happens on the event loop.

TranslateOffsets translates offsets of a mirror led here to its origin, or back, from visible records. It
reads files, so it runs in a thread. A partition that is no mirror is refused, and so is a client that may not
administer the cluster.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from millrace import errors
from millrace.client.runs import beginning
from millrace.errors import MAX_TEXT_CHARACTERS, BrokerError, ErrorCode, InvalidRequest
from millrace.records import BatchHeader, split_batches
from millrace.records.compression import Buffer
from millrace.records.mirror_position import PositionMismatch
from millrace.wire import mirror_append
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import MirrorAppend, MirrorAppended, MirrorMode
from millrace_broker.handlers.table import Api, Call, Services, close, outcome_of, send, serves
from millrace_broker.mailbox import outcome
from millrace_broker.partitions.broker import Broker
from millrace_broker.partitions.partition import Outcomes, Partition
from millrace_broker.security import rights
from millrace_broker.security.rights import Need, Operation, Refused
from millrace_broker.server.request import Request
from millrace_mirror import translation
from millrace_mirror.offset_search import translate
from millrace_mirror.states import MirrorStates

logger = logging.getLogger("millrace.handlers.mirror")
_V0 = range(1)
APPEND_TIMEOUT_MS = 30_000
"""Time for which an append waits for the other replicas of its target."""


class _PendingAppend:
    """One request in progress, answered once. Its partition treats it like a produce request."""

    acks_all = True
    timeout_ms = APPEND_TIMEOUT_MS

    def __init__(self, broker: Broker, states: MirrorStates, request: Request) -> None:
        self._broker, self._states, self._request = broker, states, request
        self.principal = request.client.access.principal
        self._answer = MirrorAppended()

    def start(self, topic: str, append: MirrorAppend) -> None:
        try:
            self._find_target(topic, append)
        except Exception as error:
            self._fail(error)

    def _find_target(self, name: str, append: MirrorAppend) -> None:
        self._topic = name
        if append.mode is MirrorMode.RESET:
            self._broker.check_administrator(self._request.client.address)
        topic = self._broker.cluster.topics.get(name)
        target = topic.target_of(append.origin) if topic is not None else None
        if target is not None:
            self._serve(append, target)
        elif append.mode is MirrorMode.APPEND:
            raise InvalidRequest(f"{append.origin} has no target partition here yet: describe it first")
        elif self._request.client.access.allows(Need(Operation.MIRROR_WRITE, rights.topic(name))):
            self._broker.mailbox.begin(self._allocate_target(append))
        else:  # a client without the right to write must not create partitions
            raise rights.refusal(rights.topic(name))

    async def _allocate_target(self, append: MirrorAppend) -> None:
        cluster, origin = self._broker.cluster, append.origin
        # With a reset, the operator confirms that the origin was recreated on purpose.
        recreated = append.mode is MirrorMode.RESET

        def allocate() -> int:
            return cluster.allocate_mirrors(self._topic, [origin], recreated=recreated)[origin]

        try:
            target = await outcome(self._broker.in_zookeeper_thread(allocate))
            self._broker.apply(self._topic)  # this broker may have to open the new partition
            self._serve(append, target)
        except Exception as error:
            self._fail(error)

    def _serve(self, append: MirrorAppend, target: int) -> None:
        topic = self._broker.cluster.topics.get(self._topic)
        state = topic.partitions.get(target) if topic is not None else None
        self._answer = MirrorAppended(
            partition=target,
            leader=-1 if state is None else state.leader,
            state=str(self._states.get(self._topic, target) or ""),
            latency_ms=self._states.latency_ms(self._topic, target),
        )
        try:
            self._partition = self._broker.partition(self._topic, target)
            end = self._append(append, self._partition)
            self._partition.note_append()
            self._partition.answer_when_flushed(end, self)
        except PositionMismatch as error:
            self.appended(0, [error])
        except Exception as error:
            self._fail(error)

    def _append(self, append: MirrorAppend, partition: Partition) -> int:
        """Append; return the log's end afterwards, or 0 when the request writes nothing."""
        reset = append.mode is MirrorMode.RESET
        if append.mode is MirrorMode.DESCRIBE or (reset and append.cursor is None):
            return 0
        if append.cursor is None:
            raise InvalidRequest("a mirrored append without a position")
        recorded = partition.log.mirror_position
        start = append.cursor.next_offset if reset else append.start
        before = recorded or beginning(append.origin, start)
        batches = _whole_batches(append.records)
        position = dataclasses.replace(
            before,
            cursor=append.cursor,
            batches=before.batches + len(batches),
            records=before.records + sum(header.records_count for header, _ in batches),
            dropped=before.dropped + append.dropped,
            numbered=append.numbered,
        )
        data = [batch for _, batch in batches]
        end = partition.log.append_mirrored(append.origin, append.expected, data, position, reset=reset)
        if reset:
            logger.warning("%s was reset: it continues at %s of its origin", partition.name, append.cursor)
        return end

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Answer with the position recorded now, and with the error, if any."""
        recorded = self._partition.log.appended
        self._answer = dataclasses.replace(
            self._answer, position=recorded.mirror, high_watermark=recorded.high_watermark
        )
        if outcomes and isinstance(outcomes[0], BrokerError):
            self._fail(outcomes[0])
        else:
            self._send(self._answer)

    def abort(self, reason: str) -> None:
        close(self._request, reason)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, BrokerError):
            logger.error("MirrorAppend failed", exc_info=error)
        code = error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        answer = dataclasses.replace(self._answer, error=code, message=str(error)[:MAX_TEXT_CHARACTERS])
        self._send(answer, code)

    def _send(self, answer: MirrorAppended, *codes: ErrorCode) -> None:
        send(self._request, mirror_append.encode_response(self._request.api_version, answer), codes)


def _whole_batches(records: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    batches = list(split_batches(records))
    if sum(len(batch) for _, batch in batches) != len(records):
        raise errors.CorruptMessage("the records of a mirrored append end inside a batch")
    for header, _ in batches:
        if header.is_control or not 0 < header.records_count <= header.last_offset_delta + 1:
            raise errors.InvalidRecord(f"the origin's batch {header.base_offset} is not a data batch")
    return batches


def _needs(asked: tuple[str, MirrorAppend]) -> list[Need]:
    """Return the rights that a request needs.

    MIRROR_WRITE, which Write does not include, protects positions.
    """
    topic, mode = rights.topic(asked[0]), asked[1].mode
    if mode is MirrorMode.DESCRIBE:  # audit readers only read positions
        return [Need(Operation.DESCRIBE, topic)]
    also = [Need(Operation.ALTER, topic)] if mode is MirrorMode.RESET else []
    return [Need(Operation.MIRROR_WRITE, topic), *also]


def _refusal(version: int, code: ErrorCode, reason: str, _asked: object) -> bytes:
    return mirror_append.encode_response(version, MirrorAppended(error=code, message=reason))


@serves(
    _V0,
    translation.TranslateOffsetsRequest,
    translation.TranslateOffsetsResponse,
    needs=lambda asked: [Need(Operation.DESCRIBE, rights.topic(asked.topic))],
    thread=Broker.in_look_up_thread,
    private=True,
)
def translate_offsets(
    call: Call[translation.TranslateOffsetsRequest],
) -> translation.TranslateOffsetsResponse:
    code, reason, results = outcome_of(lambda: _translate(call), "TranslateOffsets")
    return translation.TranslateOffsetsResponse(error_code=code, message=reason or "", results=results or ())


def _translate(
    call: Call[translation.TranslateOffsetsRequest],
) -> tuple[translation.TranslateOffsetsResult, ...]:
    request = call.request
    call.broker.check_administrator(call.received.client.address)
    if len(request.offsets) > translation.MAX_OFFSETS:
        raise InvalidRequest(
            f"a request for {len(request.offsets)} offsets; {translation.MAX_OFFSETS} are allowed"
        )
    partition = call.broker.partition(request.topic, request.partition)
    if not partition.mirrored:
        raise errors.PolicyViolation(f"{partition.name} is no mirror: its offsets are its own")
    try:
        translated = [
            translate(lambda: partition.log.snapshot, offset, to_origin=request.to_origin)
            for offset in request.offsets
        ]
    except OSError as error:
        logger.error("cannot translate offsets: %s", error)
        raise errors.StorageError(f"its leader cannot read it: {error.strerror}") from error
    return tuple(
        translation.TranslateOffsetsResult(outcome=outcome, offset=offset) for outcome, offset in translated
    )


def apis(states: MirrorStates) -> list[Api[Any]]:
    """Return the APIs that the mirror adds to a broker; `states` are those of the broker's own mirror."""

    def handle(services: Services, request: Request, asked: tuple[str, MirrorAppend], _: Refused) -> None:
        _PendingAppend(services.broker, states, request).start(*asked)

    mirror_append_api = Api(
        key=ApiKey.MIRROR_APPEND,
        private_versions=range(2),
        decode=lambda request: mirror_append.decode_request(request.api_version, request.body),
        needs=_needs,
        handle=handle,
        refusal=_refusal,
    )
    return [mirror_append_api, translate_offsets]
