"""A warehouse in a local folder: exclusive, whole and on disk."""

from __future__ import annotations

import errno
import io
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage import Written, measure, open_file, open_storage
from millrace_warehouse.storage.local import LocalStorage
from tests.warehouses import race_to_create


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def listing(storage: LocalStorage, folder: str) -> list[tuple[str, int]]:
    return [(listed.path, listed.bytes) for listed in storage.files(folder)]


def test_create_is_exclusive_and_leaves_no_draft(storage: LocalStorage) -> None:
    assert storage.create("plans/run.json", b"first")
    assert not storage.create("plans/run.json", b"second")
    assert storage.read("plans/run.json") == b"first"
    assert listing(storage, "plans") == [("run.json", 5)]


def test_a_create_that_is_repeated_has_succeeded(storage: LocalStorage) -> None:
    assert storage.create("plans/run.json", b"first")
    assert storage.create("plans/run.json", b"first")


def test_of_many_creators_exactly_one_wins(storage: LocalStorage) -> None:
    race_to_create(storage, turns=30)


def test_put_says_what_it_stored_and_replaces_what_an_attempt_has_left(storage: LocalStorage) -> None:
    storage.put("rows/1/a.parquet", io.BytesIO(b"longer than the next"))
    content = os.urandom(20 << 20)
    written = storage.put("rows/1/a.parquet", io.BytesIO(content))
    assert written == Written(len(content), sha256(content).hexdigest())
    assert storage.read("rows/1/a.parquet") == content
    assert measure(storage, "rows/1/a.parquet") == written


def test_a_part_of_a_file_is_read_by_its_range(storage: LocalStorage) -> None:
    storage.put("a", io.BytesIO(b"0123456789"))
    assert storage.read("a", 3, 4) == b"3456"
    assert storage.read("a", 8) == b"89"
    assert storage.read("a", 8, 100) == b"89"
    assert storage.read("a", 10, 5) == b""


def test_an_open_file_reads_what_is_sought(storage: LocalStorage) -> None:
    content = os.urandom(3 << 20)
    storage.put("t/a", io.BytesIO(content))
    with open_file(storage, "t/a") as file:
        assert file.seek(-100, io.SEEK_END) == len(content) - 100
        assert file.read() == content[-100:]
        file.seek(7)
        assert file.read(2 << 20) == content[7 : 7 + (2 << 20)]
    with pytest.raises(FileNotFoundError):
        open_file(storage, "t/b").read()
    with pytest.raises(FileNotFoundError):
        open_file(storage, "t").seek(0, io.SEEK_END)


def test_names_are_sorted_begin_behind_a_name_and_leave_drafts_out(storage: LocalStorage) -> None:
    for name in ("b", "a/x", "c", ".draft.1"):
        storage.put(f"t/{name}", io.BytesIO(b""))
    assert storage.names("t") == ["a", "b", "c"]
    assert storage.names("t", after="a") == ["b", "c"]
    assert [listed.path for listed in storage.files("t")] == [".draft.1", "a/x", "b", "c"]


def test_the_listing_of_a_file_is_that_file(storage: LocalStorage) -> None:
    storage.put("t/a", io.BytesIO(b"12"))
    (found,) = storage.files("t/a")
    assert (found.path, found.bytes) == ("", 2)
    assert found.modified == Path(storage.folder, "t/a").stat().st_mtime


def test_what_is_not_there_reads_as_nothing(storage: LocalStorage) -> None:
    assert storage.names("nowhere") == []
    assert storage.files("nowhere") == []
    storage.delete("nowhere")
    with pytest.raises(FileNotFoundError):
        storage.read("nowhere")
    with pytest.raises(FileNotFoundError):
        measure(storage, "nowhere")


def test_a_listing_is_whole_or_it_is_said_what_is_wrong_with_a_folder(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("T/rows/one/a", io.BytesIO(b"1"))
    storage.put("T/rows/two/b", io.BytesIO(b"2"))
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("/two"):
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(MillraceError, match="Stale file handle"):
        storage.files("T/rows")


def test_of_many_that_delete_a_folder_nobody_fails_and_nothing_is_left(storage: LocalStorage) -> None:
    for number in range(200):
        path = Path(storage.folder, "old", str(number % 7), str(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(storage.delete, ["old"] * 4))
    assert not storage.names("")


def test_a_folder_is_deleted_although_somebody_else_takes_each_of_its_entries_first(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        storage.create(f"old/{number}", b"")
    unlink = os.unlink

    def unlink_twice(path: str, *, dir_fd: int | None = None) -> None:
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_twice)
    storage.delete("old")
    assert not storage.names("")


def test_what_cannot_be_deleted_is_said(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    storage.create("kept/a", b"")
    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(MillraceError, match=r"cannot delete .*kept: Operation not permitted: let this user"):
        storage.delete("kept")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_sentence(storage: LocalStorage) -> None:
    Path(storage.folder, "a").symlink_to("/dev/full")
    with pytest.raises(MillraceError, match=r"cannot write .*/a: No space left on device: make room"):
        storage.put("a", io.BytesIO(b"1"))


@pytest.mark.parametrize("verb", ["put", "create", "create again"])
def test_what_is_stored_is_on_disk_with_every_folder_above_it(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path / "new" / "warehouse"))
    if verb == "create again":
        storage.create("topic/a", b"first")
    synced: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    if verb == "put":
        storage.put("topic/a", io.BytesIO(b"a"))
    else:
        assert storage.create("topic/a", b"a") == (verb == "create")
    file, *folders = synced
    assert file.parent == tmp_path / "new/warehouse/topic"
    assert folders[:4] == [
        tmp_path / "new/warehouse/topic",
        tmp_path / "new/warehouse",
        tmp_path / "new",
        tmp_path,
    ]
    assert folders[-1].is_mount()


def test_a_storage_travels_to_tasks(storage: LocalStorage) -> None:
    storage.create("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"


def test_a_warehouse_is_a_path_or_a_file_uri_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_storage("lake").root == f"file://{tmp_path}/lake"
    assert open_storage(f"file://localhost{tmp_path}/lake/").root == f"file://{tmp_path}/lake"
    spaced = open_storage(f"file://{tmp_path}/with space")
    assert spaced.create("a", b"")
    assert spaced.uri("a") == f"file://{tmp_path}/with space/a"
    assert Path(tmp_path, "with space", "a").exists()


@pytest.mark.parametrize("address", ["ftp://host/x", "file://host/x", "file://", ""])
def test_an_address_that_is_no_warehouse_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="warehouse"):
        open_storage(address)


def test_a_folder_above_that_this_user_may_not_read_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Path, flags: int) -> int:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags)

    storage = LocalStorage(str(tmp_path / "lake"))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert storage.create("a", b"1")
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid)
    with pytest.raises(MillraceError, match="Permission denied"):
        storage.create("b", b"1")
