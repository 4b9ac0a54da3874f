"""MirrorAppend v0 and TranslateOffsets v0, which clients are not told of: mirrored partitions from outside.

MirrorAppend fills, describes and resets them. It answers an append or a reset once it is on the disk, so
that a batch job that has succeeded has really moved its data. A target partition that is not there yet is
allocated in a thread, because that is ZooKeeper's business; everything else happens on the loop.

TranslateOffsets answers what offsets of a mirror led here are in its origin, or the other way round, from
what is visible. It reads files, so it runs in a thread. An ordinary partition is refused, and so is a client
that may not administer the cluster.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from concurrent.futures import Future

from millrace.broker.broker import Broker, Partition
from millrace.broker.partition import Outcomes
from millrace.errors import BrokerError, CorruptMessage, ErrorCode, InvalidRequest, PolicyViolation
from millrace.handlers.table import Answer, Api, answer_from_thread, send
from millrace.mirror import translate_offsets
from millrace.mirror.offset_search import Translated, translate
from millrace.mirror.runs import beginning
from millrace.mirror.states import MirrorStates
from millrace.records import BatchHeader, split_batches
from millrace.records.compression import Buffer
from millrace.records.mirror_position import PositionMismatch
from millrace.server.request import Request
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import (
    MirrorAppend,
    MirrorAppended,
    MirrorMode,
    decode_request,
    encode_response,
)

log = logging.getLogger(__name__)
_NOT_TOLD, _V0 = range(0), range(1)
_MAX_MESSAGE = 1000
"""Characters of an error's text in an answer."""


def mirror_append(states: MirrorStates) -> Api:
    """The API; `states` tells what this broker's own mirror is doing."""

    def serve(broker: Broker, request: Request) -> None:
        _Append(broker, request, states).start()

    return Api(key=ApiKey.MIRROR_APPEND, versions=_NOT_TOLD, private_versions=_V0, serve=serve)


class _Append:
    """One request under way; it is answered once. Its partition sees it as a produce request."""

    acks_all = True

    def __init__(self, broker: Broker, request: Request, states: MirrorStates) -> None:
        self._broker, self._request, self._states = broker, request, states
        self._known = MirrorAppended()

    def start(self) -> None:
        try:
            self._topic, asked = decode_request(self._request.body)
            if asked.mode is MirrorMode.RESET:
                self._broker.check_administrator(self._request.client.address)
            topic = self._broker.cluster.topics.get(self._topic)
            target = topic.target_of(asked.origin) if topic is not None else None
            if target is not None:
                self._serve(asked, target)
                return
            if asked.mode is MirrorMode.APPEND:
                raise InvalidRequest(f"{asked.origin} has no target partition here yet: describe it first")
        except Exception as error:
            self._fail(error)
            return
        self._broker.in_zookeeper_thread(self._allocating(asked), self._allocated(asked))

    def _allocating(self, asked: MirrorAppend) -> Callable[[], int]:
        # A reset is the operator's word that the origin was created anew on purpose.
        recreated = asked.mode is MirrorMode.RESET
        allocate, origin = self._broker.cluster.allocate_mirrors, asked.origin
        return lambda: allocate(self._topic, [origin], recreated=recreated)[origin]

    def _allocated(self, asked: MirrorAppend) -> Callable[[Future[int]], None]:
        def then(future: Future[int]) -> None:
            try:
                self._broker.refresh()  # the new partition may be ours to open
                self._serve(asked, future.result())
            except Exception as error:
                self._fail(error)

        return then

    def _serve(self, asked: MirrorAppend, target: int) -> None:
        topic = self._broker.cluster.topics.get(self._topic)
        state = topic.partitions.get(target) if topic is not None else None
        leader = -1 if state is None else state.leader
        self._known = MirrorAppended(
            partition=target,
            leader=leader,
            state=str(self._states.get(self._topic, target) or ""),
            latency_ms=self._states.latency_ms(self._topic, target),
        )
        try:
            self._partition = self._broker.partition(self._topic, target)
            end = self._append(asked, self._partition)
            self._partition.answer_when_flushed(end, self)
        except PositionMismatch as error:
            self.appended(0, [error])
        except Exception as error:
            self._fail(error)

    def _append(self, asked: MirrorAppend, partition: Partition) -> int:
        """The log's end behind the request, or 0 when nothing was to be written."""
        reset = asked.mode is MirrorMode.RESET
        if asked.mode is MirrorMode.DESCRIBE or (reset and asked.cursor is None):
            return 0
        if asked.cursor is None:
            raise InvalidRequest("a mirrored append without a position")
        recorded = partition.log.mirror_position
        start = asked.cursor.next_offset if reset else asked.start
        before = recorded or beginning(asked.origin, start)
        batches = _whole_batches(asked.records)
        position = dataclasses.replace(
            before,
            cursor=asked.cursor,
            batches=before.batches + len(batches),
            records=before.records + sum(header.records_count for header, _ in batches),
            dropped=before.dropped + asked.dropped,
            numbered=asked.numbered,
        )
        data = [batch for _, batch in batches]
        end = partition.log.append_mirrored(asked.origin, asked.expected, data, position, reset=reset)
        if reset:
            log.warning("%s is reset: it goes on at %s of its origin", partition.name, asked.cursor)
        return end

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Answer with what is recorded now, and with what was wrong."""
        recorded = self._partition.log
        self._known = dataclasses.replace(
            self._known, position=recorded.mirror_position, high_watermark=recorded.high_watermark
        )
        if outcomes and isinstance(outcomes[0], BrokerError):
            self._fail(outcomes[0])
        else:
            send(self._request, Answer(encode_response(self._known)))

    def abort(self, reason: str) -> None:
        """Close the connection: what became of the append cannot be said."""
        self._request.client.abort(reason)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, BrokerError):
            log.error("MirrorAppend failed", exc_info=error)
        code = error.code if isinstance(error, BrokerError) else ErrorCode.UNKNOWN_SERVER_ERROR
        answer = dataclasses.replace(self._known, error=code, message=str(error)[:_MAX_MESSAGE])
        send(self._request, Answer(encode_response(answer), (code,)))


def _whole_batches(records: Buffer) -> list[tuple[BatchHeader, memoryview]]:
    batches = list(split_batches(records))
    if sum(len(batch) for _, batch in batches) != len(records):
        raise CorruptMessage("the records of a mirrored append end inside a batch")
    return batches


def _serve_translation(broker: Broker, request: Request) -> None:
    body, client = bytes(request.body), request.client.address

    def work() -> Answer:
        try:
            broker.check_administrator(client)
            return Answer(translate_offsets.encode_response(_translate(broker, body)))
        except BrokerError as error:
            return _refused(error.code, str(error))
        except OSError as error:
            log.error("cannot translate offsets: %s", error)
            return _refused(ErrorCode.STORAGE_ERROR, f"its leader cannot read it: {error.strerror}")

    answer_from_thread(broker, Broker.in_look_up_thread, request, work)


def _translate(broker: Broker, body: bytes) -> list[Translated]:
    topic, number, offsets, to_origin = translate_offsets.decode_request(body)
    partition = broker.partition(topic, number)
    if not partition.mirrored:
        raise PolicyViolation(f"{partition.name} is no mirror: its offsets are its own")
    return [translate(lambda: partition.log.snapshot, each, to_origin=to_origin) for each in offsets]


def _refused(code: ErrorCode, message: str) -> Answer:
    return Answer(translate_offsets.encode_response((), code, message[:_MAX_MESSAGE]), (code,))


TRANSLATE_OFFSETS = Api(
    key=ApiKey.TRANSLATE_OFFSETS, versions=_NOT_TOLD, private_versions=_V0, serve=_serve_translation
)
