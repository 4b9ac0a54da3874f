"""The faults of a carrier, wherever it stands: what becomes of a row of whole batches, CRCs made right.

Pure: batches in, batches out. The first four are alike: ten messages each, of the same size, without
compression. Knows neither logs nor mirrors nor loads; each of them puts these functions where it carries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from millrace.records import HEADER_BYTES, BatchHeader, batch_crc
from millrace.records.header import CRC, CRC_AT

Batches = list[bytes]
BATCH = 10
"""Messages in each."""
_URL = re.compile(rb"/page/\d{4}")


def url(sequence: int) -> str:
    """Return an event's own field; of one length, for equal batches."""
    return f"/page/{sequence:04d}"


def drop(batches: Sequence[bytes]) -> Batches:
    """Messages 10 to 19 are gone."""
    return [*batches[:1], *batches[2:]]


def repeat(batches: Sequence[bytes]) -> Batches:
    """Messages 10 to 19 are there twice."""
    return [*batches, batches[1]]


def drop_and_repeat(batches: Sequence[bytes]) -> Batches:
    """Messages 20 to 29 stand in the place of 10 to 19: there are as many as before."""
    return [batches[0], batches[2], *batches[2:]]


def swap(batches: Sequence[bytes]) -> Batches:
    """Messages 10 and 20 have each other's content; every header stays."""
    first, second = (_first_url(batch) for batch in batches[1:3])
    return [
        batches[0],
        sealed(batches[1].replace(first, second, 1)),
        sealed(batches[2].replace(second, first, 1)),
        *batches[3:],
    ]


def alter(batches: Sequence[bytes]) -> Batches:
    """The content of message 10 is another."""
    found = _first_url(batches[1])
    return [batches[0], sealed(batches[1].replace(found, b"/else/0000", 1)), *batches[2:]]


def reorder(batches: Sequence[bytes]) -> Batches:
    """Messages 20 to 29 stand before 10 to 19."""
    return [batches[0], batches[2], batches[1], *batches[3:]]


EDITS: Mapping[str, Callable[[Sequence[bytes]], Batches]] = {
    each.__name__: each for each in (drop, repeat, drop_and_repeat, swap, alter, reorder)
}
NEEDED = 4
"""Batches that must be there before one of these can be done."""


def _first_url(batch: bytes) -> bytes:
    found = _URL.search(batch, HEADER_BYTES)
    assert found is not None, f"no event of this test in the batch at {BatchHeader.of(batch).base_offset}"
    return found[0]


def sealed(batch: bytes) -> bytes:
    """The batch with the CRC that fits it."""
    whole = bytearray(batch)
    CRC.pack_into(whole, CRC_AT, batch_crc(whole))
    return bytes(whole)
