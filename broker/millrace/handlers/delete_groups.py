"""DeleteGroups, v0 and v1: groups without members, of either kind, with all they have committed."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

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

        def delete_all(worth_asking: Collection[str]) -> None:
            note_all(names.keys() - worth_asking, ErrorCode.GROUP_ID_NOT_FOUND)
            for name in worth_asking:
                groups.delete(name, functools.partial(note, name))

        def note_all(of: Iterable[str], code: ErrorCode) -> None:
            for name in of:
                note(name, code)

        if names:
            groups.worth_asking(names, delete_all, functools.partial(note_all, names))
        else:
            answer()

    return Api(key=ApiKey.DELETE_GROUPS, versions=frozenset(range(2)), advertised=(0, 1), handle=handle)
