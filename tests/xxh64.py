"""Messages with a chosen XXH64, which has no key and can be computed backwards.

Eight bytes after the last whole block of 32 bytes are free. Two states determine them: the state before them,
computed forwards from the start, and the state after them, computed backwards from the wanted hash.
"""

from __future__ import annotations

from collections.abc import Callable

from xxhash import xxh64_intdigest

_BITS = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def forged(message_of: Callable[[str], bytes], hash_: int, seed: int = 0) -> bytes:
    """Return a message `message_of(text)` with the given XXH64; the text is of visible ASCII characters."""
    for number in range(1_000_000):
        text = f"{number:07}{'x' * (24 + number % 32)}"
        message = message_of(text)
        place = _place_in(message, text.encode())
        if place is None:
            continue
        free = _free_bytes(message, place, hash_, seed)
        if all(0x21 <= byte < 0x7F for byte in free):
            found = message[:place] + free + message[place + 8 :]
            assert xxh64_intdigest(found, seed) == hash_
            return found
    raise AssertionError("no text gives a message with that hash")


def _place_in(message: bytes, text: bytes) -> int | None:
    """Return the first position of eight free bytes in the text, or None."""
    at = message.index(text)
    places = range(len(message) - len(message) % 32, len(message) - 7, 8)
    return next((place for place in places if at <= place <= at + len(text) - 8), None)


def _free_bytes(message: bytes, place: int, hash_: int, seed: int) -> bytes:
    before = _start(message, seed)
    for at in range(len(message) - len(message) % 32, place, 8):
        before = (_rotl(before ^ _round(_lane(message, at)), 27) * _P1 + _P4) & _BITS
    behind = _back_to(message, place + 8, hash_)
    round_ = _rotr((behind - _P4) * _inverse(_P1) & _BITS, 27) ^ before
    lane = _rotr(round_ * _inverse(_P1) & _BITS, 31) * _inverse(_P2) & _BITS
    return lane.to_bytes(8, "little")


def _start(message: bytes, seed: int) -> int:
    """Return the state after the last whole block of 32 bytes of a message."""
    if len(message) < 32:
        return seed + _P5 + len(message) & _BITS
    sums = [seed + _P1 + _P2 & _BITS, seed + _P2 & _BITS, seed, seed - _P1 & _BITS]
    for at in range(0, len(message) - 31, 32):
        sums = [_round(_lane(message, at + 8 * n), each) for n, each in enumerate(sums)]
    state = sum(_rotl(each, by) for each, by in zip(sums, (1, 7, 12, 18), strict=True)) & _BITS
    for each in sums:
        state = ((state ^ _round(each)) * _P1 + _P4) & _BITS
    return state + len(message) & _BITS


def _back_to(message: bytes, place: int, hash_: int) -> int:
    """Return the state at `place` for the given hash; `place` is a multiple of 8 bytes after the blocks."""
    state = hash_ ^ hash_ >> 32
    state = state * _inverse(_P3) & _BITS
    state ^= state >> 29 ^ state >> 58
    state = state * _inverse(_P2) & _BITS
    state ^= state >> 33
    steps, at = [], place
    while at < len(message):
        size = next(size for size in (8, 4, 1) if at + size <= len(message))
        steps.append((size, int.from_bytes(message[at : at + size], "little")))
        at += size
    for size, value in reversed(steps):
        if size == 8:
            state = _rotr((state - _P4) * _inverse(_P1) & _BITS, 27) ^ _round(value)
        elif size == 4:
            state = _rotr((state - _P3) * _inverse(_P2) & _BITS, 23) ^ (value * _P1 & _BITS)
        else:
            state = _rotr(state * _inverse(_P1) & _BITS, 11) ^ (value * _P5 & _BITS)
    return state


def _lane(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 8], "little")


def _round(lane: int, total: int = 0) -> int:
    return _rotl((total + lane * _P2) & _BITS, 31) * _P1 & _BITS


def _rotl(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _BITS


def _rotr(value: int, by: int) -> int:
    return _rotl(value, 64 - by)


def _inverse(odd: int) -> int:
    return pow(odd, -1, 1 << 64)
