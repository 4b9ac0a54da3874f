"""Damage to the files of a partition's log while its broker is stopped, as a disk or a thief does it.

What is written with right CRCs is a log that its broker takes for its own. Knows files, no audit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from millrace.records import MIN_CONTROL_BYTES, BatchHeader, control_batch_of_size, split_batches
from millrace.records.header import STAMP
from millrace_broker.storage.segment import segment_paths


def edit(folder: Path, change: Callable[[Sequence[bytes]], list[bytes]]) -> None:
    """Rewrite the only segment with other batches, each stamped with where it stands now.

    Where that is shorter it is filled up before the last batch: no log may end before it was flushed to.
    """
    (path,) = segment_paths(folder)
    content = path.read_bytes()
    batches = change([bytes(batch) for _, batch in split_batches(content)])
    if (room := len(content) - sum(map(len, batches))) > 0:
        assert room >= MIN_CONTROL_BYTES, f"{room} bytes are left, which no batch can fill"
        filler = control_batch_of_size(0, room, timestamp=BatchHeader.of(batches[-1]).max_timestamp)
        batches.insert(-1, filler)
    written = bytearray()
    for batch in batches:
        header = BatchHeader.of(batch)
        stamp = STAMP.pack(int(path.stem) + len(written), header.batch_length, header.partition_leader_epoch)
        written += stamp + batch[STAMP.size :]
    path.write_bytes(written)


def flip_bit(folder: Path, batch: int) -> None:
    """One bit of a message in that batch of messages of the first segment; its CRC stays."""
    path = segment_paths(folder)[0]
    content = bytearray(path.read_bytes())
    headers = [header for header, _ in split_batches(bytes(content)) if not header.is_control]
    content[headers[batch].base_offset - int(path.stem) + headers[batch].size - 20] ^= 1
    path.write_bytes(content)


def cut(folder: Path, batch: int) -> None:
    """The first segment ends in the middle of that batch."""
    path = segment_paths(folder)[0]
    content = path.read_bytes()
    headers = [header for header, _ in split_batches(content)]
    path.write_bytes(content[: headers[batch].base_offset - int(path.stem) + headers[batch].size // 2])


def delete_all_but_the_last(folder: Path) -> None:
    """Delete all segments but the last, as retention does, at once and whatever was read."""
    for _ in segment_paths(folder)[:-1]:
        delete_segment(folder, 0)


def delete_segment(folder: Path, index: int) -> None:
    """One of the segments, with its landmarks."""
    path = segment_paths(folder)[index]
    for each in folder.glob(f"{path.stem}.*"):
        each.unlink()
