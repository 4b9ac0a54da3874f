"""Promises that clients got, and a check that the broker keeps them.

A promise is one (partition, offset, value): a delivery report of an acks=all producer or a record that a
consumer was shown. A promise is for ever: the offset never stands for another message, and never vanishes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from millrace.client.cluster_client import EARLIEST, LATEST, ClusterClient
from millrace.errors import ErrorCode
from millrace.records import iter_records, split_batches

Found = dict[int, bytes]
"""Offset -> value, in the order of the log."""


class Ledger:
    """Every promise of one topic; `tell` may be called from any thread."""

    def __init__(self, topic: str, *, expires: bool = False) -> None:
        """`expires`: the topic's retention may take the oldest messages, nothing else."""
        self.topic = topic
        self._expires = expires
        self.broken: list[str] = []
        """Reports that contradict an earlier promise."""
        self._promises: dict[int, Found] = {}
        self._marks: dict[int, int] = {}
        self._lock = threading.Lock()

    def tell(self, partition: int, offset: int, value: bytes, by: str) -> None:
        """Note a promise; one that contradicts another goes to `broken`."""
        with self._lock:
            known = self._promises.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            self.broken.append(f"{by}: {self.topic}-{partition} offset {offset} is {value!r}, was {known!r}")

    @property
    def count(self) -> int:
        """Promises made so far."""
        with self._lock:
            return sum(map(len, self._promises.values()))

    def values(self, partition: int) -> set[bytes]:
        """Every value that was promised in a partition."""
        with self._lock:
            return set(self._promises.get(partition, {}).values())

    def check(self, client: ClusterClient, partitions: Iterable[int], where: str) -> Mapping[int, Found]:
        """Read every partition and compare it with all that was ever promised; what is read is promised, too.

        `where` names the moment for the failure's message. A promise made meanwhile counts the next time.
        """
        read = {}
        for partition in partitions:
            with self._lock:
                promised = dict(self._promises.get(partition, {}))
            mark = client.list_offsets(self.topic, LATEST, [partition])[partition]
            assert mark >= self._marks.get(partition, 0), f"{where}: the high watermark went back"
            self._marks[partition] = mark
            found = read[partition] = read_all(client, self.topic, partition, mark)
            start = client.list_offsets(self.topic, EARLIEST, [partition])[
                partition
            ]  # may have moved meanwhile
            assert start == 0 or self._expires, f"{where}: the log begins at {start}"
            kept = {offset: value for offset, value in promised.items() if offset >= start}
            wrong = {
                offset: found.get(offset) for offset, value in kept.items() if found.get(offset) != value
            }
            if wrong:
                offset = min(wrong)
                raise AssertionError(
                    f"{where}: {len(wrong)} of {len(kept)} promises of {self.topic}-{partition} are "
                    f"broken, first offset {offset}: promised {promised[offset]!r}, found {wrong[offset]!r}; "
                    f"the log is {start} to {mark}, what was read begins at {min(found, default=None)}"
                )
            for offset, value in found.items():
                self.tell(partition, offset, value, where)
        assert not self.broken, f"{where}: {self.broken[0]}"
        return read


def read_all(client: ClusterClient, topic: str, partition: int, end: int) -> Found:
    """Offset -> value of every record below `end`; a partition that gives nothing before it is an error."""
    offset = client.list_offsets(topic, EARLIEST, [partition])[partition]
    found: Found = {}
    while offset < end:
        answer = client.fetch(topic, {partition: offset}, max_bytes=8 << 20, max_wait_ms=0)[partition]
        start = client.list_offsets(topic, EARLIEST, [partition])[partition]
        if answer.error == ErrorCode.OFFSET_OUT_OF_RANGE and start > offset:
            offset = start  # retention was faster
            continue
        assert answer.error == 0, f"{topic}-{partition} answers error {answer.error} at {offset}"
        before = offset
        for header, batch in split_batches(answer.records):
            if header.next_offset > offset and not header.is_control:
                for record in iter_records(header, batch):
                    if record.offset >= offset:
                        assert record.value is not None
                        found[record.offset] = bytes(record.value)
            offset = max(offset, header.next_offset)
        assert offset > before, f"{topic}-{partition} gives nothing at {before}, its end is {end}"
    return found
