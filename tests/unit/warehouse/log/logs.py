"""A partition's log in memory that answers fetches as a broker does, for reading without a process."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from millrace.client.cluster_client import ClusterClient, FetchedPartition, TopicMetadata
from millrace.errors import ErrorCode
from millrace.records import BatchHeader, Message, build_batch, control_batch, filler_after
from millrace.records.compression import Codec

TOPIC_ID = UUID(int=7)


@dataclass
class MemoryLog(ClusterClient):
    """Batches whose base offsets are byte positions; also the client that fetches them.

    A fetch gives whole batches from the one that holds the offset or follows it, at least one, and ends
    before control batches that follow the last data batch.
    """

    batches: list[bytes] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    fetches: int = 0
    aborted: tuple[tuple[int, int], ...] = ()
    early: int = 0
    """Batches before the one asked for that an answer begins with."""

    @property
    def end(self) -> int:
        """The position of the next batch."""
        last = self.headers[-1] if self.batches else None
        if last is None:
            return self.log_start
        return (
            last.next_offset if last.is_control and last.last_offset_delta else last.base_offset + last.size
        )

    @property
    def headers(self) -> list[BatchHeader]:
        """Every batch's header."""
        return [header for raw in self.batches if (header := BatchHeader.parse(raw)) is not None]

    def append(self, messages: Sequence[Message], codec: Codec = Codec.NONE) -> None:
        """A data batch, and the filler if it has more records than bytes."""
        raw = build_batch(messages, codec=codec, base_offset=self.end)
        header = BatchHeader.parse(raw)
        assert header is not None
        self.batches.append(raw)
        self.high_watermark = header.next_offset
        if (filler := filler_after(header, timestamp=0)) is not None:
            self.batches.append(filler)

    def append_control(self, value: bytes) -> None:
        """A control batch."""
        self.batches.append(control_batch(self.end, value, timestamp=0))

    def expire(self, count: int) -> None:
        """Forget the first batches."""
        del self.batches[:count]
        self.log_start = self.headers[0].base_offset

    def topic(self, name: str) -> TopicMetadata:
        return TopicMetadata(name, TOPIC_ID, {0: 1})

    def fetch(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_bytes: int,
        max_wait_ms: int,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        last_epochs: Mapping[int, int] | None = None,
    ) -> dict[int, FetchedPartition]:
        """Return the answer that a broker would give."""
        ((partition, offset),) = offsets.items()
        self.fetches += 1
        if not self.log_start <= offset <= self.high_watermark:
            return {partition: self._answer(b"", ErrorCode.OFFSET_OUT_OF_RANGE)}
        headers = self.headers
        first = bisect.bisect_left(headers, offset + 1, key=lambda header: header.next_offset)
        first = max(0, first - self.early)
        visible = next((i + 1 for i in reversed(range(len(headers))) if not headers[i].is_control), 0)
        chosen = bytearray()
        for raw in self.batches[first:visible]:
            if chosen and len(chosen) + len(raw) > max_bytes:
                chosen += raw[: max_bytes - len(chosen)]  # a broker may cut the last batch
                break
            chosen += raw
        return {partition: self._answer(bytes(chosen))}

    def _answer(self, records: bytes, error: int = 0) -> FetchedPartition:
        end = self.high_watermark
        return FetchedPartition(error, end, end, self.log_start, memoryview(records), self.aborted)


def made_log(seed: int, batches: int = 60) -> MemoryLog:
    """Data batches of all sizes and codecs, control batches and fillers between them."""
    dice, log = random.Random(seed), MemoryLog()
    sent = 0
    for _ in range(batches):
        kind = dice.randrange(8)
        if kind == 0:
            log.append_control(dice.randbytes(dice.randrange(300)))
        elif kind == 1:
            count = dice.choice((200, 3000))  # more records than bytes
            log.append([Message(0, None, b"") for _ in range(count)], Codec.ZSTD)
            sent += count
        else:
            count = dice.randint(1, 20)
            log.append([Message(n, None, b"%d" % (sent + n)) for n in range(count)], dice.choice(list(Codec)))
            sent += count
    log.append([Message(0, None, b"the last")])
    return log
