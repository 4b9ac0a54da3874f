"""Produce, v3 to v8 (v0 to v2 are advertised, because old clients look for them, and refused).

Nearly every request brings one batch for one partition, and many that lie behind each other ask for the same:
such a run is served at one go (`serve_run`), any other request by itself (`serve`). acks=0 gets no answer,
and a closed connection when something went wrong; acks=1 is answered after the append, acks=all after the
flush. Left out: transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from millrace.broker.broker import Broker
from millrace.broker.partition import Outcomes
from millrace.errors import BrokerError, InvalidRequiredAcks, TransactionsNotSupported, UnsupportedVersion
from millrace.handlers.table import Api
from millrace.server.request import NOTHING, Client, Request, response_frame
from millrace.wire.framing import RequestFramer
from millrace.wire.messages import ApiKey
from millrace.wire.produce import (
    ProducedPartition,
    ProduceRequest,
    decode_request,
    encode_response,
    encode_successes,
    next_run,
)


class _Answer:
    """Answers one request, or each request of a run, once it is known what became of every batch."""

    __slots__ = (
        "_acks",
        "_correlation_ids",
        "_missing",
        "_outcomes",
        "_partitions",
        "_request",
        "_topics",
        "acks_all",
    )

    def __init__(
        self,
        request: Request,
        acks: int,
        correlation_ids: Sequence[int],
        topics: Sequence[tuple[str, int]],
        partitions: Sequence[int],
    ) -> None:
        """Every request is for the same `partitions`; `topics` says how many of them each topic has."""
        # Nothing here may keep the records: an answer may wait long after they were written.
        self._request, self._acks, self._correlation_ids = request, acks, correlation_ids
        self._topics, self._partitions = topics, partitions
        self.acks_all = acks == -1
        self._missing = len(partitions) * len(correlation_ids)
        self._outcomes: list[tuple[int, Outcomes, int]] = []

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Note what became of the batches from number `index` on; the last ones send the answer."""
        self._outcomes.append((index, outcomes, log_start_offset))
        self._missing -= len(outcomes)
        if self._missing == 0:
            self.send()

    def abort(self, reason: str) -> None:
        """Close the connection: what became of the batches cannot be said."""
        self._request.client.abort(reason)

    def send(self) -> None:
        """Answer with what became of every batch; acks=0 gets no answer."""
        request = self._request
        if len(self._outcomes) == len(self._partitions) == 1:
            _, outcomes, start = self._outcomes[0]
            bases = [outcome for outcome in outcomes if isinstance(outcome, int)]
        else:
            bases = []
        if len(bases) < len(self._correlation_ids):
            frames = self._results()
        elif self._acks != 0:  # the short way for nearly every request
            topic, partition = self._topics[0][0], self._partitions[0]
            ids = self._correlation_ids
            frames = encode_successes(request.api_version, topic, partition, ids, bases, start)
        if self._acks == 0:
            request.answer_nothing()
        else:
            request.answer_frames(frames)

    def _results(self) -> bytes:
        """The answers with what became of each batch by itself; errors are counted."""
        request, count = self._request, len(self._partitions)
        results: list[ProducedPartition] = []
        for index, outcomes, log_start_offset in sorted(self._outcomes, key=itemgetter(0)):
            for number, outcome in enumerate(outcomes, index):
                results.append(_result(self._partitions[number % count], outcome, log_start_offset))
        for result in results:
            if result.error:
                request.failed(result.error)
                if self._acks == 0:
                    request.client.abort(f"a batch sent with acks=0 was refused: {result.message}")
        return b"".join(
            response_frame(
                correlation_id,
                encode_response(request.api_version, self._topics, results[number * count :][:count]),
            )
            for number, correlation_id in enumerate(self._correlation_ids)
        )


def _result(partition: int, outcome: int | BrokerError, log_start_offset: int) -> ProducedPartition:
    if isinstance(outcome, int):
        return ProducedPartition(partition, 0, outcome, log_start_offset)
    return ProducedPartition(partition, outcome.code, message=str(outcome))


def serve_run(broker: Broker, client: Client, framer: RequestFramer) -> Request | None:
    """Serve the run that lies next in the received bytes as one request; None when there is none."""
    data, position = framer.rest
    run = next_run(data, position, framer.max_frame_bytes, broker.largest_batch, client.produced)
    if run is None:
        return None
    asked, correlation_ids, batches, end = run
    client.produced = asked
    framer.skip_to(end)
    topic, partition = asked.topic, asked.partition
    request = Request(client, ApiKey.PRODUCE, asked.version, correlation_ids[0], NOTHING)
    request.count = len(correlation_ids)
    answer = _Answer(request, asked.acks, correlation_ids, ((topic, 1),), (partition,))
    broker.stage(broker.partition(topic, partition), batches, answer)
    return request


def serve(broker: Broker, request: Request) -> None:
    """Stage every batch of the request; each is answered for itself."""
    asked = decode_request(request.api_version, request.body)
    refusal = _refusal(asked, request.api_version)
    partitions = [number for _, number, _ in asked.batches]
    answer = _Answer(request, asked.acks, [request.correlation_id], asked.topics, partitions)
    for index, (topic, number, records) in enumerate(asked.batches):
        try:
            if refusal is not None:
                raise refusal
            broker.produce(topic, number, records, answer, index)
        except BrokerError as error:
            answer.appended(index, [error])
    if not asked.batches:
        answer.send()


def _refusal(asked: ProduceRequest, version: int) -> BrokerError | None:
    """Why the request as a whole cannot be served, if so."""
    if version >= 3 and asked.transactional_id is None and -1 <= asked.acks <= 1:
        return None
    if version < 3:
        return UnsupportedVersion("produce with version 3 or later")
    if asked.transactional_id is not None:
        return TransactionsNotSupported("transactions are not supported")
    return InvalidRequiredAcks(f"acks={asked.acks} is none of -1, 0 and 1")


PRODUCE = Api(key=ApiKey.PRODUCE, versions=range(9), serve=serve, serve_run=serve_run)
