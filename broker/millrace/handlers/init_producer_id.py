"""InitProducerId, v0 and v1: a random id for an idempotent producer.

Random, because a counter per broker would give two producers the same id, and the de-duplication of their
batches would drop real messages. Left out: transactional ids, which are refused.
"""

from __future__ import annotations

import secrets

from millrace.errors import ErrorCode
from millrace.handlers.table import Call, message_api
from millrace.wire.messages import ApiKey, InitProducerIdRequest, InitProducerIdResponse


def init_producer_id(call: Call[InitProducerIdRequest]) -> InitProducerIdResponse:
    """Draw an id, unless the producer wants transactions."""
    if call.request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return InitProducerIdResponse(
        error_code=ErrorCode.NONE, producer_id=secrets.randbits(63), producer_epoch=0
    )


INIT_PRODUCER_ID = message_api(ApiKey.INIT_PRODUCER_ID, range(2), InitProducerIdRequest, init_producer_id)
