"""SyncGroup, v0 to v3: waits for what the leader assigns; the leader's own brings it."""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Group, Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import SyncGroupRequest, SyncGroupResponse
from millrace.wire.messages import ApiKey


def sync_group(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(SyncGroupRequest, ApiKey.SYNC_GROUP, request.api_version, request.body)

        def answer(response: SyncGroupResponse) -> None:
            if response.error_code:
                request.failed(response.error_code)
            request.answer([encode(response, ApiKey.SYNC_GROUP, request.api_version)])

        def sync(group: Group) -> None:
            request.abandon = lambda: group.abandon(answer)
            group.sync(asked, answer)

        if groups.held(asked.group_id) is None:  # it is not taken over for a member that nobody knows
            answer(SyncGroupResponse(error_code=ErrorCode.NOT_COORDINATOR))
        else:
            groups.use(asked.group_id, sync, lambda code: answer(SyncGroupResponse(error_code=code)))

    return Api(key=ApiKey.SYNC_GROUP, versions=frozenset(range(4)), advertised=(0, 3), handle=handle)
