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

_REFUSED_VERSIONS = frozenset(range(3))


class _Answer:
    """Gathers what became of each batch of one request, then answers."""

    __slots__ = ("_broker", "_missing", "_request", "_results", "acks", "acks_all")

    def __init__(self, broker: Broker, request: Request, asked: ProduceRequest) -> None:
        self._broker = broker
        self._request = request
        self.acks = asked.acks
        self.acks_all = asked.acks == -1
        self._results = [
            (topic, ProducedPartition(index, 0, -1, -1))
            for topic, batches in asked.topics
            for index, _ in batches
        ]
        self._missing = len(self._results)

    def appended(self, index: int, outcome: Appended | BrokerError) -> None:
        """Note one batch's outcome; the last one sends the answer."""
        topic, result = self._results[index]
        if isinstance(outcome, Appended):
            result.base_offset = outcome.base_offset
            partition = self._broker.partitions.get((topic, result.index))
            result.log_start_offset = -1 if partition is None else partition.log.log_start_offset
        else:
            result.error, result.message = outcome.code, str(outcome)
        self._missing -= 1
        if self._missing == 0:
            self._send()

    def _send(self) -> None:
        request = self._request
        if self.acks == 0:
            for topic, result in self._results:
                if result.error:
                    request.client.abort(f"acks=0 batch for {topic}-{result.index}: {result.message}")
            request.answer_nothing()
            return
        if len(self._results) == 1:
            topic, result = self._results[0]
            request.answer([encode_response(request.api_version, [(topic, [result])])])
            return
        topics: dict[str, list[ProducedPartition]] = {}
        for topic, result in self._results:
            topics.setdefault(topic, []).append(result)
        request.answer([encode_response(request.api_version, topics.items())])


def handle(broker: Broker, request: Request) -> None:
    """Stage every batch of the request; each is answered for itself."""
    asked = decode_request(request.api_version, request.body)
    answer = _Answer(broker, request, asked)
    refusal = _refusal(asked, request.api_version)
    index = 0
    for topic, batches in asked.topics:
        for number, records in batches:
            try:
                if refusal is not None:
                    raise refusal
                broker.produce(topic, number, records or memoryview(b""), answer, index)
            except BrokerError as error:
                answer.appended(index, error)
            index += 1
    if index == 0:
        request.answer([encode_response(request.api_version, [])])


class _Refused(BrokerError):
    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def _refusal(asked: ProduceRequest, version: int) -> BrokerError | None:
    """Why the request as a whole cannot be served, if so."""
    if version in _REFUSED_VERSIONS:
        return _Refused(ErrorCode.UNSUPPORTED_VERSION, "produce with version 3 or later")
    if asked.transactional_id is not None:
        return _Refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    if asked.acks not in (-1, 0, 1):
        return _Refused(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={asked.acks} is none of -1, 0 and 1")
    return None


PRODUCE = Api(key=ApiKey.PRODUCE, versions=frozenset(range(9)), advertised=(0, 8), handle=handle)
