"""ListGroups, v0 to v4: each broker lists its share, so that clients that ask all get every group once."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups, GroupSnapshot
from millrace.handlers.table import Api, response_header
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millrace.wire.messages import ApiKey


def list_groups(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        version = request.api_version
        asked = decode(ListGroupsRequest, ApiKey.LIST_GROUPS, version, request.body)
        states = {state.lower() for state in asked.states_filter}

        def answer(response: ListGroupsResponse) -> None:
            body = encode(response, ApiKey.LIST_GROUPS, version)
            request.answer([body], header=response_header(request))

        def found(listed: Mapping[str, GroupSnapshot]) -> None:
            shown = tuple(
                ListedGroup(group_id=name, protocol_type=group.protocol_type, group_state=group.state)
                for name, group in sorted(listed.items())
                if not states or group.state.lower() in states
            )
            answer(ListGroupsResponse(error_code=ErrorCode.NONE, groups=shown))

        groups.list_groups(found, lambda code: answer(ListGroupsResponse(error_code=code)))

    return Api(key=ApiKey.LIST_GROUPS, versions=frozenset(range(5)), advertised=(0, 4), handle=handle)
