"""The directory of all logs of one broker: locked, owned by one broker permanently, with one sub-directory
per partition.

    <log_dir>/lock                                    held by the broker that uses the directory
    <log_dir>/owner.json                              {"cluster_id": "millrace-dc1-<32 hex>", "broker_id": 1,
                                                       "directory": "<16 hex>", "generation": 7,
                                                       "zookeeper_restored": false}
    <log_dir>/<topic>-<partition>-<topic id, hex>/    one partition
    <log_dir>/....foreign-<time, ms>                  the log of a topic that no longer exists, or of a
                                                       partition that was moved away; never served
    <log_dir>/....deleted                             being removed

A partition is opened, and so recovered, at its first use. Only the cluster knows which directories are still
in use, and a log that cannot be recovered must not keep the others from being served. A log that was set
aside is deleted once the broker's own retention would have deleted its messages.

The first broker that uses the directory owns it. Any other broker is refused: it would not find its own logs,
create empty logs and set the existing logs aside. The owner itself would do the same after ZooKeeper was
wiped.

The directory's id is drawn once, and is stated in the broker's record in ZooKeeper. A broker that lost its
disk comes back with its number and another directory id, so the empty directory is not mistaken for the lost
one. The generation distinguishes the directory from an older copy of it
(`millrace_broker.partitions.generation`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from millrace.config import MAX_PRODUCER_IDS, LogConfig
from millrace.errors import MillraceError, StorageError
from millrace.records.topic_partition import TopicPartition
from millrace_broker.storage import sealed
from millrace_broker.storage.file_system import FileSystem
from millrace_broker.storage.partition_log import PartitionLog
from millrace_broker.storage.producer_state import ProducerLimit
from millrace_broker.storage.segment import remove_directory, sync_directory

logger = logging.getLogger("millrace.storage.log_directory")

LOCK_NAME = "lock"
OWNER_NAME = "owner.json"
CLOSING_THREADS = 8
"""Threads that close logs. Each waits for the syncs of a log's checkpoint."""
_FOREIGN_NAME = re.compile(r".+\.foreign-(?P<time>\d+)")
_PARTITION_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-(?P<topic_id>[0-9a-f]{32})")


def partition_name(topic: str, partition: int, topic_id: UUID) -> str:
    return f"{topic}-{partition}-{topic_id.hex}"


def parse_partition_name(name: str) -> tuple[str, int, UUID] | None:
    """Return (topic, partition, topic id) of a directory's name; None when it is no partition's name."""
    match = _PARTITION_NAME.fullmatch(name)
    return (match["topic"], int(match["partition"]), UUID(match["topic_id"])) if match else None


def lock_directory(path: Path) -> int:
    """Lock a log directory; the descriptor holds the lock.

    Raise MillraceError when another process has it.
    """
    try:
        fd = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MillraceError(f"cannot use the log directory {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise MillraceError(
            f"log directory {path} is in use by another broker (process {holder}): "
            "stop it or choose another directory"
        ) from None
    with contextlib.suppress(OSError):  # it only names the lock's holder; a full disk must not keep us out
        os.truncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


@dataclass(frozen=True, slots=True)
class Owner:
    """Contents of owner.json."""

    cluster_id: str
    broker_id: int
    directory: str = ""
    """The directory's id; "" if a version without ids created the directory."""
    generation: int = 0
    """Number that the broker counts up; 0 if a version without generations created the directory."""
    zookeeper_restored: bool = False
    """True after ZooKeeper was found restored, until every replica here has reported its log."""


def read_owner(log_dir: Path, cluster_id: str, broker_id: int) -> Owner | None:
    """Return the owner of the locked directory, or None while it has none.

    Raise MillraceError when the directory belongs to another broker.
    """
    path = log_dir / OWNER_NAME
    try:
        owner = Owner(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MillraceError(f"cannot use the log directory {log_dir}: {error}") from error
    except (ValueError, TypeError):
        raise MillraceError(
            f"{path} is unreadable: restore it from any copy (without it the directory counts as empty)"
        ) from None
    if (owner.cluster_id, owner.broker_id) != (cluster_id, broker_id):
        raise MillraceError(
            f"log directory {log_dir} belongs to broker {owner.broker_id} of cluster {owner.cluster_id}, this"
            f" is broker {broker_id} of {cluster_id}: if ZooKeeper was wiped restore its data, else give"
            " another log_dir"
        )
    return owner


def write_owner(log_dir: Path, owner: Owner) -> None:
    """Replace owner.json. On return, the file survives a power cut.

    Raise OSError when the disk refuses it.
    """
    sealed.replace_file(log_dir / OWNER_NAME, json.dumps(asdict(owner)).encode())
    sync_directory(log_dir)


def _make_directory(path: Path) -> None:
    """Create a directory and its missing parents. Their names survive a power cut."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


class LogDirectory:
    """Every partition log of one broker."""

    def __init__(
        self,
        path: Path,
        config: LogConfig,
        clock: Callable[[], float],
        lock_fd: int,
        max_producer_ids: int = MAX_PRODUCER_IDS,
    ) -> None:
        self.path = path
        self.config = config
        self.clock = clock
        self._lock_fd = lock_fd
        self.file_system = FileSystem(path, lock_fd)
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._ids: dict[TopicPartition, tuple[UUID, ...]] = {}
        """Topic ids of each partition's directories: usually one."""
        self._aside: dict[Path, int] = {}
        """Time at which each log was set aside, in ms."""
        self._producer_limit = ProducerLimit(max_producer_ids)
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls,
        path: Path,
        config: LogConfig,
        clock: Callable[[], float],
        max_producer_ids: int = MAX_PRODUCER_IDS,
    ) -> LogDirectory:
        """Open or create the log directory. Raise MillraceError when another broker holds its lock."""
        try:
            _make_directory(path)
        except OSError as error:
            raise MillraceError(f"cannot create the log directory {path}: {error.strerror}") from error
        directory = cls(path, config, clock, lock_directory(path), max_producer_ids)
        try:
            for doomed in path.glob("*.deleted"):
                remove_directory(doomed)
            directory._look()
        except OSError as error:
            raise MillraceError(f"cannot use the log directory {path}: {error}") from error
        return directory

    def _look(self) -> None:
        """List the directories once. A listing for each of thousands of partitions would take too long."""
        for path in self.path.iterdir():
            if (parsed := parse_partition_name(path.name)) is not None:
                self._ids[parsed[:2]] = (*self._ids.get(parsed[:2], ()), parsed[2])
            elif (foreign := _FOREIGN_NAME.fullmatch(path.name)) is not None:
                self._aside[path] = int(foreign["time"])

    @property
    def on_disk(self) -> list[tuple[str, int, UUID]]:
        """Every partition that has a directory, as (topic, partition, topic id)."""
        return [(*partition, topic_id) for partition, ids in self._ids.items() for topic_id in ids]

    def partition(
        self,
        topic: str,
        partition: int,
        topic_id: UUID,
        config: LogConfig | None = None,
        *,
        is_replica: bool = False,
    ) -> PartitionLog:
        """Return the partition's log, opened or created. A log of an earlier topic of the same name is set
        aside.

        Several threads may open different partitions at once; no other thread may open or delete this
        partition. Recovery takes as long as reading what was written in the seconds before a crash. Raise
        StorageError when the disk refuses it now. Raise MillraceError when the log lost bytes that were on
        the disk.
        """
        key = (topic, partition)
        directory = self.path / partition_name(topic, partition, topic_id)
        with self._lock:
            opened = self._logs.get(key)
            if opened is not None and opened.directory == directory:
                return opened
            if opened is not None:
                opened.close()
                del self._logs[key]
            for foreign in [other for other in self._ids.get(key, ()) if other != topic_id]:
                try:
                    self.set_aside(topic, partition, foreign)
                except OSError as error:
                    raise StorageError(
                        f"{directory}: cannot set aside the log of the deleted topic of this name: {error}"
                    ) from error
            self._ids[key] = (topic_id,)
        opened = PartitionLog(
            directory,
            config or self.config,
            self.clock,
            producer_limit=self._producer_limit,
            is_replica=is_replica,
        )
        with self._lock:
            self._logs[key] = opened
        return opened

    def set_aside(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Set aside the log of a topic that no longer exists, before another log is opened in its place."""
        self._set_aside(topic, partition, topic_id, "belongs to a topic that no longer exists")

    def set_unreadable_aside(self, topic: str, partition: int, topic_id: UUID) -> None:
        """Set aside a log that cannot be opened, before another log is opened in its place."""
        self._set_aside(topic, partition, topic_id, "cannot be opened")

    def shut(self, topic: str, partition: int) -> None:
        """Close an open log. Its files stay where they are. For a thread."""
        with self._lock:
            opened = self._logs.pop((topic, partition), None)
        if opened is not None:
            opened.close()

    def set_open_aside(self, topic: str, partition: int, why: str) -> None:
        """Close an open log and set it aside. `why` follows its name in the broker's log. For a thread."""
        self.shut(topic, partition)
        with self._lock:
            topic_ids = self._ids.get((topic, partition), ())
        for topic_id in topic_ids:
            self._set_aside(topic, partition, topic_id, why)

    def _set_aside(self, topic: str, partition: int, topic_id: UUID, why: str) -> None:
        path, now = self.path / partition_name(topic, partition, topic_id), int(self.clock() * 1000)
        aside = path.with_name(f"{path.name}.foreign-{now}")
        with self._lock:
            with contextlib.suppress(FileNotFoundError):  # a full disk prevented its creation
                path.rename(aside)
                self._aside[aside] = now
                logger.warning("%s %s; set aside as %s", path, why, aside.name)
            self._ids[topic, partition] = tuple(
                other for other in self._ids[topic, partition] if other != topic_id
            )

    def delete_expired(self) -> None:
        """Delete the logs that were set aside longer ago than the broker's retention; for a thread."""
        if self.config.retention_ms is None:
            return
        kept_since = self.clock() * 1000 - self.config.retention_ms
        for path in [path for path, since in list(self._aside.items()) if since < kept_since]:
            logger.info("deleting %s: set aside longer ago than retention", path)
            try:
                with contextlib.suppress(FileNotFoundError):  # already deleted by hand
                    remove_directory(path)
            except OSError as error:
                logger.error("cannot delete %s: %s", path, error.strerror)
            else:
                self._aside.pop(path, None)

    def delete(self, topic: str, partition: int) -> None:
        """Delete an open partition and its files; do nothing when it is not open. For a thread."""
        with self._lock:
            opened = self._logs.pop((topic, partition), None)
            if opened is not None:
                del self._ids[topic, partition]
        if opened is not None:
            opened.delete()

    def close(self) -> None:
        """Close every log cleanly, in parallel, and give up the lock; no log may be opened any more."""
        with ThreadPoolExecutor(CLOSING_THREADS, thread_name_prefix="close") as threads:
            closing = [threads.submit(opened.close) for opened in self._logs.values()]
        self._logs.clear()
        os.close(self._lock_fd)
        for closed in closing:
            closed.result()
