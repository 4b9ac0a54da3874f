"""Messages to operators when replicas cannot be moved."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ErrorCode, MillraceError
from millrace.wire.admin_messages import AlterPartitionReassignmentsResponse
from millrace_commands.broker_admin import move_replicas


class Refusing(ClusterClient):
    """A client of a cluster that moves nothing, because the only replica's broker is not alive."""

    def call(self, *_: object) -> Any:
        Topic = AlterPartitionReassignmentsResponse.Topic
        refused = Topic.Partition(
            partition_index=0, error_code=ErrorCode.LEADER_NOT_AVAILABLE, error_message="start broker 2"
        )
        return AlterPartitionReassignmentsResponse(responses=(Topic(name="t", partitions=(refused,)),))


def test_a_replica_that_nobody_can_copy_is_named_with_the_broker_s_reason() -> None:
    with pytest.raises(MillraceError, match=r"^t-0: start broker 2$"):
        move_replicas(Refusing("127.0.0.1:1"), {("t", 0): (1,)})
