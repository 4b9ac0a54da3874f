"""A warehouse on HDFS, through WebHDFS alone: no Java and no libhdfs, in the driver and in tasks.

A closed file may be only in the memory of its DataNodes. So every file is written with SYNC_BLOCK: each
DataNode of the pipeline has it on disk before it confirms. A whole file gets its name by a RENAME, which the
NameNode does atomically and logs before it answers. So a confirmed file does not change, even if a delayed
request still writes to a draft. `create` uses renameoptions=NONE, which refuses an existing target; `put`
uses OVERWRITE. The better known RENAME without options would move the file INTO a folder of that name.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from millrace.errors import MillraceError
from millrace_warehouse.storage.hadoop_settings import WebHdfs
from millrace_warehouse.storage.hadoop_tokens import token_of_spark
from millrace_warehouse.storage.interface import DRAFT, Listed, Written
from millrace_warehouse.storage.webhdfs import WebHdfsClient

_CLIENTS: dict[tuple[object, ...], WebHdfsClient] = {}
"""One client, and so one token, for each process, ticket and HDFS: connections do not survive a fork."""


class HdfsStorage:
    """Storage on HDFS."""

    def __init__(self, root: str, where: WebHdfs) -> None:
        self.root = root
        self.where = where

    def __reduce__(self) -> tuple[type[HdfsStorage], tuple[str, WebHdfs]]:
        # A task has no ticket: it gets the driver's token.
        where = replace(self.where, token=self._client.token_for_tasks(), kerberos=False)
        return HdfsStorage, (self.root, where)

    @property
    def _client(self) -> WebHdfsClient:
        authority = urlsplit(self.root).netloc
        ticket = os.environ.get("KRB5CCNAME"), os.environ.get("KRB5_CLIENT_KTNAME")
        key = (os.getpid(), ticket, authority, self.where)
        if key not in _CLIENTS:  # of two threads one drops its client, which has sent nothing yet
            _CLIENTS.setdefault(key, WebHdfsClient(self.where, token_of_spark=token_of_spark(authority)))
        return _CLIENTS[key]

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self._client.fetch(self._path(path), start, length)

    def put(self, path: str, content: BinaryIO) -> Written:
        draft, written = self._client.store(self._path(path), content)
        try:
            self._rename(draft, path, "OVERWRITE")
        except FileNotFoundError:  # an earlier try, whose answer was lost, has renamed it
            if [each.bytes for each in self._files(path, "")] != [written.bytes]:
                raise
        return written

    def create(self, path: str, content: bytes) -> bool:
        draft, _ = self._client.store(self._path(path), io.BytesIO(content))
        try:
            self._rename(draft, path, "NONE")
            return True
        except (FileExistsError, FileNotFoundError):
            # Taken by another writer, or by an earlier try whose answer was lost: then the draft is gone.
            self._client.ask("DELETE", draft, op="DELETE")
            return self.read(path) == content

    def names(self, folder: str, after: str = "") -> list[str]:
        names = [status["pathSuffix"] for status in self._statuses(folder, after)]
        return sorted(name for name in names if name and not name.startswith(DRAFT))

    def files(self, folder: str) -> list[Listed]:
        return sorted(self._files(folder, ""), key=lambda found: found.path)

    def delete(self, path: str) -> None:
        """Delete a file or a whole folder, without the trash. Do nothing when it does not exist."""
        self._client.ask("DELETE", self._path(path), op="DELETE", recursive="true")

    def _path(self, path: str) -> str:
        return f"{urlsplit(self.root).path}/{path}".rstrip("/") or "/"

    def _rename(self, draft: str, path: str, options: str) -> None:
        target = self._path(path)
        self._client.ask("PUT", draft, op="RENAME", destination=target, renameoptions=options)

    def _statuses(self, folder: str, after: str) -> Iterator[dict[str, Any]]:
        """Yield the NameNode's entries of a folder after a name, or a file's own entry, without a name."""
        while True:
            try:
                # In lower case: Hadoop 3.5 ignores the documented `startAfter`, and begins the listing
                # again.
                listing = self._client.ask(
                    "GET", self._path(folder), "DirectoryListing", op="LISTSTATUS_BATCH", startafter=after
                )
            except FileNotFoundError:
                return
            statuses = listing["partialListing"]["FileStatuses"]["FileStatus"]
            yield from statuses
            if not listing["remainingEntries"]:
                return
            if statuses[-1]["pathSuffix"] <= after:
                raise MillraceError(
                    f"{self.uri(folder)}: this version of Hadoop lists no more than its first names"
                )
            after = statuses[-1]["pathSuffix"]

    def _files(self, folder: str, inside: str) -> Iterator[Listed]:
        for status in self._statuses(f"{folder}/{inside}".rstrip("/"), ""):
            path = f"{inside}/{status['pathSuffix']}".strip("/")
            if status["type"] == "DIRECTORY":
                yield from self._files(folder, path)
            else:
                yield Listed(path, int(status["length"]), status["modificationTime"] / 1000)
