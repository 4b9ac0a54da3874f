"""A warehouse's files as tasks of the `direct` sinks reach them: a folder they all see, or WebHDFS.

pyarrow reads and writes local files only. Where the warehouse is none, a task writes into a temporary folder
and uploads what is in it, and reads temporary copies. Each is deleted as soon as it is not needed: a task
holds the files of its cut, or those of one hour's file and two of its sources.

Travels to the tasks. Publishes nothing, and does not know the folder that is published.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from millrace_warehouse.storage.webhdfs import WebHdfs, WebHdfsClient

_AUTHORITY = re.compile(r"^hdfs://[^/]*")


class TaskStorage(Protocol):
    """Absolute paths, as `Filesystem.uri` gives them."""

    def writing(self, folder: str) -> AbstractContextManager[Path]:
        """A local folder to write into; once it is left without an error, its files are in `folder`."""

    def local_copy(self, path: str) -> AbstractContextManager[Path]:
        """A local file with the bytes of a file, to read only; FileNotFoundError when it is not there."""


@dataclass(frozen=True, slots=True)
class SharedFolder:
    """Every task sees the warehouse as a folder."""

    @contextmanager
    def writing(self, folder: str) -> Iterator[Path]:
        yield Path(folder)

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        if not Path(path).is_file():
            raise FileNotFoundError(path)
        yield Path(path)


@dataclass(frozen=True, slots=True)
class HdfsFolder:
    """Tasks upload and download."""

    where: WebHdfs

    @contextmanager
    def writing(self, folder: str) -> Iterator[Path]:
        """A temporary folder; its files are uploaded one after the other, each closed and of full length."""
        with _temporary() as local:
            yield local
            with closing(WebHdfsClient(self.where)) as client:
                for file in sorted(path for path in local.rglob("*") if path.is_file()):
                    client.create(f"{_path(folder)}/{file.relative_to(local).as_posix()}", file)

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        with _temporary() as local, closing(WebHdfsClient(self.where)) as client:
            copy = local / path.rpartition("/")[2]
            client.fetch(_path(path), copy)
            yield copy


def _path(uri: str) -> str:
    """`/a/b` of `hdfs://namenode:8020/a/b`."""
    return _AUTHORITY.sub("", uri)


@contextmanager
def _temporary() -> Iterator[Path]:
    """A folder in Spark's local directory, if there is one: Spark deletes it after a task that was killed."""
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    parent = spark if spark and Path(spark).is_dir() else None
    with tempfile.TemporaryDirectory(prefix="millrace-", dir=parent) as name:
        yield Path(name)
