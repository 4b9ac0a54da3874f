"""TranslateOffsets v0, laid out by hand: Millrace's own API for the offsets of a mirror and its origin.

API key 10001, never advertised. Sent to the leader of the mirrored partition.

    request  := to_origin int8, topic string, partition int32, [offset int64]
    response := error int16, message string, [outcome int8, offset int64]       in the request's order
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from millrace.client.cluster_client import ClusterClient
from millrace.client.errors import TryAgain, raise_error
from millrace.errors import ErrorCode, InvalidRequest, MillraceError
from millrace.mirror.offset_search import Outcome, Translated
from millrace.records.compression import Buffer
from millrace.wire.messages import ApiKey

TRANSLATE_OFFSETS_VERSION = 0
MAX_OFFSETS = 1_000
"""In one request: each may read a MiB of headers."""
RETRY_SECONDS = 10.0
PAUSE_SECONDS = 0.2

_HEAD = struct.Struct(">bh")
_TAIL = struct.Struct(">ii")
_CODE = struct.Struct(">h")
_ERROR = struct.Struct(">hh")
_COUNT = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_RESULT = struct.Struct(">bq")


def encode_request(topic: str, partition: int, offsets: Sequence[int], *, to_origin: bool) -> bytes:
    """The body of a request."""
    name = topic.encode()
    head = _HEAD.pack(to_origin, len(name)) + name + _TAIL.pack(partition, len(offsets))
    return head + b"".join(map(_OFFSET.pack, offsets))


def decode_request(body: Buffer) -> tuple[str, int, list[int], bool]:
    """(topic, partition, offsets, to_origin); InvalidRequest when it does not fit or asks too much."""
    view = memoryview(body)
    try:
        to_origin, length = _HEAD.unpack_from(view)
        end = _HEAD.size + max(0, length)
        topic = str(view[_HEAD.size : end], "utf-8")
        partition, count = _TAIL.unpack_from(view, end)
        offsets = view[end + _TAIL.size :]
        if not 0 <= count <= MAX_OFFSETS or len(offsets) != count * _OFFSET.size:
            raise InvalidRequest(f"a TranslateOffsets request for {count} offsets; {MAX_OFFSETS} are allowed")
    except (struct.error, UnicodeDecodeError):
        raise InvalidRequest("a TranslateOffsets request is malformed") from None
    return topic, partition, [offset for (offset,) in _OFFSET.iter_unpack(offsets)], bool(to_origin)


def encode_response(results: Sequence[Translated], error: int = 0, message: str = "") -> bytes:
    """The body of a response."""
    text = message.encode()
    parts = [_RESULT.pack(outcome, offset) for outcome, offset in results]
    return b"".join([_ERROR.pack(error, len(text)), text, _COUNT.pack(len(results)), *parts])


def decode_response(body: Buffer) -> tuple[int, str, list[Translated]]:
    """(error, message, results); InvalidRequest when it does not fit, as when no Millrace broker sent it."""
    view = memoryview(body)
    try:
        if len(view) == _CODE.size:  # of a broker that does not know this API
            return _CODE.unpack(view)[0], "", []
        error, length = _ERROR.unpack_from(view)
        end = _ERROR.size + max(0, length)
        message = str(view[_ERROR.size : end], "utf-8")
        (count,) = _COUNT.unpack_from(view, end)
        pairs = [_RESULT.unpack_from(view, end + _COUNT.size + i * _RESULT.size) for i in range(count)]
        return error, message, [Translated(Outcome(outcome), offset) for outcome, offset in pairs]
    except (struct.error, UnicodeDecodeError, ValueError):
        raise InvalidRequest("a TranslateOffsets response is malformed") from None


def translate(
    client: ClusterClient, topic: str, partition: int, offsets: Sequence[int], *, to_origin: bool
) -> list[Translated]:
    """What the offsets of a mirrored partition, or of its origin, are on the other side, in their order."""
    body = encode_request(topic, partition, offsets, to_origin=to_origin)
    give_up_at = time.monotonic() + RETRY_SECONDS
    while True:
        leader = client.topic(topic).partitions.get(partition, -1)
        try:
            if leader < 0:
                raise TryAgain(f"nobody leads {topic}-{partition} on {client.bootstrap}")
            raw = client.ask(leader, ApiKey.TRANSLATE_OFFSETS, TRANSLATE_OFFSETS_VERSION, body)
            error, message, results = decode_response(raw)
            if error == ErrorCode.UNSUPPORTED_VERSION:
                raise MillraceError(
                    f"{client.bootstrap} is no Millrace cluster: only those translate offsets"
                )
            raise_error(error, f"{topic}-{partition}", message)
            return results
        except TryAgain as again:
            if time.monotonic() > give_up_at:
                raise MillraceError(f"{again} (gave up after {RETRY_SECONDS:g} s)") from None
            time.sleep(PAUSE_SECONDS)
