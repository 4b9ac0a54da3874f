"""The local file system of a warehouse: exclusive, whole, never nested."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage.filesystem import LocalFilesystem, open_filesystem


@pytest.fixture
def fs(tmp_path: Path) -> LocalFilesystem:
    return LocalFilesystem(str(tmp_path))


def staged(fs: LocalFilesystem, name: str) -> str:
    fs.create(f"_staging/{name}/date=1/file", name.encode())
    return f"_staging/{name}"


def test_a_move_makes_the_folder_visible_as_a_whole(fs: LocalFilesystem) -> None:
    assert fs.move(staged(fs, "a"), "load=1")
    assert fs.files("load=1") == [("date=1/file", 1)]
    assert fs.names("_staging") == []


def test_a_move_onto_a_folder_with_something_in_it_changes_nothing(fs: LocalFilesystem) -> None:
    fs.move(staged(fs, "a"), "load=1")
    assert not fs.move(staged(fs, "b"), "load=1")
    assert fs.read("load=1/date=1/file") == b"a"
    assert fs.files("load=1") == [("date=1/file", 1)]
    assert fs.names("_staging/b") == ["date=1"]


def test_an_empty_folder_in_the_way_is_taken_and_never_nested_into(fs: LocalFilesystem) -> None:
    fs.make_folder("load=1")
    assert fs.move(staged(fs, "a"), "load=1")
    assert fs.files("load=1") == [("date=1/file", 1)]


def test_of_many_movers_to_one_target_exactly_one_wins(fs: LocalFilesystem) -> None:
    for turn in range(20):
        sources = [staged(fs, f"{turn}-{index}") for index in range(4)]
        barrier, won = threading.Barrier(len(sources)), list[str]()

        def race(source: str, barrier: threading.Barrier = barrier, won: list[str] = won) -> None:
            barrier.wait()
            if fs.move(source, f"load={turn}"):  # noqa: B023  # joined within the turn
                won.append(source)

        threads = [threading.Thread(target=race, args=(source,)) for source in sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(won) == 1
        assert fs.read(f"load={turn}/date=1/file").decode() == won[0].removeprefix("_staging/")


def test_create_is_exclusive_and_leaves_no_draft(fs: LocalFilesystem) -> None:
    assert fs.create("_plans/run.json", b"first")
    assert not fs.create("_plans/run.json", b"second")
    assert fs.read("_plans/run.json") == b"first"
    assert fs.names("_plans") == ["run.json"]


def test_a_folder_that_is_touched_is_young_again(fs: LocalFilesystem) -> None:
    fs.make_folder("a")
    os.utime(fs.uri("a"), (0, 0))
    assert fs.age_s("a") > 1e9
    fs.touch("a")
    assert fs.age_s("a") < 1e6
    fs.touch("b")
    assert fs.names("") == ["a"]


def test_what_is_not_there_reads_as_nothing(fs: LocalFilesystem) -> None:
    assert fs.names("nowhere") == []
    assert fs.files("nowhere") == []
    fs.delete("nowhere")
    with pytest.raises(FileNotFoundError):
        fs.read("nowhere")


def test_of_many_that_delete_a_folder_nobody_fails_and_nothing_is_left(fs: LocalFilesystem) -> None:
    for number in range(200):
        (Path(fs.uri("old")) / str(number % 7)).mkdir(parents=True, exist_ok=True)
        fs.write(f"old/{number % 7}/{number}", b"")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fs.delete, ["old"] * 4))
    assert not fs.names("")


def test_a_folder_is_deleted_although_somebody_else_takes_each_of_its_entries_first(
    fs: LocalFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        fs.create(f"old/{number}", b"")
    unlink = os.unlink

    def unlink_twice(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_twice)
    fs.delete("old")
    assert not fs.names("")


def test_what_cannot_be_deleted_is_said(fs: LocalFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    fs.make_folder("kept")
    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(MillraceError, match=r"cannot delete .*kept: Operation not permitted"):
        fs.delete("kept")


def test_a_move_is_on_disk_with_every_folder_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fs = LocalFilesystem(str(tmp_path / "new" / "warehouse"))
    fs.create("topic/_staging/a/file", b"a")
    monkeypatch.setattr(LocalFilesystem, "_sync_one", staticmethod(synced.append))
    assert fs.move("topic/_staging/a", "topic/load=1")
    assert synced[:4] == [
        tmp_path / "new/warehouse/topic",
        tmp_path / "new/warehouse",
        tmp_path / "new",
        tmp_path,
    ]
    assert synced[-1].is_mount()


def test_a_file_that_is_there_already_is_on_disk_too(
    fs: LocalFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.create("_plans/run", b"first")
    synced: list[Path] = []
    monkeypatch.setattr(LocalFilesystem, "_sync_one", staticmethod(synced.append))
    assert not fs.create("_plans/run", b"second")
    assert synced[0] == Path(fs.uri("_plans"))


def test_the_local_copy_of_a_local_file_is_the_file_itself(fs: LocalFilesystem) -> None:
    fs.create("t/file", b"content")
    with fs.local_copy("t/file") as copy:
        assert copy == Path(fs.uri("t/file"))
    with pytest.raises(FileNotFoundError), fs.local_copy("t/gone"):
        pass


def test_a_warehouse_is_a_path_or_a_file_uri(tmp_path: Path) -> None:
    assert open_filesystem(str(tmp_path)).root == str(tmp_path)
    assert open_filesystem(f"file://{tmp_path}/with%20space").root == f"{tmp_path}/with space"


@pytest.mark.parametrize("uri", ["s3a://bucket/x", "gs://bucket", "file://host/x", "file://"])
def test_a_warehouse_without_an_exclusive_rename_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match="warehouse"):
        open_filesystem(uri)


def test_hdfs_without_spark_says_what_to_do() -> None:
    with pytest.raises(MillraceError, match="through Spark"):
        open_filesystem("hdfs://namenode/warehouse")
