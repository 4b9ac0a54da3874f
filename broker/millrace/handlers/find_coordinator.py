"""FindCoordinator, v0 to v2: the live broker with the lowest id, for every group.

There are no consumer groups yet, but a client with a group id asks for a coordinator even when it assigns its
partitions itself, waits for one before it closes, and (librdkafka) takes a broker without this API for one
too old for LZ4. Transactions are refused for good.
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
    """Name a live broker; refuse to coordinate transactions."""
    asked = decode(FindCoordinatorRequest, ApiKey.FIND_COORDINATOR, request.api_version, request.body)
    response = _coordinator(broker, asked.key_type)
    request.answer([encode(response, ApiKey.FIND_COORDINATOR, request.api_version)])


def _coordinator(broker: Broker, key_type: int) -> FindCoordinatorResponse:
    if key_type == _TRANSACTION:
        return FindCoordinatorResponse(
            error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            error_message="transactions are not supported",
        )
    brokers = broker.cluster.brokers
    if not brokers:
        return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    node_id = min(brokers)
    return FindCoordinatorResponse(
        error_code=ErrorCode.NONE, node_id=node_id, host=brokers[node_id].host, port=brokers[node_id].port
    )


FIND_COORDINATOR = Api(
    key=ApiKey.FIND_COORDINATOR, versions=frozenset(range(3)), advertised=(0, 2), handle=handle
)
