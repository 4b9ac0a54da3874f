"""Produce, v3 to v8 (v0 to v2 are advertised, because old clients look for them, and refused).

acks=0 gets no answer, and a closed connection when something went wrong; acks=1 is answered after the
append, acks=all after the flush. Left out: transactions.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.broker.partition import Outcomes
from millrace.errors import BrokerError, ErrorCode
from millrace.handlers.table import Api
from millrace.server.request import NOTHING, Client, Request, response_frame
from millrace.wire.framing import RequestFramer
from millrace.wire.messages import ApiKey
from millrace.wire.produce import (
    KnownRequests,
    ProducedPartition,
    ProduceRequest,
    RepeatedAnswer,
    RepeatedRequest,
    decode_request,
    encode_response,
)

_PENDING = ProducedPartition(-1, 0)


class _Answer:
    """Gathers what became of each batch of one request, then answers."""

    __slots__ = ("_missing", "_numbers", "_request", "_results", "_topics", "acks", "acks_all")

    def __init__(self, request: Request, asked: ProduceRequest) -> None:
        # Nothing here may keep the records: an answer may wait long after they were written.
        self._request = request
        self._topics = asked.topics
        self.acks = asked.acks
        self.acks_all = asked.acks == -1
        self._missing = len(asked.batches)
        self._numbers = [number for _, number, _ in asked.batches]
        self._results = [_PENDING] * self._missing

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Note one batch's outcome; the last one sends the answer."""
        (outcome,) = outcomes
        self._results[index] = _result(self._numbers[index], outcome, log_start_offset)
        self._missing -= 1
        if self._missing == 0:
            self.send()

    def send(self) -> None:
        """Answer with what is known of every batch; acks=0 gets no answer."""
        request, results = self._request, self._results
        for result in results:
            if result.error:
                _note_error(request, self.acks, result)
        if self.acks == 0:
            request.answer_nothing()
        else:
            request.answer_bytes(encode_response(request.api_version, self._topics, results))


def _result(number: int, outcome: int | BrokerError, log_start_offset: int) -> ProducedPartition:
    if isinstance(outcome, int):
        return ProducedPartition(number, 0, outcome, log_start_offset)
    return ProducedPartition(number, outcome.code, message=str(outcome))


def _note_error(request: Request, acks: int, result: ProducedPartition) -> None:
    request.failed(result.error)
    if acks == 0:
        request.client.abort(f"a batch sent with acks=0 was refused: {result.message}")


def handle(broker: Broker, request: Request) -> None:
    """Stage every batch of the request; each is answered for itself."""
    asked = decode_request(request.api_version, request.body)
    refusal = _refusal(asked, request.api_version)
    answer = _Answer(request, asked)
    for index, (topic, number, records) in enumerate(asked.batches):
        try:
            if refusal is not None:
                raise refusal
            broker.produce(topic, number, records, answer, index)
        except BrokerError as error:
            answer.appended(index, [error])
    if not asked.batches:
        answer.send()
    elif refusal is None and len(asked.batches) == 1:
        _learn(broker, request, asked)


def _learn(broker: Broker, request: Request, asked: ProduceRequest) -> None:
    """Remember a request for a partition that is here, for when it is repeated."""
    topic, number, _ = asked.batches[0]
    known = request.client.repeated
    if not isinstance(known, _Known):
        known = request.client.repeated = _Known()
    if known.requests.full or (topic, number) not in broker.partitions:
        return
    requests = RepeatedRequest.of(request.frame, request.body)
    if requests is None:
        return
    repeated = _Repeated(broker, (topic, number), request.api_version, asked.acks, requests)
    known.requests.learn(requests.constant, repeated)


class _Known:
    """Serves the requests of one client that repeat one of those served before."""

    __slots__ = ("requests",)

    def __init__(self) -> None:
        self.requests: KnownRequests[_Repeated] = KnownRequests()

    def serve(self, client: Client, framer: RequestFramer) -> Request | None:
        """One place for the answers to all requests that repeat the next one; None if that is not known."""
        repeated = self.requests.next(*framer.rest)
        return None if repeated is None else repeated.serve(client, framer)


class _Repeated:
    """Serves all requests that lie one behind the other and repeat one served before, at one go.

    Each differs from the first in its correlation id and its batch only, so it means the same. What is not
    usual about one of them ends the run: that one is handled in the general way, which says what is wrong.
    A request then costs 2.5 us instead of 9, and the general way is the same for the log and the client.
    """

    __slots__ = ("_acks", "_answer", "_broker", "_place", "_requests", "_version")

    def __init__(
        self, broker: Broker, place: tuple[str, int], version: int, acks: int, requests: RepeatedRequest
    ) -> None:
        self._broker, self._version, self._acks = broker, version, acks
        self._place, self._requests = place, requests
        self._answer = RepeatedAnswer(version, *place)

    def serve(self, client: Client, framer: RequestFramer) -> Request | None:
        """One place for the answers to all requests that repeat; None when the next one does not."""
        partition = self._broker.partitions.get(self._place)
        if partition is None or partition.mirrored:
            return None
        largest = framer.max_frame_bytes - self._requests.overhead
        limit = min(partition.log.config.max_message_bytes, largest)
        numbers, batches, headers, end = self._requests.read(*framer.rest, limit)
        if not batches:
            return None
        framer.skip_to(end)
        request = Request(client, ApiKey.PRODUCE, self._version, numbers[0], NOTHING)
        request.count = len(numbers)
        answers = _RepeatedAnswers(request, self._acks, self._place, numbers, self._answer)
        self._broker.stage(partition, batches, headers, answers)
        return request


class _RepeatedAnswers:
    """Answers some requests that repeat each other, all at once."""

    __slots__ = ("_acks", "_answer", "_numbers", "_place", "_request", "acks_all")

    def __init__(
        self, request: Request, acks: int, place: tuple[str, int], numbers: list[int], answer: RepeatedAnswer
    ) -> None:
        self._request, self._acks, self._place, self._numbers = request, acks, place, numbers
        self._answer = answer
        self.acks_all = acks == -1

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Answer them."""
        bases = [outcome for outcome in outcomes if isinstance(outcome, int)]
        if len(bases) < len(outcomes):
            self._refused(outcomes, log_start_offset)
        elif self._acks == 0:
            self._request.answer_nothing()
        else:
            self._request.answer_frames(self._answer.frames(self._numbers, bases, log_start_offset))

    def _refused(self, outcomes: Outcomes, log_start_offset: int) -> None:
        """Answer each for itself: some of them were not appended."""
        request, (topic, number), frames = self._request, self._place, []
        for correlation_id, outcome in zip(self._numbers, outcomes, strict=True):
            result = _result(number, outcome, log_start_offset)
            if result.error:
                _note_error(request, self._acks, result)
            body = encode_response(request.api_version, [(topic, 1)], [result])
            frames.append(response_frame(correlation_id, body))
        if self._acks == 0:
            request.answer_nothing()
        else:
            request.answer_frames(b"".join(frames))


class _Refused(BrokerError):
    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _refusal(asked: ProduceRequest, version: int) -> BrokerError | None:
    """Why the request as a whole cannot be served, if so."""
    if version >= 3 and asked.transactional_id is None and -1 <= asked.acks <= 1:
        return None
    if version < 3:
        return _Refused(ErrorCode.UNSUPPORTED_VERSION, "produce with version 3 or later")
    if asked.transactional_id is not None:
        return _Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    return _Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={asked.acks} is none of -1, 0 and 1")


PRODUCE = Api(key=ApiKey.PRODUCE, versions=frozenset(range(9)), advertised=(0, 8), handle=handle)
