"""Produce, v3 to v12 (v0 to v2 are listed, because old clients look for them, and refused); InitProducerId.

Nearly every request brings one batch for one partition, and often several of them for the same partition
follow each other: such a run is served at once (`serve_run`), and any other request by itself (`handle`).
acks=0 gets no answer; after an error its connection is closed. acks=1 is answered after the append, and
acks=all after the flush. InitProducerId, v0 to v5, gives an idempotent producer a new id each time. Left out:
transactions.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from operator import itemgetter

from millrace import errors
from millrace.errors import BrokerError, ErrorCode
from millrace.wire import produce
from millrace.wire.framing import RequestFramer
from millrace.wire.messages import ApiKey, InitProducerIdRequest, InitProducerIdResponse
from millrace_broker.handlers.table import Api, Call, Services, close, serves
from millrace_broker.partitions.partition import Outcomes
from millrace_broker.security import rights
from millrace_broker.security.quotas import Kind
from millrace_broker.security.rights import ANY_TOPIC, CLUSTER, Need, Operation, Refused, ResourceType
from millrace_broker.server.request import LANE_BYTES, NOTHING, Client, Request, response_frame, throttle_ms

_PRODUCE = int(ApiKey.PRODUCE)


class Answer:
    """Answers one request, or each request of a run, once the outcome of every batch is known."""

    __slots__ = (
        *("_acks", "_ids", "_missing", "_outcomes", "_partitions", "_request", "_topics"),
        *("acks_all", "principal", "throttle_ms", "timeout_ms"),
    )

    def __init__(
        self,
        request: Request,
        acks: int,
        timeout_ms: int,
        correlation_ids: Sequence[int],
        topics: Sequence[tuple[str, int]],
        partitions: Sequence[int],
    ) -> None:
        """Answer `correlation_ids`; every request is for the same `partitions`.

        `topics` states the number of partitions of each topic.
        """
        # The answer must not keep the records in memory: it may wait for long after they were written.
        self._request, self._acks, self._ids = request, acks, correlation_ids
        self._topics, self._partitions = topics, partitions
        self.acks_all, self.timeout_ms = acks == -1, timeout_ms
        self.principal = request.client.access.principal
        self.throttle_ms = 0
        """Time for which the client must wait for its quota; set before anything is staged."""
        self._missing = len(partitions) * len(correlation_ids)
        self._outcomes: list[tuple[int, Outcomes, int]] = []

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Note the outcomes of the batches from number `index` on; the last outcome sends the answer."""
        self._outcomes.append((index, outcomes, log_start_offset))
        self._missing -= len(outcomes)
        if self._missing == 0:
            self.send()

    def abort(self, reason: str) -> None:
        """Close the connection: the outcome of the batches is unknown."""
        close(self._request, reason)

    def send(self) -> None:
        """Answer with the outcome of every batch; acks=0 gets no answer."""
        request, frames = self._request, None
        if len(self._partitions) == len(self._topics) == 1 and not self.throttle_ms:
            # Nearly every request: one partition, and base offsets are all that the answer holds.
            ((_, outcomes, start),), topic = self._outcomes, self._topics[0][0]
            frames = produce.encode_successes(
                request.api_version, topic, self._partitions[0], self._ids, outcomes, start
            )
        if frames is None:
            frames = self._results()
        if self._acks == 0:
            request.answer_nothing()
        else:
            request.answer_frames(frames)

    def _results(self) -> bytes:
        """Return the answers, each with the outcome of its own batch. Count the errors."""
        version, count, wait_ms = self._request.api_version, len(self._partitions), self.throttle_ms
        results: list[produce.ProducedPartition] = []
        for index, outcomes, start in sorted(self._outcomes, key=itemgetter(0)):
            for number, outcome in enumerate(outcomes, index):
                results.append(self._result(self._partitions[number % count], outcome, start))
        bodies = (
            produce.encode_response(
                version, self._topics, results[number * count : (number + 1) * count], wait_ms
            )
            for number in range(len(self._ids))
        )
        return b"".join(map(response_frame, self._ids, bodies))

    def _result(self, partition: int, outcome: int | BrokerError, start: int) -> produce.ProducedPartition:
        if isinstance(outcome, int):
            return produce.ProducedPartition(partition, 0, outcome, start)
        self._request.failed(outcome.code)
        if self._acks == 0:
            self.abort(f"a batch sent with acks=0 was refused: {outcome}")
        return produce.ProducedPartition(partition, outcome.code, message=str(outcome))


def serve_run(services: Services, client: Client, framer: RequestFramer) -> Request | None:
    """Serve the next run in the received bytes as one request. Return None when there is none.

    A request that must be refused is in no run: `handle` answers it with the reason.
    """
    data, position = framer.rest
    target = produce.target_at(data, position)
    if target is None:
        return None
    broker, access, topic, number = services.broker, client.access, target.topic, target.partition
    partition = broker.open_to_producers(topic, number)
    if partition is None:
        return None
    # Checked for every run: a revoked right ends with the next run.
    if not (access.everything or access.allows(write_need(topic))):
        return None
    largest = partition.log.config.max_message_bytes
    ids, batches, end = produce.run_at(data, position, target, largest, framer.max_frame_bytes)
    if not batches:
        return None
    framer.skip_to(end)
    is_small = end == len(data) and end - position < LANE_BYTES
    shared = target if is_small and target.acks and access.meter is None and client.may_share else None
    # A client that goes from partition to partition is in no lane.
    client.lane = shared.kind if shared is not None and client.last_target is shared else None
    client.last_target = shared
    request = Request(client, _PRODUCE, target.version, ids[0], NOTHING, count=len(ids))
    request.is_only = shared is not None and target.acks == 1 and position == 0 and client.is_free
    answer = Answer(request, target.acks, target.timeout_ms, ids, ((topic, 1),), (number,))
    if access.meter is not None:
        answer.throttle_ms = throttle_ms(client, Kind.WRITTEN, sum(map(len, batches)))
    broker.stage(partition, batches, answer)
    return request


def write_need(topic: str) -> Need:
    """The right to write to a topic."""
    return Need(Operation.WRITE, rights.topic(topic))


def handle(services: Services, received: Request, request: produce.ProduceRequest, refused: Refused) -> None:
    """Stage every batch of the request. Each batch gets its own answer."""
    refusal = _refusal(request, received)
    partitions = [number for _, number, _ in request.batches]
    answer = Answer(
        received, request.acks, request.timeout_ms, [received.correlation_id], request.topics, partitions
    )
    if received.client.access.meter is not None:
        size = sum(len(records) for _, _, records in request.batches)
        answer.throttle_ms = throttle_ms(received.client, Kind.WRITTEN, size)
    for index, (topic, number, records) in enumerate(request.batches):
        try:
            if refusal is not None:
                raise refusal
            if refused and (resource := rights.topic(topic)) in refused:
                raise rights.refusal(resource)
            services.broker.produce(topic, number, records, answer, index)
        except BrokerError as error:
            answer.appended(index, [error])
    if not request.batches:
        answer.send()


def _refusal(request: produce.ProduceRequest, received: Request) -> BrokerError | None:
    """Return the error for which the whole request cannot be served; None if it can."""
    items, limit = len(request.topics) + len(request.batches), received.item_limit
    if items > limit:
        return errors.InvalidRequest(f"{items} topics and partitions in a request; {limit} are allowed")
    if received.api_version < 3:
        return errors.UnsupportedVersion("produce with version 3 or later")
    if request.transactional_id is not None:
        return errors.TransactionsNotSupported("transactions are not supported")
    if not -1 <= request.acks <= 1:
        return errors.InvalidRequiredAcks(f"acks={request.acks} is none of -1, 0 and 1")
    return None


PRODUCE = Api(
    key=ApiKey.PRODUCE,
    versions=range(13),
    decode=lambda request: produce.decode_request(request.api_version, request.body, request.item_limit),
    needs=lambda asked: [write_need(topic) for topic, _ in asked.topics],
    by_item=(ResourceType.TOPIC,),
    handle=handle,
    refusal=lambda *_: None,
    serve_run=serve_run,
)


@serves(
    range(6),
    InitProducerIdRequest,
    InitProducerIdResponse,
    needs=lambda asked: [Need(Operation.IDEMPOTENT_WRITE, CLUSTER, instead=Need(Operation.WRITE, ANY_TOPIC))],
)
def init_producer_id(call: Call[InitProducerIdRequest]) -> InitProducerIdResponse:
    if call.request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    # Ids are random: if brokers counted, they would give two producers the same id, and drop real messages as
    # duplicates.
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=secrets.randbits(63), producer_epoch=0
    )
