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
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import httpx

from millrace.errors import MillraceError
from millrace_warehouse.storage.hadoop_http import hadoop_client
from millrace_warehouse.storage.hadoop_settings import WebHdfs
from millrace_warehouse.storage.interface import DRAFT, Written
from millrace_warehouse.storage.namenodes import NameNodes
from millrace_warehouse.storage.streams import Hashing
from millrace_warehouse.storage.webhdfs_errors import NotNow, check_trusted, refusal

T = TypeVar("T")
PAUSE_S = 1.0
"""Seconds between two tries of a request."""
# A DataNode answers when its pipeline has closed: after the loss of a node that takes a minute.
_DATANODE_S = httpx.Timeout(120.0, connect=10.0)
# A block is on the disks of every DataNode of the pipeline before it is confirmed; else it may be in memory
# only.
_DURABLE = "create,sync_block"


class _NoDataNode(NotNow):
    """The DataNode that the NameNode named does not answer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"DataNode {address}: {reason}")
        self.host = address.rpartition(":")[0]


class WebHdfsClient:
    """The connections of one process to an HDFS, which last as long as it. Threads share them."""

    def __init__(
        self, where: WebHdfs, transport: httpx.BaseTransport | None = None, *, token_of_spark: str = ""
    ) -> None:
        self._where = where
        self._http = hadoop_client(where.ca_file, transport=transport)
        self._namenodes = NameNodes(where, self._http, token_of_spark)

    def token_for_tasks(self) -> str:
        """Return a delegation token, or "" where the servers ask for no ticket."""
        return self._until_answered("/", lambda _: self._namenodes.token_for_tasks())

    def ask(self, method: str, path: str, *members: str, **parameters: str) -> Any:
        """Return a member of the active NameNode's answer, or the whole one, None when it is empty.

        Raise FileNotFoundError or FileExistsError where Hadoop does.
        """
        return self._until_answered(path, lambda _: self._namenodes.ask(method, path, *members, **parameters))

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
            body = {"content": iter(chunks), "headers": {"Content-Length": str(size)}}
            parameters = {"overwrite": "true", "createflag": _DURABLE, **self._where.new_files, **without}
            self._data("PUT", path, body, drafts[-1], op="CREATE", **parameters)
            status = self._namenodes.ask("GET", drafts[-1], "FileStatus", op="GETFILESTATUS")
            if status.get("ecBit"):
                raise MillraceError(
                    f"{path} is erasure coded, and HDFS cannot sync such a file: give the warehouse's folder"
                    " replicas (hdfs ec -setPolicy -replicate -path ...), then run again"
                )
            if status["length"] != size:
                raise NotNow(f"{status['length']} bytes arrived of {size}")
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
                return self._data("GET", path, {}, op="OPEN", **bounds, **without)
            except EOFError:
                return b""

        return self._until_answered(path, attempt)

    def _until_answered(self, path: str, attempt: Callable[[Mapping[str, str]], T]) -> T:
        deadline, silent = time.monotonic() + self._where.patience_s, list[str]()
        while True:
            try:
                return attempt({"excludedatanodes": ",".join(silent)} if silent else {})
            except NotNow as error:
                if time.monotonic() > deadline:
                    raise MillraceError(
                        f"{path}: WebHDFS does not answer within {self._where.patience_s:.0f} s ({error}):"
                        " check the NameNode and the DataNodes, then run again"
                    ) from None
                # The NameNode may believe dead DataNodes alive for minutes, and chooses the nearest one every
                # time. After another failure, or without any DataNode left, it may choose each one again.
                silent = [*silent, error.host] if isinstance(error, _NoDataNode) else []
            time.sleep(PAUSE_S)

    def _data(
        self, method: str, path: str, body: Mapping[str, Any], draft: str = "", **parameters: str
    ) -> bytes:
        """Return the answer, for a file or its draft, of the DataNode that the active NameNode names."""
        url = self._namenodes.ask(method, draft or path, "Location", noredirect="true", **parameters)
        scheme, address, *_ = urlsplit(url)
        if scheme != self._where.scheme:  # the URL holds a token
            raise MillraceError(
                f"the NameNode names DataNode {address} without {self._where.scheme}: set dfs.http.policy"
                " alike on every server of HDFS, and in HADOOP_CONF_DIR"
            )
        try:
            answer = self._http.request(method, url, timeout=_DATANODE_S, **body)
        except httpx.RequestError as error:
            check_trusted(f"DataNode {address}", error)
            raise _NoDataNode(address, f"{type(error).__name__} {error}") from None
        if not answer.is_success:
            raise refusal(answer, path)
        return answer.content
