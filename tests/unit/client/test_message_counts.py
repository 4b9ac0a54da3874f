"""A lag in messages, where the broker does not give them."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ErrorCode
from millrace.wire.fetch import FetchedPartition
from millrace_commands.groups import lag_in


class NotYet(ClusterClient):
    """A client of a cluster whose broker answers a fetch with an error."""

    error = ErrorCode.NONE

    def fetch(self, *_: Any, **__: Any) -> dict[int, FetchedPartition]:
        return {0: FetchedPartition(self.error, 0, 0, 0, memoryview(b""))}


@pytest.mark.parametrize("error", [ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_a_lag_that_cannot_be_counted_now_is_left_out_and_the_others_are_shown(error: ErrorCode) -> None:
    client = NotYet("127.0.0.1:1")
    client.error = error
    assert lag_in(client, "t", 0, 3, 9) is None
