"""TranslateOffsets, v0, never advertised: offsets of a mirror led here into its origin's, and back.

Answers from what is visible. Reads files, so it runs in a thread. An ordinary partition is refused,
and so is a client that may not administer the cluster.
"""

from __future__ import annotations

import logging

from millrace.broker.broker import Broker
from millrace.errors import BrokerError, ErrorCode, PolicyViolation
from millrace.handlers.table import Api, answer_from_thread
from millrace.mirror.offset_search import translate
from millrace.mirror.translate_offsets import (
    TRANSLATE_OFFSETS_VERSION,
    decode_request,
    encode_response,
)
from millrace.server.request import Request
from millrace.wire.messages import ApiKey

log = logging.getLogger(__name__)


def handle(broker: Broker, request: Request) -> None:
    """Translate, or say in the answer why not."""
    body, client = bytes(request.body), request.client.address

    def work() -> bytes:
        try:
            broker.check_administrator(client)
            topic, number, offsets, to_origin = decode_request(body)
            partition = broker.partition(topic, number)
            if not partition.mirrored:
                raise PolicyViolation(f"{partition.name} is no mirror: its offsets are its own")
            found = [translate(lambda: partition.log.snapshot, each, to_origin=to_origin) for each in offsets]
            return encode_response(found)
        except BrokerError as error:
            return encode_response((), error.code, str(error)[:1000])
        except OSError as error:
            log.error("cannot translate offsets: %s", error)
            return encode_response(
                (), ErrorCode.STORAGE_ERROR, f"its leader cannot read it: {error.strerror}"
            )

    answer_from_thread(broker.in_look_up_thread, request, work)


TRANSLATE_OFFSETS = Api(
    key=ApiKey.TRANSLATE_OFFSETS, versions=frozenset({TRANSLATE_OFFSETS_VERSION}), advertised=None,
    handle=handle,
)  # fmt: skip
