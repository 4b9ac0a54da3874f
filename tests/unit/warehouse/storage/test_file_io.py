"""pyiceberg over the storage: a table that it writes is on disk, and every other reader finds it."""

from __future__ import annotations

import io
import os
import pickle
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from millrace_warehouse.storage.file_io import PY_IO_IMPL, StorageFileIO

ROWS = pa.table({"number": pa.array(range(1000), pa.int64())})


def catalog(folder: Path, **properties: str) -> SqlCatalog:
    return SqlCatalog("test", uri=f"sqlite:///{folder}/catalog.db", **properties)


def test_a_table_is_written_and_scanned_and_other_readers_see_it(tmp_path: Path) -> None:
    with catalog(tmp_path, **{"py-io-impl": PY_IO_IMPL}) as ours:
        ours.create_namespace("lake")
        table = ours.create_table("lake.t", ROWS.schema, location=f"file://{tmp_path}/with space/t")
        table.append(ROWS)
        table.append(ROWS)
        assert isinstance(table.io, StorageFileIO)
        assert table.scan(row_filter="number >= 990").to_arrow().num_rows == 20
        # Without our setting: pyiceberg's own file system.
        other = StaticTable.from_metadata(table.metadata_location)
        assert other.scan().to_arrow().num_rows == 2000
        assert not isinstance(other.io, StorageFileIO)


def test_a_file_is_found_by_the_name_that_spark_gives_it(tmp_path: Path) -> None:
    (tmp_path / "a b").write_bytes(b"rows")
    for location in (f"file:{tmp_path}/a b", f"file://{tmp_path}/a b", f"{tmp_path}/a b"):
        with StorageFileIO().new_input(location).open() as source:
            assert source.read() == b"rows"


def test_whatever_a_table_names_is_on_disk_before_the_catalog_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", note)
    with catalog(tmp_path, **{"py-io-impl": PY_IO_IMPL}) as ours:
        ours.create_namespace("lake")
        table = ours.create_table("lake.t", ROWS.schema, location=f"file://{tmp_path}/t")
        table.append(ROWS)
    stored = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    assert len(stored) == 5  # two metadata files, a manifest list, a manifest, the rows
    assert {str(path) for path in stored} <= synced
    assert {str(path.parent) for path in stored} | {str(tmp_path)} <= synced


def test_a_file_that_is_there_is_not_written_again_unless_asked(tmp_path: Path) -> None:
    output = StorageFileIO().new_output(f"{tmp_path}/a/file")
    with output.create() as stream:
        assert (stream.write(b"12"), stream.tell()) == (2, 2)
    assert (len(output), output.exists()) == (2, True)
    with pytest.raises(FileExistsError):
        output.create()
    with output.create(overwrite=True) as stream:
        stream.write(b"345")
    with output.to_input_file().open() as file:
        assert (file.seek(-1, io.SEEK_END), file.read()) == (2, b"5")


def test_a_stream_left_with_an_error_stores_nothing(tmp_path: Path) -> None:
    output = StorageFileIO().new_output(f"file://{tmp_path}/file")
    with suppress(ZeroDivisionError), output.create() as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert stream.closed
    assert not output.exists()
    with pytest.raises(FileNotFoundError), output.to_input_file().open() as file:
        file.read()


def test_files_are_deleted_by_location_input_or_output(tmp_path: Path) -> None:
    files = StorageFileIO()
    for name in ("a", "b", "c"):
        files.new_output(f"{tmp_path}/{name}").create().close()
    assert len(list(tmp_path.iterdir())) == 3
    files.delete(f"file://{tmp_path}/a")
    files.delete(files.new_input(f"{tmp_path}/b"))
    files.delete(files.new_output(f"{tmp_path}/c"))
    assert not list(tmp_path.iterdir())


def test_it_travels_to_other_processes(tmp_path: Path) -> None:
    files = StorageFileIO({"owner": "me"})
    files.new_output(f"{tmp_path}/a").create().close()
    copy = pickle.loads(pickle.dumps(files))
    assert copy.properties == {"owner": "me"}
    assert copy.new_input(f"{tmp_path}/a").exists()
