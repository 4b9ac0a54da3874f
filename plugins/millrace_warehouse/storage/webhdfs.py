"""Requests to WebHDFS, which every NameNode and DataNode serves, repeated until they are answered.

    ask(...)     of the active NameNode: names, status, renames
    store(...)   PUT op=CREATE: the NameNode names a DataNode, which takes the bytes
    fetch(...)   GET op=OPEN: the NameNode names a DataNode, which returns the bytes

A temporary failure (no answer, safe mode, a standby, a broken pipeline) is retried within `patience_s`, with
another NameNode and another DataNode if there is one. So every request must be safe to repeat. Handles HTTP;
the caller handles drafts and the contents of folders.
"""

from __future__ import annotations

import io
import re
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from millrace.errors import MillraceError
from millrace_warehouse.storage.hadoop_settings import WebHdfs
from millrace_warehouse.storage.interface import DRAFT, Written
from millrace_warehouse.storage.streams import Hashing

T = TypeVar("T")
PAUSE_S = 1.0
"""Seconds between two tries of a request."""
_NAMENODE_S = httpx.Timeout(30.0, connect=10.0)
# A DataNode answers when its pipeline has closed: after the loss of a node that takes a minute.
_DATANODE_S = httpx.Timeout(120.0, connect=10.0)
# A block is on the disks of every DataNode of the pipeline before it is confirmed; else it may be in memory
# only.
_DURABLE = "create,sync_block"
# Exceptions whose message says nothing about the file: the DataNode's own client has failed.
_PASSING = (
    "java.io.IOException",
    "org.apache.hadoop.ipc.RetriableException",
    "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException",
)
_AFTER_THE_END = "out of the range [0,"


class HdfsNotReady(MillraceError):
    """HDFS does not serve at the moment: its NameNode does not answer, is in safe mode, or is a standby."""


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
"""Class of an exception, without its package -> the error to raise instead, and its text."""
_NO_DATANODE = re.compile(r"could only be (?:written|replicated) to \d+ [^\n]*")


class _NotNow(Exception):
    """A failure that may be temporary."""


class _NoDataNode(_NotNow):
    """The DataNode that the NameNode named does not answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"DataNode {address}: {reason}")
        self.host = address.rpartition(":")[0]


class WebHdfsClient:
    """The connections of one process; threads may share them."""

    def __init__(self, where: WebHdfs, transport: httpx.BaseTransport | None = None) -> None:
        self._where = where
        self._addresses = where.addresses
        # Hosts inside the cluster: no proxy from the environment applies.
        self._http = httpx.Client(timeout=_NAMENODE_S, trust_env=False, transport=transport)
        weakref.finalize(self, self._http.close)  # a storage is never closed

    def ask(self, method: str, path: str, **parameters: str) -> Any:
        """Return the active NameNode's answer, parsed, or None when it is empty.

        Raise FileNotFoundError or FileExistsError where Hadoop does.
        """
        return self._until_answered(path, lambda _: self._ask(method, path, **parameters))

    def store(self, path: str, content: BinaryIO) -> tuple[str, Written]:
        """Create a draft beside a path, with a local stream's bytes, and missing folders. Return the draft's
        path and hash.

        The draft is closed, has the right length and is on the disks of its DataNodes. Each try has a new
        draft: a DataNode that was given up on may carry out an earlier try, or half of it, much later.
        """
        folder, _, name = path.rpartition("/")
        start = content.tell()
        size = content.seek(0, io.SEEK_END) - start
        drafts: list[str] = []

        def attempt(without: Mapping[str, str]) -> Written:
            content.seek(start)
            drafts.append(f"{folder}/{DRAFT}{name[:100]}.{uuid.uuid4().hex}")
            chunks = Hashing(content)
            parameters = {**self._where.new_files, **without}
            url = self._data_url(
                "PUT", drafts[-1], op="CREATE", overwrite="true", createflag=_DURABLE, **parameters
            )
            answer = self._data(url, "PUT", content=iter(chunks), headers={"Content-Length": str(size)})
            if answer.status_code != httpx.codes.CREATED:
                raise _refusal(answer, path)
            status = self._ask("GET", drafts[-1], op="GETFILESTATUS")["FileStatus"]
            if status.get("ecBit"):
                raise MillraceError(
                    f"{path} is erasure coded, and HDFS cannot sync such a file: give the warehouse's folder"
                    " replicas (hdfs ec -setPolicy -replicate -path ...), then run again"
                )
            if status["length"] != size:
                raise _NotNow(f"{status['length']} bytes arrived of {size}")
            return chunks.written

        written = self._until_answered(path, attempt)
        for given_up in drafts[:-1]:
            self.ask("DELETE", given_up, op="DELETE")
        return drafts[-1], written

    def fetch(self, path: str, start: int, length: int | None) -> bytes:
        """Return a file's bytes, or a range, which may end after the file.

        Raise FileNotFoundError without a file.
        """
        bounds = {"offset": str(start)} | ({} if length is None else {"length": str(length)})

        def attempt(without: Mapping[str, str]) -> bytes:
            try:
                url = self._data_url("GET", path, op="OPEN", **bounds, **without)
            except EOFError:
                return b""
            answer = self._data(url, "GET")
            if answer.status_code != httpx.codes.OK:
                raise _refusal(answer, path)
            return answer.content

        return self._until_answered(path, attempt)

    def _until_answered(self, path: str, attempt: Callable[[Mapping[str, str]], T]) -> T:
        deadline, without = time.monotonic() + self._where.patience_s, dict[str, str]()
        while True:
            try:
                return attempt(without)
            except _NotNow as error:
                if time.monotonic() > deadline:
                    raise MillraceError(
                        f"{path}: WebHDFS does not answer within {self._where.patience_s:.0f} s ({error}):"
                        " check the NameNode and the DataNodes, then run again"
                    ) from None
                # The NameNode may believe a dead DataNode alive for minutes, and chooses the nearest one
                # every time.
                without = {"excludedatanodes": error.host} if isinstance(error, _NoDataNode) else {}
            time.sleep(PAUSE_S)

    def _data_url(self, method: str, path: str, **parameters: str) -> str:
        return str(self._ask(method, path, noredirect="true", **parameters)["Location"])

    def _ask(self, method: str, path: str, **parameters: str) -> Any:
        """Return the active NameNode's answer. The next request asks that NameNode first."""
        refusals = []
        for address in self._addresses:
            url = f"http://{address}/webhdfs/v1{quote(path)}"
            try:
                answer = self._http.request(method, url, params={**parameters, "user.name": self._where.user})
                if answer.status_code == httpx.codes.OK:
                    others = tuple(other for other in self._addresses if other != address)
                    self._addresses = (address, *others)
                    return answer.json() if answer.content else None
                raise _refusal(answer, path)
            except (httpx.TransportError, _NotNow) as error:
                refusals.append(f"NameNode {address}: {error}")
        raise _NotNow("; ".join(refusals))

    def _data(self, url: str, method: str, **body: Any) -> httpx.Response:
        try:
            return self._http.request(method, url, timeout=_DATANODE_S, **body)
        except httpx.TransportError as error:
            raise _NoDataNode(urlsplit(url).netloc, f"{type(error).__name__} {error}") from None


def _refusal(answer: httpx.Response, path: str) -> Exception:
    try:
        remote = answer.json()["RemoteException"]
        name, message = str(remote["javaClassName"]), str(remote["message"]).split("\n", 1)[0]
    except (ValueError, KeyError, TypeError):
        reason = f"{answer.request.url.netloc.decode()} answers {answer.status_code} {answer.reason_phrase}"
        if answer.is_server_error:
            return _NotNow(reason)
        return MillraceError(f"{path}: {reason} to a request of WebHDFS: check what stands at that address")
    if name.endswith(".FileNotFoundException"):
        return FileNotFoundError(f"{path}: {message}")
    if name.endswith(".FileAlreadyExistsException"):
        return FileExistsError(f"{path}: {message}")
    if _AFTER_THE_END in message:
        return EOFError(f"{path}: {message}")
    explanation = explained(name, message)
    if name in _PASSING or isinstance(explanation, HdfsNotReady):
        return _NotNow(str(explanation or message))
    return MillraceError(f"{path}: {explanation or f'{name}: {message}'}")


def explained(name: str, message: str) -> MillraceError | None:
    """Translate one of Hadoop's exceptions by its class and message. Return None for an unknown exception."""
    if no_datanode := _NO_DATANODE.search(message):
        return MillraceError(
            f"no DataNode takes a block ({no_datanode[0][:200]}): check that DataNodes run and have space"
            " (hdfs dfsadmin -report), then run again"
        )
    for names, (cls, sentence) in _SENTENCES.items():
        if re.fullmatch(names, name.rpartition(".")[2]):
            return cls(sentence.format(message=message.strip().rstrip(".;:")[:300]))
    return None
