"""The checks of a follower on its leader's bytes before they become part of its log.

Each batch must be at the position that it states, follow the batch before it, be intact, and have an epoch
that this leader's log can hold. The functions are called by the receiving thread, and use no log.
"""

from __future__ import annotations

from millrace.errors import CorruptMessage
from millrace.records import LENGTH_OVERHEAD, BatchHeader, batch_crc
from millrace_broker.storage.chain import Chain


def whole_entries(
    data: memoryview, position: int, last_epoch: int, leader_epoch: int
) -> tuple[list[BatchHeader], int]:
    """Return the headers of the whole batches at the beginning of `data`, and the size of these batches.

    The rest may be cut off. A batch that needs a filler counts only together with its filler. `last_epoch` is
    the epoch of the batch before `position`. Raise CorruptMessage when the bytes cannot follow.
    """
    headers: list[BatchHeader] = []
    entries = size = 0
    chain, limit, epoch = Chain(position), position + len(data), last_epoch
    while (header := BatchHeader.parse(data, start := chain.position - position)) is not None:
        end = start + header.batch_length + LENGTH_OVERHEAD
        if start < end and position + end > limit:
            break  # cut off; if its length is damaged, the next try shows it
        if not chain.accepts(header, limit) or batch_crc(data[start:end]) != header.crc:
            raise CorruptMessage(f"the leader sent a damaged batch at position {chain.position}")
        if (stated := header.partition_leader_epoch) != epoch or epoch > leader_epoch:
            before, epoch = epoch, max(0, stated)
            if stated < -1 or not before <= epoch <= leader_epoch:
                raise CorruptMessage(f"epoch {stated} at position {chain.position} follows {before}")
        headers.append(header)
        chain.advance(header)
        if chain.filler_base is None:
            entries, size = len(headers), end
    return headers[:entries], size
