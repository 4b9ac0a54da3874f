"""The generation of the log directory: a number that only grows, on its disk and in ZooKeeper.

It grows at each start, before the broker registers, and once a second while anything is flushed. The disk
comes first, then ZooKeeper, so a crash leaves the disk ahead by one at most. The two numbers at a start:

    disk = ZooKeeper, or one more    the directory is as it was when the broker ended
    disk < ZooKeeper                 the directory was restored from an older copy
    disk > ZooKeeper + 1             ZooKeeper was restored from an older copy

A restored ZooKeeper is noted in the directory until every replica has reported its log: a start in between
could no longer see it from the numbers.

A restored directory gets a new id. It is then in sync nowhere: the broker copies from other replicas, and a
partition that has its only replica there waits for an operator. The same holds for a directory without an
owner: the disk is empty, or not mounted.
"""

from __future__ import annotations

import errno
import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from millrace.errors import MillraceError
from millrace_broker.coordination.cluster import Cluster
from millrace_broker.coordination.directories import DirectoryNode, waiting, withdraw
from millrace_broker.storage.log_directory import Owner, read_owner, write_owner

logger = logging.getLogger("millrace.broker")

GROW_S = 1.0
"""Pause between two generations. A copy that lacks only the writes of one pause goes unnoticed."""
CLOSE_S = 2.0
"""Longest wait for ZooKeeper while a broker stops."""
MAX_NAMED = 10
"""Largest number of partitions that one log line names."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Generation:
    """Generation of one log directory, on its disk and in ZooKeeper. The methods block."""

    def __init__(self, log_dir: Path, cluster: Cluster, owner: Owner) -> None:
        self._log_dir, self._cluster, self._owner = log_dir, cluster, owner
        self._node = DirectoryNode(cluster, owner.directory)
        found = self._node.read()
        self._known = max(found, owner.generation - 1)
        """The largest generation that ZooKeeper is known to have held."""
        self.is_restored = owner.generation < found
        """True if ZooKeeper has seen a later state of this directory."""
        self.zookeeper_is_restored = found < self._known or owner.zookeeper_restored
        """True if the directory has seen a later state of ZooKeeper, and not all replicas have reported."""
        self._was_restored = self.zookeeper_is_restored
        self._must_tell = False
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def directory(self) -> str:
        """Id of the directory."""
        return self._owner.directory

    def grow(self) -> None:
        """Raise the generation on the disk, then in ZooKeeper. If the disk is ahead, write only to ZooKeeper.

        If ZooKeeper was restored, that is noted on the disk before the two generations are equal again.
        Raises OSError when the disk refuses the write, MillraceError when ZooKeeper refuses it.
        """
        owner = replace(self._owner, zookeeper_restored=self.zookeeper_is_restored)
        if owner.generation == self._known:
            owner = replace(owner, generation=self._known + 1)
        if owner != self._owner:
            write_owner(self._log_dir, owner)
            self._owner = owner
        if not self._node.write(self._owner.generation):
            self.compare()
            if self._must_tell:
                return  # the disk has no note of it yet
            self._node.write(self._owner.generation)
        self._known = self._owner.generation

    def compare(self) -> None:
        """Read ZooKeeper's generation. A lower generation than before means that ZooKeeper was restored."""
        if self._node.read() < self._known:
            self.zookeeper_is_restored = self._was_restored = self._must_tell = True

    def still_there(self, topic: str, partition: int, topic_id: UUID) -> bool:
        """Return True if ZooKeeper has the partition. MillraceError if ZooKeeper may have been restored."""
        known = self._known  # first: the number grows meanwhile
        if self._was_restored or DirectoryNode(self._cluster, self.directory).read() < known:
            raise MillraceError("it was put back from an older copy since this broker started")
        return self._cluster.holds(topic, partition, topic_id)

    def keep(
        self,
        flushes: Callable[[], int],
        zookeeper_restored: Callable[[], None],
        have_reported: Callable[[], bool],
    ) -> None:
        """Start a thread that grows the number while `flushes` grows, and reports a restored ZooKeeper.

        `zookeeper_restored` returns when replicas owe their reports, and `have_reported` returns True when
        none does.
        """

        def work() -> None:
            counted, is_closed, must_compare, trouble = flushes(), False, False, ""
            while not is_closed:
                must_compare |= self._wake.wait(GROW_S)
                self._wake.clear()
                is_closed, now = self._is_closed, flushes()
                try:
                    if must_compare and not is_closed:
                        self.compare()
                        must_compare = False
                    if self._must_tell:
                        self._cluster.confirm()  # the snapshots, too, show the restored state
                        self.log_zookeeper()
                        zookeeper_restored()
                        self._must_tell = False
                    elif self.zookeeper_is_restored and have_reported():
                        self.zookeeper_is_restored = False
                    is_noted = self._owner.zookeeper_restored == self.zookeeper_is_restored
                    if (now != counted or not is_noted) and self._cluster.is_connected:
                        self.grow()
                        counted = now
                    trouble = ""
                except (MillraceError, OSError) as error:
                    if str(error) != trouble:
                        logger.warning("the generation of %s does not grow: %s", self._log_dir, error)
                    trouble = str(error)

        self._cluster.session.on_reconnect(self._wake.set)
        self._thread = threading.Thread(target=work, name="generation", daemon=True)
        self._thread.start()

    def log_zookeeper(self) -> None:
        """Log that ZooKeeper was restored from an older copy."""
        logger.error(
            "ZooKeeper at %s was put back from an older copy: log directory %s has seen a later state of it",
            self._cluster.session.zookeeper,
            self._log_dir,
        )

    def close(self) -> None:
        """Grow a last time if anything was flushed. The broker no longer serves."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)


def take(log_dir: Path, cluster: Cluster, broker: int) -> Generation:
    """Take the locked directory for this broker. Raises MillraceError when it belongs to another broker.

    On return, the disk and ZooKeeper hold the generation of this start.
    """
    owner = read_owner(log_dir, cluster.cluster_id, broker)
    if owner is not None and not owner.directory:
        owner = replace(owner, directory=secrets.token_hex(8))
    generation = None if owner is None else Generation(log_dir, cluster, owner)
    if generation is None or generation.is_restored:
        cluster.await_free(broker)
        withdraw(cluster, broker)  # before the new id is written: a start that ends in between is repeated
        if generation is not None:
            logger.error(
                "log directory %s was put back from an older copy: it gets a new id, and this broker copies"
                " from the leaders whatever has other replicas",
                log_dir,
            )
        new = Owner(cluster.cluster_id, broker, secrets.token_hex(8))
        generation = Generation(log_dir, cluster, new)
    if generation.zookeeper_is_restored:
        generation.log_zookeeper()
    if names := waiting(cluster, broker):
        logger.error(
            "%s partitions have their only replica in %s, which was empty or put back from an older copy, and"
            " wait for an operator (%s%s): put back the newest copy if there is one, then run"
            " `millrace topics elect --unclean TOPIC-PARTITION --replica %s --reason WHY`",
            len(names),
            log_dir,
            ", ".join(names[:MAX_NAMED]),
            ", …" if len(names) > MAX_NAMED else "",
            broker,
        )
    try:
        generation.grow()
    except OSError as error:
        if error.errno not in _FULL or owner is None or owner.directory != generation.directory:
            raise MillraceError(f"cannot use the log directory {log_dir}: {error}") from error
        logger.warning("the generation of %s does not grow: %s", log_dir, error)  # a full disk is served
    return generation
