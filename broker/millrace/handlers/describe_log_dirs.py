"""DescribeLogDirs, v1: how many bytes each partition takes on this broker's disk.

A broker answers for what it leads itself. A partition that is not here is left out, as in Kafka.
"""

from __future__ import annotations

from millrace.errors import ErrorCode
from millrace.handlers.table import Call, message_api
from millrace.wire.admin_messages import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from millrace.wire.messages import ApiKey


def describe_log_dirs(call: Call[DescribeLogDirsRequest]) -> DescribeLogDirsResponse:
    """Answer with the sizes of the open logs."""
    named, broker = call.request.topics, call.broker
    wanted = None if named is None else {(topic.topic, n) for topic in named for n in topic.partitions}
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    for (name, number), partition in sorted(broker.partitions.items()):
        if wanted is None or (name, number) in wanted:
            described = DescribeLogDirsPartition(partition_index=number, partition_size=partition.log.size)
            topics.setdefault(name, []).append(described)
    result = DescribeLogDirsResult(
        error_code=ErrorCode.NONE,
        log_dir=broker.config.log_dir,
        topics=tuple(
            DescribeLogDirsTopic(name=name, partitions=tuple(described)) for name, described in topics.items()
        ),
    )
    return DescribeLogDirsResponse(results=(result,))


DESCRIBE_LOG_DIRS = message_api(
    ApiKey.DESCRIBE_LOG_DIRS, range(1, 2), DescribeLogDirsRequest, describe_log_dirs
)
