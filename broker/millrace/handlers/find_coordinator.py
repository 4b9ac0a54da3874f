"""FindCoordinator, v0 to v2: the live broker that coordinates a group, or that is to do so.

A client with a group id asks even when it assigns its partitions itself, and (librdkafka) takes a broker
without this API for one too old for LZ4. Transactions are refused for good.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey, FindCoordinatorRequest, FindCoordinatorResponse

_TRANSACTION = 1


def find_coordinator(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(FindCoordinatorRequest, ApiKey.FIND_COORDINATOR, request.api_version, request.body)

        def answer(response: FindCoordinatorResponse) -> None:
            if response.error_code:
                request.failed(response.error_code)
            request.answer([encode(response, ApiKey.FIND_COORDINATOR, request.api_version)])

        def failed(code: ErrorCode) -> None:
            answer(FindCoordinatorResponse(error_code=code))

        def found(broker_id: int) -> None:
            address = broker.cluster.brokers[broker_id]
            answer(
                FindCoordinatorResponse(
                    error_code=ErrorCode.NONE, node_id=broker_id, host=address.host, port=address.port
                )
            )

        if asked.key_type == _TRANSACTION:
            answer(
                FindCoordinatorResponse(
                    error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                    error_message="transactions are not supported",
                )
            )
        else:
            groups.find(asked.key, found, failed)

    return Api(key=ApiKey.FIND_COORDINATOR, versions=frozenset(range(3)), advertised=(0, 2), handle=handle)
