"""What went wrong on HDFS, in one sentence that says what to do.

Hadoop's exceptions arrive as the text of a Java stack trace, straight from a call or from inside a Spark
task that failed: in both the class and its message stand on one line. Knows their names and Spark's way to
raise them; talks to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from millrace.errors import MillraceError


class HdfsNotReady(MillraceError):
    """HDFS does not serve at the moment: its NameNode is away, in safe mode, or a standby."""


_KNOWN: dict[str, tuple[type[MillraceError], str]] = {
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
        MillraceError,
        "no DataNode that runs has a block of a file ({message}): start the DataNodes, then run again",
    ),
    r"UnknownHostException": (
        MillraceError,
        "{message} is neither a host nor a nameservice that is configured: check the address, or point"
        " HADOOP_CONF_DIR to the cluster's configuration",
    ),
    r"(?:Connect|Socket)(?:Timeout)?Exception|NoRouteToHostException|EOFException": (
        HdfsNotReady,
        "the NameNode does not answer: check its address and that it runs, then run again",
    ),
}
"""The class of an exception -> what is raised instead, with what words."""
_NO_DATANODE = re.compile(r"could only be (?:written|replicated) to \d+ [^\n]*")
_LINE = re.compile(r"((?:[a-z]\w*\.)+)(\w+(?:Exception|Error))\)?: ([^\n]*)")


def explained(failure: str, *, of_hadoop: bool) -> MillraceError | None:
    """What to say of a failure of HDFS, given as the text of its stack trace; None for any other failure.

    With `of_hadoop` the failure is certainly Hadoop's. Otherwise it is whatever ended a Spark job, and a
    connection that was refused counts only in Hadoop's own words. The first class of the table decides.
    """
    if no_datanode := _NO_DATANODE.search(failure):
        return MillraceError(
            f"no DataNode takes a block ({no_datanode[0][:200]}): check that DataNodes run and have space"
            " (hdfs dfsadmin -report), then run again"
        )
    for package, name, message in _LINE.findall(failure):
        if not (of_hadoop or package.startswith("org.apache.hadoop.") or message.startswith("Call From ")):
            continue
        for names, (cls, sentence) in _KNOWN.items():
            if re.fullmatch(names, name):
                return cls(sentence.format(message=message.strip().rstrip(".;:")[:300]))
    return None


@contextmanager
def explaining(root: str) -> Iterator[None]:
    """Calls into Hadoop: they fail with FileNotFoundError, FileExistsError or MillraceError, in one line."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise _translated(error, root) from None


def class_of(error: Exception) -> str:
    """The class of a Java exception, without its package; that of Python's for any other."""
    if isinstance(error, Py4JJavaError):
        return str(error.java_exception.getClass().getSimpleName())
    return type(error).__name__


def _translated(error: Exception, root: str) -> Exception:
    text, name = str(error), class_of(error)
    if name == "FileNotFoundException":
        return FileNotFoundError(f"{root}: {_message(error)}")
    if name == "FileAlreadyExistsException":
        return FileExistsError(f"{root}: {_message(error)}")
    if (explanation := explained(text, of_hadoop=True)) is not None:
        return type(explanation)(f"{root}: {explanation}")
    return MillraceError(f"{root}: {name}: {_message(error)}")


def _message(error: Exception) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return next(iter(text.splitlines()), "")
