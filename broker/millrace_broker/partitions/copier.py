"""Copying from other leaders: the way of an answer from its leader's thread into the log and back.

`LeaderThread` receives and checks. The loop appends an answer with one call, asks for more, and flushes; each
flush is acknowledged to the leader. What needs more than that (a cut, a refusal, a pause) waits in the record
for the life of the replica, in `partitions/replicas.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Executor

from millrace import errors
from millrace.config import BrokerConfig
from millrace.wire.replica import Wanted
from millrace_broker.allowance import Allowance
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.mailbox import Mailbox, outcome
from millrace_broker.partitions.flush import FlushThreads
from millrace_broker.partitions.hosted import HostedPartition, HostedPartitions
from millrace_broker.partitions.partition import FLUSH_AGAIN_S
from millrace_broker.replication.copying import Checked, Copying
from millrace_broker.replication.following import Following
from millrace_broker.replication.leader_thread import ANSWER_BYTES, LeaderThread, Received
from millrace_broker.storage.sides import BackgroundSide

logger = logging.getLogger("millrace.replication")


class Copier:
    """Copies partitions from the brokers that lead them, by one thread for each of those. On the loop."""

    def __init__(
        self,
        config: BrokerConfig,
        directory: str,
        cluster: Cluster,
        mailbox: Mailbox,
        flushes: FlushThreads,
        pool: Executor,
        hosted: HostedPartitions,
    ) -> None:
        self._config, self._directory, self._cluster = config, directory, cluster
        self._mailbox, self._flushes, self._pool, self._hosted = mailbox, flushes, pool, hosted
        self._threads: dict[int, LeaderThread] = {}
        self._limit = Allowance(config.replica_catch_up_bytes_per_second, ANSWER_BYTES)

    def begin(self, one: HostedPartition, following: Following) -> Copying:
        """Copy from a leader until `end`. OSError or RuntimeError when the system has no thread left."""
        thread = one.thread = self._thread(following.leader)
        assert one.replica.snapshot is not None, "it follows by a state"
        state, us = one.replica.snapshot.state, self._config.broker_id
        # An eligible replica has everything committed, and writes may wait for it.
        is_behind = self._directory not in (state.isr.get(us), state.eligible.get(us))
        copying = one.copying = Copying(one.id, following, one.log, is_behind=is_behind)
        thread.want(copying)
        return copying

    def ask_again(self, one: HostedPartition) -> None:
        """Go on after an obstacle."""
        one.obstacle = None
        if one.copying is not None and one.thread is not None:
            one.thread.want(one.copying)

    def end(self, one: HostedPartition) -> None:
        if one.thread is not None:
            one.thread.forget(one.id)
        one.copying = one.thread = one.obstacle = None

    def _thread(self, leader: int) -> LeaderThread:
        thread = self._threads.get(leader)
        if thread is None:
            thread = self._threads[leader] = LeaderThread(
                leader,
                self._config.broker_id,
                self._directory,
                lambda: self._address(leader),
                self._config.replica_client,
                lambda thread, received: self._mailbox.post(lambda: self._take(thread, received)),
                self._limit,
            )
        if thread.ident is None:
            thread.start()
        return thread

    def _address(self, leader: int) -> tuple[str, int] | None:
        """Return the address at which brokers reach a leader; from any thread."""
        address = self._cluster.brokers.get(leader)
        if address is None:
            return None
        listener = self._config.replica_listener
        return address.at(listener) if listener else (address.host, address.port)

    def _take(self, thread: LeaderThread, received: Iterable[Received]) -> None:
        """Apply a leader's answers."""
        try:
            for wanted, answer in received:
                one = self._hosted.replica(wanted.partition)
                if one is not None and one.thread is thread:
                    self._take_one(one, wanted, answer)
        finally:
            thread.taken()

    def _take_one(self, one: HostedPartition, wanted: Wanted, answer: Checked | errors.MillraceError) -> None:
        copying, thread = one.copying, one.thread
        if copying is None or thread is None or one.is_changing or one.obstacle is not None:
            return
        if copying.following is not one.replica.following:
            return  # its life is about to follow another leader, or none
        if wanted[1:4] != copying.wanted[1:4]:  # an answer to what was asked before
            thread.want(copying)
            return
        try:
            if isinstance(answer, errors.MillraceError):
                raise answer
            one.obstacle = copying.take(answer)
        except Exception as error:
            one.obstacle = error
        if one.obstacle is not None:
            one.changes.notify()
            return
        thread.want(copying)
        self._mailbox.begin(self._flush(one))
        if (before := copying.to_delete) is not None and not one.is_deleting:
            self._mailbox.begin(self._delete_records(one, before))

    async def _flush(self, one: HostedPartition) -> None:
        """Flush copied bytes and acknowledge them to the leader, until nothing is left to flush."""
        while one.copying is not None and not (
            one.is_flushing or one.is_changing or one.log.end == one.log.flushed
        ):
            has_failed, one.is_flushing = False, True
            try:
                await self._flushes.flush(one.opened)
            except Exception as error:
                has_failed = True
                logger.error("flush of %s failed: %s", one.name, error, exc_info=errors.is_bug(error))
                if one.log.flush_refusal is None:
                    await self._mailbox.sleep(FLUSH_AGAIN_S)  # answers that come meanwhile begin no flush
            one.is_flushing = False
            if one.log.flush_refusal is not None:
                one.changes.notify()
                return
            copying, thread = one.copying, one.thread  # the leader may be another one by now
            if copying is None or thread is None or has_failed or one.is_changing:
                continue
            if (acked := copying.acked) is not None:
                thread.ack(acked)

    async def _delete_records(self, one: HostedPartition, before: int) -> None:
        """Delete the records that the leader has deleted, so that they stay deleted if this replica leads."""
        one.is_deleting = True
        try:
            log: BackgroundSide = one.opened
            await outcome(self._pool.submit(log.delete_records, before))
        except Exception as error:  # a later answer of the leader has it again
            logger.warning("%s still begins where it did: %s", one.name, error, exc_info=errors.is_bug(error))
        one.is_deleting = False

    def close(self) -> None:
        """End the threads, after the event loop has ended."""
        for thread in self._threads.values():
            thread.stop()
