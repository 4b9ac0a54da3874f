"""What went wrong on HDFS, in one sentence that says what to do. Knows the names of Hadoop's exceptions."""

from __future__ import annotations

import re

from millrace.errors import MillraceError


class HdfsNotReady(MillraceError):
    """HDFS does not serve at the moment: its NameNode is away, in safe mode, or a standby."""


_SENTENCES: dict[str, tuple[type[MillraceError], str]] = {
    r"(?:NS|DS)QuotaExceededException|QuotaByStorageTypeExceededException": (
        MillraceError,
        "{message}: raise the quota (hdfs dfsadmin -setQuota, -setSpaceQuota) or delete what is not needed,"
        " then run again",
    ),
    r"SafeModeException": (
        HdfsNotReady,
        "the NameNode is in safe mode: see `hdfs dfsadmin -safemode get`, and run again when it says OFF",
    ),
    r"AccessControlException": (
        MillraceError,
        "{message}: let this user write to the warehouse's folder (hdfs dfs -chown or -setfacl)",
    ),
    r"StandbyException": (
        HdfsNotReady,
        "this NameNode is a standby: write hdfs://<nameservice>/ and point HADOOP_CONF_DIR to the"
        " configuration that names both",
    ),
    r"BlockMissingException": (
        HdfsNotReady,
        "no DataNode that runs has a block of a file ({message}): start the DataNodes, then run again",
    ),
    r"(?:Connect|Socket)(?:Timeout)?Exception|NoRouteToHostException|EOFException": (
        HdfsNotReady,
        "the NameNode does not answer: check its address and that it runs, then run again",
    ),
}
"""The class of an exception, without its package -> what is raised instead, with what words."""
_NO_DATANODE = re.compile(r"could only be (?:written|replicated) to \d+ [^\n]*")


def explained(name: str, message: str) -> MillraceError | None:
    """What to say of one of Hadoop's exceptions, by its class and message; None for an unknown one."""
    if no_datanode := _NO_DATANODE.search(message):
        return MillraceError(
            f"no DataNode takes a block ({no_datanode[0][:200]}): check that DataNodes run and have space"
            " (hdfs dfsadmin -report), then run again"
        )
    for names, (cls, sentence) in _SENTENCES.items():
        if re.fullmatch(names, name.rpartition(".")[2]):
            return cls(sentence.format(message=message.strip().rstrip(".;:")[:300]))
    return None
