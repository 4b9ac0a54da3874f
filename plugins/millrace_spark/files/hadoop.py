"""A warehouse on HDFS, through the Hadoop classes of the Spark session's JVM.

`FileContext.rename` without options is the exclusive move: the NameNode does it atomically. The better
known `FileSystem.rename` would move the folder INTO an existing target and return true.

A closed file is whole and replicated, yet may be in the memory of its DataNodes only: a power cut of all of
them would lose it, and the NameNode, which syncs its log, would not. So whatever is published was closed
with SYNC_BLOCK: every DataNode of the pipeline puts data, checksums and folder on disk before it confirms.
Spark writes without it; `sync` opens each of its files once more, and closes it like that.

Bytes of data files never travel through py4j, and a listing is one call, whatever it holds.
"""

from __future__ import annotations

import re
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from millrace.errors import ConfigError, MillraceError
from millrace_spark.files.hadoop_errors import HdfsNotReady, class_of, explaining
from millrace_spark.files.task_storage import HdfsFolder, TaskStorage
from millrace_spark.files.webhdfs import WebHdfs, WebHdfsClient, web_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 120.0
"""How long a run waits for a NameNode that does not answer or is in safe mode, before it begins."""
CHECK_S = 15.0
"""How long WebHDFS may take for its first answer: the NameNode itself has answered a moment ago."""
THREADS = 16
"""Most files moved or synced at a time: each takes a few round trips, or waits for some disks."""
_BUFFER = 1 << 20
_AUTHORITY = re.compile(r"^\w+:(?://[^/]*)?")
# "sleep, times, sleep, times": about 48 s of safe mode, and seven minutes (Hadoop repeats the repeats) of a
# NameNode that does not answer at all. Without it a task fails at the first refused connection. Not where a
# nameservice fails over: each new connection would wait for its dead NameNode first.
_RETRY = {"dfs.client.retry.policy.enabled": "true", "dfs.client.retry.policy.spec": "2000,4,10000,4"}
_STATUS = re.compile(
    r"\w+\{path=(?P<path>.*?); isDirectory=(?:true|false; length=(?P<bytes>\d+); replication=\d+;"
    r" blocksize=(?P<block>\d+)); modification_time=\d+;.*?; isErasureCoded=(?P<coded>true|false)\}",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Status:
    """What the NameNode says of a file or a folder."""

    path: str
    bytes: int
    block_bytes: int
    erasure_coded: bool


def open_hadoop(spark: SparkSession, warehouse: str) -> HadoopFilesystem:
    """The warehouse at an `hdfs://` or `viewfs://` URI, once its NameNode is ready; MillraceError if not."""
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.hdfs.HdfsConfiguration.init()  # hdfs-site.xml: nobody may have needed it yet
    with explaining(warehouse):
        if not _fails_over(jvm, conf, warehouse):
            _keep_trying(conf)  # before the first connection, which is kept: also for Spark's own
        root = _qualified(jvm, conf, warehouse)
    _wait_until_ready(jvm, conf, root)
    return HadoopFilesystem(spark, root)


class HadoopFilesystem:
    """A warehouse on HDFS."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.root = root.rstrip("/")
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()
        self._java_uri = jvm.java.net.URI.create(self.root)
        self._context: Any = jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._java_uri, self._conf)
        self._fs: Any = jvm.org.apache.hadoop.fs.FileSystem.get(self._java_uri, self._conf)

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(path))

    def _listed(self, folder: str, recursive: bool) -> list[_Status]:
        """What is in a folder, by paths inside it, in one call of Java; [] when there is no such folder."""
        to_list = self._jvm.org.apache.hadoop.util.functional.RemoteIterators.toList
        path = self._path(folder)
        try:
            with explaining(self.root):
                entries = to_list(
                    self._fs.listFiles(path, True) if recursive else self._fs.listStatusIterator(path)
                )
                text, count = str(entries.toString()), int(entries.size())
        except FileNotFoundError:
            return []
        matches = list(_STATUS.finditer(text))
        if len(matches) != count:
            raise MillraceError(f"{self.uri(folder)}: this version of Hadoop lists files in another form")
        inside = f"{path.toUri().getPath().rstrip('/')}/"
        statuses = []
        for match in matches:
            full, size, block = _AUTHORITY.sub("", match["path"]), match["bytes"], match["block"]
            if full.startswith(inside):  # not the file itself
                coded = match["coded"] == "true"
                statuses.append(_Status(full.removeprefix(inside), int(size or 0), int(block or 0), coded))
        return statuses

    def names(self, folder: str) -> list[str]:
        return sorted(status.path for status in self._listed(folder, recursive=False))

    def files(self, folder: str) -> list[tuple[str, int]]:
        return sorted((status.path, status.bytes) for status in self._listed(folder, recursive=True))

    def read(self, path: str) -> bytes:
        with explaining(self.root), closing(self._fs.open(self._path(path))) as stream:
            return bytes(stream.readAllBytes())

    def write(self, path: str, content: bytes) -> None:
        with explaining(self.root):
            stream = self._create(path)
            stream.write(bytearray(content))
            stream.close()

    def _create(self, path: str) -> Any:
        """A stream into a new file, or one that is replaced, which is on disk once the stream is closed."""
        flags = self._flags("CREATE", "OVERWRITE", "SYNC_BLOCK")
        target = self._path(path)
        replication = self._fs.getDefaultReplication(target)
        block_bytes = self._fs.getDefaultBlockSize(target)
        # Not `create`, which makes the folder: a driver whose staging was swept would publish an empty one.
        stream = self._fs.createNonRecursive(target, None, flags, _BUFFER, replication, block_bytes, None)
        if not stream.hasCapability("hsync"):
            stream.close()
            self._fs.delete(target, False)
            raise _cannot_sync(self.uri(path))
        return stream

    def _flags(self, *names: str) -> Any:
        flag = self._jvm.org.apache.hadoop.fs.CreateFlag
        return self._jvm.java.util.EnumSet.of(*(getattr(flag, name) for name in names))

    def create(self, path: str, content: bytes) -> bool:
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/{_draft(name)}"
        self.make_folder(folder)
        self.write(draft, content)
        if self._rename(draft, path):
            return True
        self.delete(draft)
        return False

    def make_folder(self, folder: str) -> None:
        with explaining(self.root):
            self._fs.mkdirs(self._path(folder))

    def sync(self, folder: str) -> None:
        """Put every file in it on the disks of its DataNodes; folders are in the NameNode's log already."""
        conf = self._jvm.org.apache.hadoop.conf.Configuration(self._conf)
        # Files that were closed a moment ago may not be reported by all of their DataNodes yet. They are
        # synced on those that have: HDFS would look for another one instead, and might find none.
        conf.set("dfs.client.block.write.replace-datanode-on-failure.policy", "NEVER")
        new_instance = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance
        with closing(new_instance(self._java_uri, conf)) as fs, ThreadPoolExecutor(THREADS) as threads:
            sync = partial(self._sync_one, fs, folder)
            list(threads.map(sync, self._listed(folder, recursive=True)))

    def _sync_one(self, fs: Any, folder: str, status: _Status) -> None:
        path = f"{folder}/{status.path}"
        if status.erasure_coded:
            raise _cannot_sync(self.uri(path))
        with explaining(self.root):
            if 0 < status.bytes < status.block_bytes:
                fs.append(self._path(path), self._flags("APPEND", "SYNC_BLOCK"), _BUFFER, None).close()
            elif status.bytes:
                self._copy_over(path)

    def _copy_over(self, path: str) -> None:
        """Replace a file by a synced copy: only the last block of a file can be opened again."""
        folder, _, name = path.rpartition("/")
        draft = f"{folder}/{_draft(name)}"
        source = self._fs.open(self._path(path))
        self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, self._create(draft), _BUFFER, True)
        self._fs.delete(self._path(path), False)
        self._rename(draft, path)

    def move(self, source: str, target: str) -> bool:
        self.make_folder(target.rpartition("/")[0])
        if self._rename(source, target):
            return True
        # An empty folder is nobody's. The NameNode deletes it only if it is still empty.
        return not self.names(target) and self._delete_empty(target) and self._rename(source, target)

    def gather(self, source: str, target: str, paths: Iterable[str]) -> None:
        moves = list(paths)
        for folder in sorted({f"{target}/{path}".rpartition("/")[0] for path in moves}):
            self.make_folder(folder)
        with ThreadPoolExecutor(THREADS) as threads:
            olds, news = [f"{source}/{path}" for path in moves], [f"{target}/{path}" for path in moves]
            moved = list(threads.map(self._rename, olds, news))
        if not all(moved):
            raise MillraceError(f"{self.uri(target)} is written to by somebody else; run the load again")

    def _rename(self, source: str, target: str) -> bool:
        option = self._jvm.org.apache.hadoop.fs.Options.Rename
        options = self._jvm.java.lang.reflect.Array.newInstance(option.NONE.getClass(), 1)
        options[0] = option.NONE
        try:
            with explaining(self.root):
                self._context.rename(self._path(source), self._path(target), options)
        except FileExistsError:
            return False
        return True

    def _delete_empty(self, folder: str) -> bool:
        try:
            return bool(self._fs.delete(self._path(folder), False))
        except Py4JJavaError as error:
            if class_of(error) == "PathIsNotEmptyDirectoryException":
                return False
            raise

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all that is in it, past the trash; nothing when it is not there."""
        with explaining(self.root):
            self._fs.delete(self._path(path), True)

    def sha256(self, path: str) -> str:
        digest = self._jvm.java.security.MessageDigest.getInstance("SHA-256")
        digesting = self._jvm.java.security.DigestInputStream
        with explaining(self.root), closing(digesting(self._fs.open(self._path(path)), digest)) as stream:
            stream.transferTo(self._jvm.java.io.OutputStream.nullOutputStream())
        return bytes(digest.digest()).hex()

    def age_s(self, path: str) -> float:
        try:
            with explaining(self.root):
                changed_ms = int(self._fs.getFileStatus(self._path(path)).getModificationTime())
        except FileNotFoundError:
            return 0.0
        return time.time() - changed_ms / 1000

    def touch(self, folder: str) -> None:
        with suppress(FileNotFoundError), explaining(self.root):
            self._fs.setTimes(self._path(folder), int(time.time() * 1000), -1)

    @contextmanager
    def local_copy(self, path: str) -> Iterator[Path]:
        """A temporary copy on this machine, made by the JVM; FileNotFoundError when it is not there."""
        with tempfile.TemporaryDirectory(prefix="millrace-copy-") as folder:
            copy = Path(folder, path.rpartition("/")[2])
            target = self._jvm.org.apache.hadoop.fs.Path(f"file://{copy}")
            with explaining(self.root):
                # Raw: the copy is deleted in a moment, Hadoop's checksum file beside it is of no use.
                self._fs.copyToLocalFile(False, self._path(path), target, True)
            yield copy

    def for_tasks(self) -> TaskStorage:
        """Through WebHDFS, as this user; ConfigError when it cannot be reached, or wants Kerberos."""
        if self._conf.get("hadoop.security.authentication", "simple") != "simple":
            raise _no_webhdfs(self.root, "Kerberos keeps it from tasks")
        hadoop, root = self._jvm.org.apache.hadoop, self._path("")
        umask = hadoop.fs.permission.FsPermission.getUMask(self._conf).toShort()
        where = WebHdfs(
            addresses=web_addresses(self._conf.getTrimmed, self._java_uri.getAuthority()),
            user=hadoop.security.UserGroupInformation.getCurrentUser().getShortUserName(),
            new_files={  # as the JVM's own client has them
                "permission": f"{0o666 & ~umask:o}",
                "unmaskedpermission": "666",
                "replication": str(self._fs.getDefaultReplication(root)),
                "blocksize": str(self._fs.getDefaultBlockSize(root)),
            },
        )
        try:
            with closing(WebHdfsClient(replace(where, patience_s=CHECK_S))) as client:
                client.check()
        except MillraceError as error:
            raise _no_webhdfs(self.root, str(error)) from None
        return HdfsFolder(where)


def _draft(name: str) -> str:
    """The name of a file on its way to its own; nobody looks at names that begin with a dot."""
    return f".{name[:100]}.{uuid.uuid4().hex}"


def _fails_over(jvm: Any, conf: Any, warehouse: str) -> bool:
    """True if the URI names a nameservice with several NameNodes; of a mount table, if any service does."""
    uri, default = jvm.java.net.URI.create(warehouse), jvm.org.apache.hadoop.fs.FileSystem.getDefaultUri(conf)
    services = [uri.getAuthority() or default.getAuthority()]
    if uri.getScheme() == "viewfs":
        services += conf.getTrimmedStrings("dfs.nameservices")
    return any(conf.get(f"dfs.client.failover.proxy.provider.{service}") for service in services)


def _keep_trying(conf: Any) -> None:
    """Set what the configuration does not say itself; Hadoop's own defaults do not count."""
    for key, value in _RETRY.items():
        if set(conf.getPropertySources(key) or ()) <= {"hdfs-default.xml"}:
            conf.set(key, value)


def _qualified(jvm: Any, conf: Any, warehouse: str) -> str:
    """The URI with its NameNode: without a host it is the configured one, in a mount table the mounted one.

    A rename is exclusive inside one file system only, so all of a warehouse lies behind one NameNode.
    """
    fs = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI.create(warehouse), conf)
    path, below = fs.makeQualified(jvm.org.apache.hadoop.fs.Path(warehouse)), ""
    if path.toUri().getScheme() == "viewfs":
        while not fs.exists(path) and path.getParent() is not None:
            below = f"/{path.getName()}{below}"
            path = path.getParent()
        path = fs.resolvePath(path)
    if path.toUri().getScheme() != "hdfs":
        raise ConfigError(f"warehouse {warehouse!r} is not in HDFS: it leads to {path.toString()}")
    return f"{path.toString().rstrip('/')}{below}"


def _wait_until_ready(jvm: Any, conf: Any, root: str) -> None:
    """MillraceError unless the NameNode answers and is out of safe mode within WAIT_S."""
    own = jvm.org.apache.hadoop.conf.Configuration(conf)
    own.set("dfs.client.retry.policy.enabled", "false")  # or one question would take minutes
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            _ask_namenode(jvm, own, root)
            return
        except HdfsNotReady as error:
            if time.monotonic() > deadline:
                raise MillraceError(f"{error} (waited {WAIT_S:.0f} s)") from None
        time.sleep(1)


def _ask_namenode(jvm: Any, conf: Any, root: str) -> None:
    new_instance = jvm.org.apache.hadoop.fs.FileSystem.newInstance
    with explaining(root), closing(new_instance(jvm.java.net.URI.create(root), conf)) as fs:
        safe_mode = fs.isInSafeMode()
    if safe_mode:
        raise HdfsNotReady(
            f"{root}: the NameNode is in safe mode: see `hdfs dfsadmin -safemode get`, and run again when it"
            " says OFF"
        )


def _cannot_sync(uri: str) -> MillraceError:
    return MillraceError(
        f"{uri} is erasure coded, HDFS cannot put such a file on disk before it is published: give the"
        " warehouse's folder replicas (hdfs ec -setPolicy -replicate -path ...), then run again"
    )


def _no_webhdfs(root: str, reason: str) -> ConfigError:
    return ConfigError(
        f"sink `direct` writes to {root} through WebHDFS, and cannot ({reason}): use --sink spark"
    )
