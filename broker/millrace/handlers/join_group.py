"""JoinGroup, v0 to v5: waits until the group's next generation begins; v5 knows static members.

From v4 on a member without an id is given one first, to come back with.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import ClientName, Group, Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import JoinGroupRequest, JoinGroupResponse
from millrace.wire.messages import ApiKey

_GIVES_ID_FIRST = 4


def join_group(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(JoinGroupRequest, ApiKey.JOIN_GROUP, request.api_version, request.body)
        client = ClientName(request.client_id, "/" + request.client.address.rpartition(":")[0])

        def answer(response: JoinGroupResponse) -> None:
            if response.error_code:
                request.failed(response.error_code)
            request.answer([encode(response, ApiKey.JOIN_GROUP, request.api_version)])

        def failed(code: ErrorCode) -> None:
            answer(JoinGroupResponse(error_code=code, member_id=asked.member_id))

        def join(group: Group) -> None:
            if not request.client.closed:
                request.abandon = lambda: group.abandon(answer)
                group.join(asked, client, answer, needs_id=request.api_version >= _GIVES_ID_FIRST)

        groups.use(asked.group_id, join, failed)

    return Api(key=ApiKey.JOIN_GROUP, versions=frozenset(range(6)), advertised=(0, 5), handle=handle)
