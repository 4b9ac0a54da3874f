"""Produce, v3 to v8 (v0 to v2 are advertised, because old clients look for them, and refused).

acks=0 gets no answer, and a closed connection when something went wrong; acks=1 is answered after the
append, acks=all after the flush. Left out: transactions.
"""

from __future__ import annotations

from millrace.broker import Broker
from millrace.errors import BrokerError, ErrorCode
from millrace.handlers.request import Request
from millrace.handlers.table import Api
from millrace.storage.staging import Appended
from millrace.wire.messages import ApiKey
from millrace.wire.produce import ProducedPartition, ProduceRequest, decode_request, encode_response

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

    def appended(self, index: int, outcome: Appended | BrokerError, log_start_offset: int = -1) -> None:
        """Note one batch's outcome; the last one sends the answer."""
        number = self._numbers[index]
        if isinstance(outcome, Appended):
            self._results[index] = ProducedPartition(number, 0, outcome.base_offset, log_start_offset)
        else:
            self._results[index] = ProducedPartition(number, outcome.code, message=str(outcome))
        self._missing -= 1
        if self._missing == 0:
            self.send()

    def send(self) -> None:
        """Answer with what is known of every batch; acks=0 gets no answer."""
        request, results = self._request, self._results
        if self.acks == 0:
            for result in results:
                if result.error:
                    request.client.abort(f"a batch sent with acks=0 was refused: {result.message}")
            request.answer_nothing()
            return
        request.answer_bytes(encode_response(request.api_version, self._topics, results))


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
            answer.appended(index, error)
    if not asked.batches:
        answer.send()


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
