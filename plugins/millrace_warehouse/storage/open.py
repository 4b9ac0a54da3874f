"""Finds the storage of a warehouse by its address. Only this module knows every kind of storage."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from millrace.errors import ConfigError
from millrace_warehouse.storage.hadoop_settings import find_webhdfs, read_settings
from millrace_warehouse.storage.hdfs import HdfsStorage
from millrace_warehouse.storage.interface import Storage
from millrace_warehouse.storage.local import LocalStorage

OBJECT_STORES = ("s3", "s3a", "gs", "abfs", "abfss")


def open_storage(warehouse: str) -> Storage:
    """Return the storage of a warehouse: a path, `file://`, `hdfs://`, `s3://`, `gs://` or `abfss://`.

    Raise ConfigError for any other address. The address is taken literally: `%20` is not a space.
    """
    scheme = urlsplit(warehouse).scheme if "://" in warehouse else ""
    if scheme in ("", "file"):
        return LocalStorage(_folder(warehouse))
    if scheme == "hdfs":
        return HdfsStorage(*find_webhdfs(warehouse, read_settings()))
    if scheme in OBJECT_STORES:
        # Imported only here, since obstore is an extra.
        from millrace_warehouse.storage.objects import ObjectStorage, settings_of

        root = warehouse.rstrip("/")
        return ObjectStorage(root, settings_of(root))
    raise ConfigError(
        f"warehouse {warehouse!r}: {scheme}:// is not a storage that Millrace supports: use file://, hdfs://, s3://,"
        " gs:// or abfss://"
    )


def _folder(warehouse: str) -> str:
    path = warehouse.replace("file://localhost/", "file:///", 1).removeprefix("file://")
    if not path:
        raise ConfigError(f"warehouse {warehouse!r} names no folder")
    if warehouse.startswith("file://") and not path.startswith("/"):
        raise ConfigError(f"warehouse {warehouse!r} names a host: write file:///path with three slashes")
    return str(Path(path).absolute())
