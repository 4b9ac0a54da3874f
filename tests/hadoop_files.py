"""A warehouse on local files through Hadoop's own classes: what of HDFS can be had without a NameNode."""

from __future__ import annotations

from typing import Any

from millrace_warehouse.storage.hadoop import HadoopFilesystem


class HadoopOnLocalFiles(HadoopFilesystem):
    """As on HDFS, except that Hadoop's local files cannot be put on disk: nothing here asks for it."""

    def _create(self, path: str) -> Any:
        return self._fs.create(self._path(path), True)

    def sync(self, folder: str) -> None:
        """Nothing."""
