"""FindCoordinator, v0 to v2: there are no consumer groups yet, so there is no coordinator.

It is here because librdkafka takes a broker without it for one too old for LZ4. A client with a group id
that assigns its partitions itself works; one that subscribes waits. Transactions are refused for good.
"""

from __future__ import annotations

from millrace.broker import Broker
from millrace.errors import ErrorCode
from millrace.handlers.request import Request
from millrace.handlers.table import Api
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey, FindCoordinatorRequest, FindCoordinatorResponse

_TRANSACTION = 1


def handle(broker: Broker, request: Request) -> None:
    """Nobody coordinates groups, and nobody ever will transactions."""
    asked = decode(FindCoordinatorRequest, ApiKey.FIND_COORDINATOR, request.api_version, request.body)
    if asked.key_type == _TRANSACTION:
        code, reason = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported"
    else:
        code, reason = ErrorCode.COORDINATOR_NOT_AVAILABLE, "consumer groups are not supported"
    response = FindCoordinatorResponse(error_code=code, error_message=reason)
    request.answer([encode(response, ApiKey.FIND_COORDINATOR, request.api_version)])


FIND_COORDINATOR = Api(
    key=ApiKey.FIND_COORDINATOR, versions=frozenset(range(3)), advertised=(0, 2), handle=handle
)
