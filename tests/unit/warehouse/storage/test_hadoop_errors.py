"""Failures of HDFS: from a stack trace to one sentence that says what to do."""

from __future__ import annotations

import pytest

from millrace_warehouse.storage.hadoop_errors import HdfsNotReady, explained

QUOTA = (
    "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException: The DiskSpace quota of /w is exceeded: quota"
)
TASK = f"""An error occurred while calling o1.parquet.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to hdfs://nn/w.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailed(QueryExecutionErrors.scala:823)
Caused by: {QUOTA} = 2 MB
\tat org.apache.hadoop.hdfs.server.namenode.FSDirectory.verifyQuota(FSDirectory.java:1249)
"""
REFUSED = "java.net.ConnectException: Call From a/127.0.0.1 to b:8020 failed on connection exception: refused"


def test_a_quota_exceeded_in_a_task_is_said_in_one_line() -> None:
    error = explained(TASK, of_hadoop=False)
    assert str(error).startswith("The DiskSpace quota of /w is exceeded: quota = 2 MB: raise the quota")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (": org.apache.hadoop.security.AccessControlException: Permission denied: user=a\n\tat x", "user=a"),
        (": java.net.UnknownHostException: events\n\tat x", "events is neither a host nor a nameservice"),
        (
            ": java.io.IOException: File /w/x could only be written to 0 of the 1 minReplication nodes.",
            "space",
        ),
        (
            ": org.apache.hadoop.hdfs.BlockMissingException: Could not obtain block: BP-1",
            "start the DataNodes",
        ),
    ],
)
def test_every_known_failure_says_what_to_do(trace: str, words: str) -> None:
    assert words in str(explained(trace, of_hadoop=True))


@pytest.mark.parametrize(
    "trace",
    [
        f": {REFUSED}",
        ": org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.SafeModeException): no",
        ": org.apache.hadoop.ipc.StandbyException: Operation category READ is not supported in state standby",
    ],
)
def test_a_namenode_that_may_be_ready_in_a_moment_is_told_apart(trace: str) -> None:
    assert isinstance(explained(trace, of_hadoop=True), HdfsNotReady)


def test_a_refused_connection_of_something_else_is_not_taken_for_hdfs() -> None:
    assert explained(": java.net.ConnectException: Connection refused", of_hadoop=False) is None
    assert explained(REFUSED, of_hadoop=False) is not None
    assert explained("py4j.protocol.Py4JError: nothing of Hadoop", of_hadoop=True) is None
