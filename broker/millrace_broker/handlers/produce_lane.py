"""Produce requests that one turn has read from many clients, all for one partition, served as one.

Such a lane is checked and appended like a run of one client. With acks=1 each client gets its answer as soon
as the append has its outcome, with acks=all in the place that was kept for it. A client that brings anything
but whole requests of the kind is served by itself, and so is one that has a quota.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate

from millrace.wire import produce
from millrace.wire.messages import ApiKey
from millrace.wire.produce import Target
from millrace_broker.handlers.produce import Answer, write_need
from millrace_broker.handlers.table import Services
from millrace_broker.partitions.partition import Outcomes
from millrace_broker.server.request import NOTHING, Arrived, C, Client, Request

logger = logging.getLogger("millrace.broker.produce_lane")

_PRODUCE = int(ApiKey.PRODUCE)


class LaneAnswer:
    """Answers the requests of a lane, each client's by themselves."""

    __slots__ = (
        "_clients",
        "_ends",
        "_ids",
        "_places",
        "_request",
        "_target",
        "acks_all",
        "principal",
        "timeout_ms",
    )

    def __init__(
        self,
        request: Request,
        target: Target,
        clients: Sequence[Client],
        counts: Sequence[int],
        ids: Sequence[int],
    ) -> None:
        """Answer `ids`: the first `counts[0]` of them to the first client, the next ones to the next client.

        `request` stands for all requests in the statistics; `target` is one of any client.
        """
        self._request, self._target, self._clients = request, target, clients
        self._ends, self._ids = [0, *accumulate(counts)], ids
        self.acks_all, self.timeout_ms = target.acks == -1, target.timeout_ms
        self.principal = clients[0].access.principal
        self._places = [self._keep_place(number) for number in range(len(clients))] if self.acks_all else []

    def appended(self, index: int, outcomes: Outcomes, log_start_offset: int = -1) -> None:
        """Answer every client. A bug while answering closes only this client's connection."""
        self._request.parts = ()
        target, answers = self._target, []
        if set(map(type, outcomes)) == {int}:
            answers = produce.encode_each_success(
                target.version, target.topic, target.partition, self._ids, outcomes, log_start_offset
            )
        for number, client in enumerate(self._clients):
            begin, end = self._ends[number], self._ends[number + 1]
            try:
                if answers:
                    own = answers[begin] if end - begin == 1 else b"".join(answers[begin:end])
                    if self._places:
                        self._places[number].answer_frames(own)
                    else:
                        client.reply(own)
                elif not client.closed:
                    self._answer_each(number, outcomes[begin:end], log_start_offset)
            except Exception:
                logger.exception("a bug while answering %s", client.address)
                client.abort("a bug was met while its request was answered")

    def abort(self, reason: str) -> None:
        """Close every client's connection: the outcome of the batches is unknown."""
        self._request.parts = ()
        for client in self._clients:
            client.abort(reason)

    def _keep_place(self, number: int) -> Request:
        """Keep a place for the answer to a client."""
        client, begin, end = self._clients[number], self._ends[number], self._ends[number + 1]
        request = Request(
            client, _PRODUCE, self._target.version, self._ids[begin], NOTHING, count=end - begin
        )
        client.keep_place(request)
        return request

    def _answer_each(self, number: int, outcomes: Outcomes, log_start_offset: int) -> None:
        """Answer a client's requests, each with its own base offset or error."""
        request, target = self._places[number] if self._places else self._keep_place(number), self._target
        ids, topics = self._ids[self._ends[number] : self._ends[number + 1]], ((target.topic, 1),)
        answer = Answer(request, target.acks, target.timeout_ms, ids, topics, (target.partition,))
        answer.appended(0, outcomes, log_start_offset)


def serve_lane(
    services: Services, lane: Sequence[Arrived[C]], data: memoryview, max_frame_bytes: int
) -> tuple[Request | None, Sequence[Arrived[C]]]:
    """Stage the requests of a lane as one. Return it, and what must be served by itself.

    `lane` is in the order in which it was read into `data`.
    """
    first = lane[0].client
    target = first.last_target
    assert isinstance(target, Target)
    partition = services.broker.open_to_producers(target.topic, target.partition)
    if partition is None or len(lane) == 1:
        return None, lane
    allowed: list[Arrived[C]] = []  # not list[...](): that takes a microsecond
    rest: list[Arrived[C]] = []
    for arrived in lane:
        (allowed if _is_allowed(arrived.client, target, first.access.principal) else rest).append(arrived)
    if not allowed:
        return None, lane
    ids, batches, counts = requests_of(allowed, data, partition.log.config.max_message_bytes, max_frame_bytes)
    if not batches:
        return None, lane
    rest += [arrived for arrived, count in zip(allowed, counts, strict=True) if not count]
    clients = [arrived.client for arrived, count in zip(allowed, counts, strict=True) if count]
    request = Request(clients[0], _PRODUCE, target.version, ids[0], NOTHING, count=len(ids))
    answer = LaneAnswer(request, target, clients, list(filter(None, counts)), ids)
    services.broker.stage(partition, batches, answer)
    return request, rest


def requests_of(
    lane: Sequence[Arrived[C]], data: memoryview, max_batch_bytes: int, max_frame_bytes: int
) -> tuple[list[int], list[memoryview], list[int]]:
    """Return the correlation ids and the batches of a lane, and for each client how many of them it sent.

    0 stands for a client that has sent anything but whole requests for its target. A request never consists
    of the bytes of two clients.
    """
    start, end = lane[0].start, lane[-1].start + lane[-1].size
    sizes = [arrived.size for arrived in lane]
    targets = [arrived.client.last_target for arrived in lane]
    target = targets[0]
    assert isinstance(target, Target)
    # Nothing else was read in between, and all have the same `client.id`.
    if sum(sizes) == end - start and targets.count(target) == len(targets):
        ids, batches, after = produce.run_at(data[:end], start, target, max_batch_bytes, max_frame_bytes)
        counts = _counts(batches, target.around_batch + 4, sizes) if after == end else None
        if counts is not None:
            return ids, batches, counts
    ids, batches, counts = [], [], []
    for (_, start, size), target in zip(lane, targets, strict=True):
        assert isinstance(target, Target)
        end = start + size
        own_ids, own, after = produce.run_at(data[:end], start, target, max_batch_bytes, max_frame_bytes)
        is_whole = after == end
        counts.append(len(own_ids) if is_whole else 0)
        if is_whole:
            ids += own_ids
            batches += own
    return ids, batches, counts


def _counts(batches: Sequence[memoryview], around: int, sizes: Sequence[int]) -> list[int] | None:
    """Return the number of requests in the bytes of each client; None if one does not end with them."""
    requests = [len(batch) + around for batch in batches]
    if requests == sizes:  # one of each client: nearly always
        return [1] * len(sizes)
    counts, position = [], 0
    for size in sizes:
        first = position
        while size > 0 and position < len(requests):
            size -= requests[position]
            position += 1
        if size != 0:
            return None
        counts.append(position - first)
    return counts


def _is_allowed(client: Client, target: Target, principal: str) -> bool:
    access = client.access
    if client.closed or access.meter is not None or access.principal != principal:
        return False
    return access.everything or access.allows(write_need(target.topic))
