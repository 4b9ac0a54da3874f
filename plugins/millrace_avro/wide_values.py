"""Converts decimals of any length, many at a time, to two words each."""

from __future__ import annotations

import numpy as np

from millrace.records.row_cursor import Longs, Mask, PaddedBuffer, Words

_WORD_BITS = 64
_MOST = (1 << 128) - 1


def decimal_words(buffer: PaddedBuffer, start: Longs, end: Longs) -> Words:
    """Convert big-endian two's complement numbers of any length to rows (low, high), Arrow's decimal128.

    A number of more than 128 bits becomes the largest possible number, which no precision allows.
    """
    size = end - start
    low = _tail(buffer, end, np.minimum(size, 8))
    high = np.where(size > 8, _tail(buffer, end - 8, np.clip(size - 8, 1, 8)), low >> (_WORD_BITS - 1))
    words = np.stack([low, high], axis=1).view(np.uint64)
    for row in np.flatnonzero(size > 16).tolist():  # unusual padding, but allowed
        value = int.from_bytes(buffer.bytes[start[row] : end[row]].tobytes(), "big", signed=True)
        if not -(1 << 127) <= value < 1 << 127:
            value = (1 << 127) - 1
        words[row] = (value & (_MOST >> _WORD_BITS), (value & _MOST) >> _WORD_BITS)
    return words


def _tail(buffer: PaddedBuffer, end: Longs, size: Longs) -> Longs:
    """Return the last `size` (0 to 8) bytes before `end` as a signed number."""
    word: Longs = buffer.words8[end - 8].byteswap().view(np.int64)
    shift = _WORD_BITS - 8 * np.maximum(size, 1)
    return np.where(size > 0, (word << shift) >> shift, 0)


def fits_precision(words: Words, precision: int) -> Mask:
    """Return a mask that is True for the numbers of at most `precision` digits."""
    low, high = words[:, 0], words[:, 1]
    negative = high >> np.uint64(63) == 1
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    limit_high, limit_low = divmod(10**precision, 1 << 64)
    fits: Mask = (high < limit_high) | ((high == limit_high) & (low < limit_low))
    return fits
