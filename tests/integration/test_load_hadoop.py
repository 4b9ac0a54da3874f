"""The warehouse through Hadoop's own classes, as on HDFS; here they work on local files.

What local files cannot show is in tests/hdfs: that HDFS renames atomically, and what it puts on disk.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.hadoop_files import HadoopOnLocalFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def fs(spark: SparkSession, tmp_path: Path) -> HadoopOnLocalFiles:
    return HadoopOnLocalFiles(spark, f"file://{tmp_path}")


def visible(names: list[str]) -> list[str]:
    """Without the checksum files Hadoop keeps beside local files."""
    return [name for name in names if not name.endswith(".crc")]


def test_a_move_is_exclusive_and_never_nests(fs: HadoopOnLocalFiles) -> None:
    for name in ("a", "b"):
        fs.make_folder(f"_staging/{name}/date=1")
        fs.write(f"_staging/{name}/date=1/file", name.encode())
    assert fs.move("_staging/a", "topic/load=1")
    assert not fs.move("_staging/b", "topic/load=1")
    assert fs.read("topic/load=1/date=1/file") == b"a"
    assert visible(fs.names("topic/load=1")) == ["date=1"]
    assert visible(fs.names("_staging")) == ["b"]


def test_an_empty_folder_in_the_way_of_a_move_is_taken(fs: HadoopOnLocalFiles) -> None:
    fs.write("_staging/a/file", b"a")
    fs.make_folder("topic/load=1")
    assert fs.move("_staging/a", "topic/load=1")
    assert visible(fs.names("topic/load=1")) == ["file"]


def test_files_that_count_are_gathered_and_nothing_else(fs: HadoopOnLocalFiles) -> None:
    for name in ("date=1/a", "date=2/b", "date=2/stray"):
        fs.write(f"_staging/x.tasks/{name}", name.encode())
    fs.gather("_staging/x.tasks", "_staging/x", ["date=1/a", "date=2/b"])
    assert visible([path for path, _ in fs.files("_staging/x")]) == ["date=1/a", "date=2/b"]
    assert fs.read("_staging/x/date=2/b") == b"date=2/b"
    assert not fs.names("_staging/x/date=1/a")


def test_create_is_exclusive_and_leaves_no_draft(fs: HadoopOnLocalFiles) -> None:
    path = "topic/_plans/scheduled__2015-05-17T10%3A00%3A00%2B00%3A00.json"
    assert fs.create(path, b"first")
    assert not fs.create(path, b"second")
    assert fs.read(path) == b"first"
    assert visible(fs.names("topic/_plans")) == [path.rpartition("/")[2]]


def test_files_are_listed_hashed_and_deleted(fs: HadoopOnLocalFiles) -> None:
    content = bytes(range(256)) * 1_000
    fs.make_folder("t/load=1/date=1")
    fs.write("t/load=1/date=1/file", content)
    assert [each for each in fs.files("t") if not each[0].endswith(".crc")] == [
        ("load=1/date=1/file", len(content))
    ]
    assert fs.sha256("t/load=1/date=1/file") == hashlib.sha256(content).hexdigest()
    assert fs.age_s("t/load=1") < 60
    os.utime(fs.uri("t/load=1").removeprefix("file:"), (0, 0))
    assert fs.age_s("t/load=1") > 1e9
    fs.touch("t/load=1")
    assert fs.age_s("t/load=1") < 1e6
    fs.touch("nowhere")
    with fs.local_copy("t/load=1/date=1/file") as copy:
        assert copy.read_bytes() == content
    assert not copy.exists()
    fs.delete("t")
    assert not fs.names("t")
    assert not fs.files("t")
    with pytest.raises(FileNotFoundError):
        fs.read("t/load=1/date=1/file")
    with pytest.raises(FileNotFoundError), fs.local_copy("t/load=1/date=1/file"):
        pass
