"""Heartbeat, v0 to v3.

A broker that is to coordinate the group takes it over even for this: it must be able to say that the member
is not known any more, or the member would look for a coordinator for ever.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Group, Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import HeartbeatRequest, HeartbeatResponse
from millrace.wire.messages import ApiKey


def heartbeat(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(HeartbeatRequest, ApiKey.HEARTBEAT, request.api_version, request.body)

        def answer(code: ErrorCode) -> None:
            if code:
                request.failed(code)
            response = HeartbeatResponse(error_code=code)
            request.answer([encode(response, ApiKey.HEARTBEAT, request.api_version)])

        def beat(group: Group) -> None:
            answer(group.heartbeat(asked.member_id, asked.group_instance_id, asked.generation_id))

        groups.use(asked.group_id, beat, answer)

    return Api(key=ApiKey.HEARTBEAT, versions=frozenset(range(4)), advertised=(0, 3), handle=handle)
