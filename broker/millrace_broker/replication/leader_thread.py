"""One thread that copies from one leader: fetches, checks the records, acknowledges flushes.

The loop states the position of each partition and takes the answers. The thread owns the connection, and
nothing else of the broker. It holds at most one answer that the loop has not taken, and at most one more is
in flight. After a leader fails to answer, everything is requested again. With a limit, partitions that lack
committed messages are requested one after the other, as the limit allows. Other partitions are not slowed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from millrace.client.connection import Connection
from millrace.config import ClientSecurity
from millrace.errors import ERRORS, BrokerError, MillraceError
from millrace.wire.messages import ApiKey
from millrace.wire.replica import (
    MAX_PARTITIONS,
    Acked,
    Copied,
    ReplicaAckRequest,
    ReplicaFetchRequest,
    ReplicaPartition,
    Wanted,
    decode_answer,
    encode_ack,
    encode_fetch,
)
from millrace_broker.allowance import Allowance
from millrace_broker.replication.copying import Checked, Copying, checked

logger = logging.getLogger("millrace.replication")

MAX_WAIT_MS = 500
"""Longest time for which a leader delays its answer without new bytes. It then answers with its commits."""
ANSWER_BYTES = 1 << 20
"""Most bytes of records in one answer, unless a batch is larger: the loop takes an answer in one turn."""
TIMEOUT_S = 5.0
"""Longest time for an answer. Then the thread opens another connection to the leader."""
RETRY_S = 0.2


class Received(NamedTuple):
    """A leader's answer to `wanted`, or the error for which the answer cannot be used."""

    wanted: Wanted
    outcome: Checked | MillraceError


class LeaderThread(threading.Thread):
    """Copies from one leader until `stop`. The loop calls `want`, `forget`, `ack` and `taken`."""

    def __init__(
        self,
        leader: int,
        follower: int,
        directory: str,
        address: Callable[[], tuple[str, int] | None],
        security: ClientSecurity,
        deliver: Callable[[LeaderThread, Sequence[Received]], None],
        limit: Allowance,
    ) -> None:
        """Prepare the thread; `address` returns the leader's present address; `deliver` passes answers to the
        loop, which then calls `taken`.

        `limit` is for the copying of lagging partitions, from all leaders.
        """
        super().__init__(name=f"copy from broker {leader}", daemon=True)
        self.leader = leader
        self._follower, self._directory = follower, directory
        self._address, self._security, self._deliver, self._limit = address, security, deliver, limit
        self._lock = threading.Lock()
        self._wants: dict[ReplicaPartition, Wanted] = {}
        """Latest position of every partition that is copied from this leader."""
        self._news: dict[ReplicaPartition, None] = {}
        """Partitions whose position or removal was not sent to the leader yet."""
        self._behind: dict[ReplicaPartition, None] = {}
        """Lagging partitions not yet requested, oldest first. The limit releases one at a time."""
        self._limited: set[ReplicaPartition] = set()
        """Lagging partitions, requested or not."""
        self._catching_up: ReplicaPartition | None = None
        """The lagging partition that was requested and is not answered yet."""
        self._acks: dict[ReplicaPartition, Acked] = {}
        self._untaken = 0
        self._stopped = False
        self._failure = ""
        self._wake_fd, self._wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # For the loop

    def want(self, copying: Copying) -> None:
        """Continue to copy this partition from its present position; if it lags, as the limit allows."""
        partition = copying.partition
        with self._lock:
            self._void(partition)
            self._wants[partition] = copying.wanted
            if copying.is_behind and self._limit.rate is not None:
                self._limited.add(partition)
                self._behind[partition] = None
            else:
                self._news[partition] = None
        self._wake()

    def forget(self, partition: ReplicaPartition) -> None:
        with self._lock:
            if self._wants.pop(partition, None) is not None:
                self._void(partition)
                self._news[partition] = None
                self._acks.pop(partition, None)
        self._wake()

    def _void(self, partition: ReplicaPartition) -> None:
        """Drop the earlier position of a partition, even if it was not sent to the leader yet."""
        self._news.pop(partition, None)
        self._behind.pop(partition, None)
        self._limited.discard(partition)
        if partition == self._catching_up:
            self._catching_up = None

    def ack(self, acked: Acked) -> None:
        """Acknowledge the flushed positions to the leader."""
        with self._lock:
            self._acks[acked.partition] = acked
        self._wake()

    def taken(self) -> None:
        """Note that the loop has taken one answer: there is room for the next."""
        with self._lock:
            self._untaken -= 1
        self._wake()

    def stop(self) -> None:
        """End the thread soon; no more answers are delivered."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of wake-ups already
            os.write(self._wake_end, b"\0")

    # The thread

    def run(self) -> None:
        while not self._stopped:
            if not self._wants:
                self._sleep()
                continue
            address = self._address()
            if address is None:
                self._failed(MillraceError("it is not registered, or not with a listener for brokers"))
                time.sleep(RETRY_S)
                continue
            try:
                with Connection(
                    *address,
                    client_id=f"millrace-replica-{self._follower}",
                    timeout_s=TIMEOUT_S,
                    security=self._security,
                ) as connection:
                    self._copy(connection)
            except (MillraceError, OSError) as error:
                self._failed(error)
                time.sleep(RETRY_S)
            except Exception:
                logger.exception("a bug while copying from broker %s", self.leader)
                time.sleep(TIMEOUT_S)

    def _failed(self, error: Exception) -> None:
        """Log a failure once: the thread retries a leader that is down all the time."""
        if str(error) != self._failure and not self._stopped:
            logger.warning("cannot copy from broker %s: %s; trying again", self.leader, error)
        self._failure = str(error)

    def _sleep(self) -> None:
        """Wait for the loop, while nothing is copied from this leader."""
        os.set_blocking(self._wake_fd, True)
        os.read(self._wake_fd, 4096)
        os.set_blocking(self._wake_fd, False)

    def _copy(self, connection: Connection) -> None:
        """Copy over one connection, as long as it is open and there are partitions to copy."""
        asked: dict[ReplicaPartition, tuple[int, Wanted]] = {}  # with the number of the request
        with self._lock:
            self._catching_up = None
            requested = (one for one in self._wants if one in self._limited - self._behind.keys())
            self._behind = dict.fromkeys([*requested, *self._behind])
            self._news = {partition: None for partition in self._wants if partition not in self._behind}
        sent, answered, answer_by = 0, 0, 0.0
        while self._wants and not (self._stopped or connection.needs_renewal):
            self._send_acks(connection)
            with self._lock:
                until_next = self._seconds_to_next_behind()
                has_room, has_news = self._untaken == 0, bool(self._news)
            if has_room and (sent == answered or has_news):
                # If the leader still delays its answer to the last request, this request ends that wait.
                sent += 1
                body = self._request(asked, sent)
                connection.send(ApiKey.REPLICA_FETCH, 0, body, timeout_s=TIMEOUT_S)
                answer_by = time.monotonic() + MAX_WAIT_MS / 1000 + TIMEOUT_S
            patience = answer_by - time.monotonic() if sent > answered else TIMEOUT_S
            if connection.wait(self._wake_fd, max(0.0, min(patience, until_next))):
                if sent == answered:
                    raise MillraceError("it has closed the connection")
                answered += 1
                self._take_answer(connection.receive(timeout_s=TIMEOUT_S), asked, answered)
            elif sent > answered and time.monotonic() > answer_by:
                raise MillraceError("it does not answer")

    def _seconds_to_next_behind(self) -> float:
        """Let the next lagging partition catch up if the limit allows it. Return the seconds to wait.

        Under the lock.
        """
        if self._catching_up is not None or not self._behind:
            return TIMEOUT_S  # a change wakes the thread
        seconds = self._limit.wait_seconds()
        if seconds <= 0:
            self._catching_up = next(iter(self._behind))
            del self._behind[self._catching_up]
            self._news[self._catching_up] = None
            return TIMEOUT_S
        return seconds

    def _request(self, asked: dict[ReplicaPartition, tuple[int, Wanted]], number: int) -> bytes:
        """Return the request of this number over its connection, with all changes that were not sent to the
        leader yet, and update `asked` accordingly.
        """
        with self._lock:
            news = list(islice(self._news, MAX_PARTITIONS))
            for partition in news:
                del self._news[partition]
            wanted = [self._wants[partition] for partition in news if partition in self._wants]
            forgotten = [partition for partition in news if partition not in self._wants]
        for partition in forgotten:
            asked.pop(partition, None)
        asked.update((one.partition, (number, one)) for one in wanted)
        request = ReplicaFetchRequest(
            self._follower, self._directory, number == 1, MAX_WAIT_MS, ANSWER_BYTES, wanted, forgotten
        )
        return encode_fetch(request)

    def _send_acks(self, connection: Connection) -> None:
        with self._lock:
            acks = list(islice(self._acks.values(), MAX_PARTITIONS))
            for one in acks:
                del self._acks[one.partition]
        if acks:
            body = encode_ack(ReplicaAckRequest(self._follower, self._directory, acks))
            connection.send(ApiKey.REPLICA_ACK, 0, body, timeout_s=TIMEOUT_S, answered=False)

    def _take_answer(
        self, body: memoryview, asked: dict[ReplicaPartition, tuple[int, Wanted]], answered: int
    ) -> None:
        """Deliver the answer to the request of the number `answered`.

        A partition that a later request names is left out: the leader answered an earlier position, maybe in
        an earlier epoch.
        """
        error, copied = decode_answer(body)
        if error:
            raise ERRORS.get(error, BrokerError)(f"it answers with error {error}")
        self._failure = ""
        for one in copied:
            if one.partition in self._limited and isinstance(one.records, memoryview):
                self._limit.took(len(one.records))
            if one.partition == self._catching_up:
                self._catching_up = None
        found = [(one, asked[one.partition]) for one in copied if one.partition in asked]
        received = [_checked(one, wanted) for one, (number, wanted) in found if number <= answered]
        if received:
            with self._lock:
                self._untaken += 1
            self._deliver(self, received)


def _checked(copied: Copied, wanted: Wanted) -> Received:
    try:
        return Received(wanted, checked(copied, wanted))
    except MillraceError as error:
        return Received(wanted, error)
