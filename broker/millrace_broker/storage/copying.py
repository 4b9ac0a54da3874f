"""What a follower checks of its leader's bytes before they become part of its log.

Everything: that each batch stands where it says, follows the one before it, is intact, and is of an epoch
that a leader of this one can have. For the thread that receives; knows no log.
"""

from __future__ import annotations

from millrace.errors import CorruptMessage
from millrace.records import BatchHeader, batch_crc
from millrace_broker.storage.chain import Chain


def whole_entries(
    data: memoryview, position: int, last_epoch: int, leader_epoch: int
) -> tuple[list[BatchHeader], int]:
    """The headers of the whole batches that `data` begins with, and their bytes; the rest may be cut off.

    A batch that must have a filler counts with it only. `last_epoch` is that of the batch before `position`.
    CorruptMessage when what is there cannot follow.
    """
    headers: list[BatchHeader] = []
    entries = size = 0
    chain, limit, epoch = Chain(position), position + len(data), last_epoch
    while (header := BatchHeader.parse(data, start := chain.position - position)) is not None:
        end = start + header.size
        if start < end and chain.position + header.size > limit:
            break  # cut off; if its length is damaged, the next try shows it
        if not chain.accepts(header, limit) or batch_crc(data[start:end]) != header.crc:
            raise CorruptMessage(f"the leader sent a damaged batch at position {chain.position}")
        before, stated = epoch, header.partition_leader_epoch
        epoch = max(0, stated)
        if stated < -1 or not before <= epoch <= leader_epoch:
            raise CorruptMessage(f"epoch {stated} at position {chain.position} follows {before}")
        headers.append(header)
        chain.advance(header)
        if chain.filler_base is None:
            entries, size = len(headers), end
    return headers[:entries], size
