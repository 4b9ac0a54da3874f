"""InitProducerId, v0 and v1: a random id for an idempotent producer.

Random, because a counter per broker would give two producers the same id, and the de-duplication of their
batches would drop real messages. Left out: transactional ids, which are refused.
"""

from __future__ import annotations

import secrets

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey, InitProducerIdRequest, InitProducerIdResponse


def handle(broker: Broker, request: Request) -> None:
    """Draw an id, unless the producer wants transactions."""
    asked = decode(InitProducerIdRequest, ApiKey.INIT_PRODUCER_ID, request.api_version, request.body)
    if asked.transactional_id is None:
        response = InitProducerIdResponse(
            error_code=ErrorCode.NONE, producer_id=secrets.randbits(63), producer_epoch=0
        )
    else:
        response = InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    request.answer([encode(response, ApiKey.INIT_PRODUCER_ID, request.api_version)])


INIT_PRODUCER_ID = Api(
    key=ApiKey.INIT_PRODUCER_ID, versions=frozenset(range(2)), advertised=(0, 1), handle=handle
)
