"""DeleteGroups, v0 and v1: groups without members, of either kind, with all they have committed."""

from __future__ import annotations

import functools

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.groups import Groups
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.codec import decode, encode
from millrace.wire.group_messages import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from millrace.wire.messages import ApiKey


def delete_groups(groups: Groups) -> Api:
    """The API, on these groups."""

    def handle(broker: Broker, request: Request) -> None:
        asked = decode(DeleteGroupsRequest, ApiKey.DELETE_GROUPS, request.api_version, request.body)
        names = dict.fromkeys(asked.groups_names)
        results: dict[str, ErrorCode] = {}

        def note(name: str, code: ErrorCode) -> None:
            results[name] = code
            if len(results) == len(names):
                answer()

        def answer() -> None:
            response = DeleteGroupsResponse(
                results=tuple(DeletableGroupResult(group_id=name, error_code=results[name]) for name in names)
            )
            request.answer([encode(response, ApiKey.DELETE_GROUPS, request.api_version)])

        for name in names:
            groups.delete(name, functools.partial(note, name))
        if not names:
            answer()

    return Api(key=ApiKey.DELETE_GROUPS, versions=frozenset(range(2)), advertised=(0, 1), handle=handle)
