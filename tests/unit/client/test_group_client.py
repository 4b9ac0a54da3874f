"""Questions about consumer groups, to a cluster that answers as a broker does."""

from __future__ import annotations

from typing import Any, cast

from millrace.client.cluster_client import ClusterClient
from millrace.client.group_client import GroupClient
from millrace.wire import group_messages as messages
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey

NAMES = [f"group-{number:04}" for number in range(4_500)]


class OneBroker:
    """Knows these groups; refuses, as the codec does, a request of too many items."""

    def broker_ids(self) -> list[int]:
        return [1]

    def call(self, broker_id: int, key: ApiKey, version: int, request: Any, response: type) -> Any:
        if key is ApiKey.LIST_GROUPS:
            listed = tuple(messages.ListedGroup(group_id=name, protocol_type="consumer") for name in NAMES)
            return messages.ListGroupsResponse(error_code=0, groups=listed)
        received = decode(type(request), key, version, encode(request, key, version))
        described = (messages.DescribedGroup(error_code=0, group_id=name) for name in received.groups)
        return messages.DescribeGroupsResponse(groups=tuple(described))


def test_thousands_of_groups_of_one_broker_are_described_in_requests_that_it_takes() -> None:
    groups = GroupClient(cast(ClusterClient, OneBroker())).groups()
    assert list(groups) == NAMES
