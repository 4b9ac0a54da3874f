"""DescribeLogDirs, v1: how many bytes each partition takes on this broker's disk.

A broker answers for what it leads itself. A partition that is not here is left out, as in Kafka.
"""

from __future__ import annotations

from millrace.broker.broker import Broker
from millrace.errors import ErrorCode
from millrace.handlers.table import Api
from millrace.server.request import Request
from millrace.wire.admin_messages import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millrace.wire.codec import decode, encode
from millrace.wire.messages import ApiKey


def handle(broker: Broker, request: Request) -> None:
    """Answer with the sizes of the open logs."""
    asked = decode(DescribeLogDirsRequest, ApiKey.DESCRIBE_LOG_DIRS, request.api_version, request.body)
    wanted = (
        None if asked.topics is None else {(each.topic, n) for each in asked.topics for n in each.partitions}
    )
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (name, number), partition in sorted(broker.partitions.items()):
        if wanted is None or (name, number) in wanted:
            described = DescribeLogDirsPartition(partition_index=number, partition_size=partition.log.size)
            topics.setdefault(name, []).append(described)
    result = DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=broker.config.log_dir,
        topics=tuple(DescribeLogDirsTopic(name=n, partitions=tuple(found)) for n, found in topics.items()),
    )
    response = DescribeLogDirsResponse(results=(result,))
    request.answer([encode(response, ApiKey.DESCRIBE_LOG_DIRS, request.api_version)])


DESCRIBE_LOG_DIRS = Api(
    key=ApiKey.DESCRIBE_LOG_DIRS, versions=frozenset({1}), advertised=(1, 1), handle=handle
)
