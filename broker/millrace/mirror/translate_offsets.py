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
from millrace.wire.reader import INT8, INT16, INT32, INT64, Reader, encoded

TRANSLATE_OFFSETS_VERSION = 0
MAX_OFFSETS = 1_000
"""In one request: each may read a MiB of headers."""
RETRY_SECONDS = 10.0
PAUSE_SECONDS = 0.2

_PARTITION = struct.Struct(">ii")
_RESULT = struct.Struct(">bq")


def encode_request(topic: str, partition: int, offsets: Sequence[int], *, to_origin: bool) -> bytes:
    """The body of a request."""
    head = INT8.pack(to_origin) + encoded(topic) + _PARTITION.pack(partition, len(offsets))
    return head + b"".join(map(INT64.pack, offsets))


def decode_request(body: Buffer) -> tuple[str, int, list[int], bool]:
    """(topic, partition, offsets, to_origin); InvalidRequest when it does not fit or asks too much."""
    reader = Reader("TranslateOffsets request", body)
    to_origin, topic = bool(reader.take(INT8)), reader.string()
    partition, count = reader.take_all(_PARTITION)
    if not 0 <= count <= MAX_OFFSETS:
        raise InvalidRequest(f"a TranslateOffsets request for {count} offsets; {MAX_OFFSETS} are allowed")
    offsets = [reader.take(INT64) for _ in range(count)]
    reader.end()
    return topic, partition, offsets, to_origin


def encode_response(results: Sequence[Translated], error: int = 0, message: str = "") -> bytes:
    """The body of a response."""
    parts = [_RESULT.pack(outcome, offset) for outcome, offset in results]
    return b"".join([INT16.pack(error), encoded(message), INT32.pack(len(results)), *parts])


def decode_response(body: Buffer) -> tuple[int, str, list[Translated]]:
    """(error, message, results); InvalidRequest when it does not fit, as when no Millrace broker sent it."""
    reader = Reader("TranslateOffsets response", body)
    error = reader.take(INT16)
    if len(body) == INT16.size:  # of a broker that does not know this API
        return error, "", []
    message = reader.string()
    pairs = [reader.take_all(_RESULT) for _ in range(reader.take(INT32))]
    try:
        return error, message, [Translated(Outcome(outcome), offset) for outcome, offset in pairs]
    except ValueError:
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
