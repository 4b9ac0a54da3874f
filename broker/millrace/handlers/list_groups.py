"""ListGroups, v0 to v2: each broker lists its share, so that clients that ask all get every group once."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import encode
from millrace.wire.group_messages import ListedGroup, ListGroupsResponse
from millrace.wire.messages import ApiKey


def list_groups(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        def answer(response: ListGroupsResponse) -> None:
            request.answer([encode(response, ApiKey.LIST_GROUPS, request.api_version)])

        def found(types: Mapping[str, str]) -> None:
            listed = tuple(ListedGroup(group_id=name, protocol_type=types[name]) for name in sorted(types))
            answer(ListGroupsResponse(error_code=ErrorCode.NONE, groups=listed))

        groups.list_groups(found, lambda code: answer(ListGroupsResponse(error_code=code)))

    return Api(key=ApiKey.LIST_GROUPS, versions=frozenset(range(3)), advertised=(0, 2), handle=handle)
