"""A warehouse on HDFS, through the Hadoop classes of the Spark session's JVM.

`FileContext.rename` without options is the exclusive move: the NameNode does it atomically. The better
known `FileSystem.rename` would move the folder INTO an existing target and return true. Bytes of data
files never travel through py4j: their SHA-256 is computed in the JVM.
"""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFilesystem:
    """A warehouse on any Hadoop file system whose FileContext renames exclusively."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        jvm: Any = spark._jvm
        self._jvm = jvm
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        uri = jvm.java.net.URI.create(self.root)
        self._context: Any = jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, conf)
        self._fs: Any = jvm.org.apache.hadoop.fs.FileSystem.get(uri, conf)

    def uri(self, path: str) -> str:
        """The path as Spark takes it."""
        return f"{self.root}/{path}"

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def names(self, folder: str) -> list[str]:
        """Names in a folder, sorted; [] when there is no such folder."""
        if not self._fs.exists(self._path(folder)):
            return []
        return sorted(status.getPath().getName() for status in self._fs.listStatus(self._path(folder)))

    def files(self, folder: str) -> list[tuple[str, int]]:
        """Every file below a folder, sorted: its path relative to the folder, and its bytes."""
        found: list[tuple[str, int]] = []
        if not self._fs.exists(self._path(folder)):
            return found
        for status in self._fs.listStatus(self._path(folder)):
            name = str(status.getPath().getName())
            if status.isDirectory():
                found += [(f"{name}/{path}", size) for path, size in self.files(f"{folder}/{name}")]
            else:
                found.append((name, int(status.getLen())))
        return sorted(found)

    def read(self, path: str) -> bytes:
        """A whole small file; FileNotFoundError when it is not there."""
        if not self._fs.exists(self._path(path)):
            raise FileNotFoundError(self.uri(path))
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def write(self, path: str, content: bytes) -> None:
        """Write a small file into a folder that is still private; it is on disk."""
        stream = self._fs.create(self._path(path), False)
        stream.write(bytearray(content))
        stream.hsync()
        stream.close()

    def create(self, path: str, content: bytes) -> bool:
        """Create a small file, whole and on disk, folders included; False when it is there already."""
        folder, _, name = path.rpartition("/")
        self.make_folder(folder)
        draft = f"{folder}/.{name[:100]}.{uuid.uuid4().hex}"
        self.write(draft, content)
        if self._rename(draft, path):
            return True
        self.delete(draft)
        return False

    def make_folder(self, folder: str) -> None:
        """Create a folder and those above it."""
        self._fs.mkdirs(self._path(folder))

    def sync(self, folder: str) -> None:
        """Nothing to do: a closed HDFS file is on its data nodes, and a rename is in the NameNode's log."""

    def move(self, source: str, target: str) -> bool:
        """Rename a folder, exclusively; False when the target is taken, and nothing changed."""
        self.make_folder(target.rpartition("/")[0])
        return self._rename(source, target)

    def _rename(self, source: str, target: str) -> bool:
        option = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._jvm.java.lang.reflect.Array.newInstance(option.NONE.getClass(), 1)
        options[0] = option.NONE
        try:
            self._context.rename(self._path(source), self._path(target), options)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileAlreadyExistsException":
                return False
            raise
        return True

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all that is in it; nothing when it is not there."""
        self._fs.delete(self._path(path), True)

    def sha256(self, path: str) -> str:
        """SHA-256 of a file, in hex, computed in the JVM."""
        digest = self._jvm.java.security.MessageDigest.getInstance("SHA-256")
        stream = self._jvm.java.security.DigestInputStream(self._fs.open(self._path(path)), digest)
        try:
            stream.transferTo(self._jvm.java.io.OutputStream.nullOutputStream())
        finally:
            stream.close()
        return bytes(digest.digest()).hex()

    def age_s(self, path: str) -> float:
        """Seconds since the file or folder changed last; 0 when it is not there (any more)."""
        try:
            changed_ms = int(self._fs.getFileStatus(self._path(path)).getModificationTime())
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                return 0.0
            raise
        return time.time() - changed_ms / 1000

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        """A temporary copy on this machine, made by the JVM; FileNotFoundError when it is not there."""
        with tempfile.TemporaryDirectory(prefix="millrace-copy-") as folder:
            copy = Path(folder, path.rpartition("/")[2])
            # Raw: the copy is deleted in a moment, Hadoop's checksum file beside it is of no use.
            target = self._jvm.org.apache.hadoop.fs.Path(f"file://{copy}")
            if not self._fs.exists(self._path(path)):
                raise FileNotFoundError(self.uri(path))
            self._fs.copyToLocalFile(False, self._path(path), target, True)
            yield copy
