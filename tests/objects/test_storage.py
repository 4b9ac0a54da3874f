"""Storage on a real object store, also when answers are lost, late or wrong."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from millrace.errors import MillraceError
from millrace_warehouse.storage import Storage, Written, measure, objects, open_file, open_storage
from millrace_warehouse.storage.objects import ObjectStorage
from tests.peers.fault_proxy import FaultProxy
from tests.peers.seaweedfs import SeaweedFS
from tests.support import REPOSITORY
from tests.warehouses import race_to_create

PARTS = 20 << 20
"""Bytes of a file that is uploaded in several parts."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PAUSE_S", 0.05)


def test_what_is_stored_is_listed_read_and_deleted(storage: Storage) -> None:
    assert storage.names("") == []
    written = storage.put("t/a b%=1/x", io.BytesIO(b"0123456789"))
    assert written == Written(10, sha256(b"0123456789").hexdigest())
    assert measure(storage, "t/a b%=1/x") == written
    assert storage.read("t/a b%=1/x", 3, 4) == b"3456"
    assert storage.read("t/a b%=1/x", 8) == b"89"
    assert storage.read("t/a b%=1/x", 8, 10) == b"89"
    assert [storage.read("t/a b%=1/x", at, 5) for at in (10, 12)] == [b"", b""]
    assert storage.read("t/a b%=1/x", 10) == b""
    assert [(each.path, each.bytes) for each in storage.files("t")] == [("a b%=1/x", 10)]
    assert [(each.path, each.bytes) for each in storage.files("t/a b%=1/x")] == [("", 10)]
    assert storage.names("t") == ["a b%=1"]
    for path in ("t", "t/a", "nowhere"):
        with pytest.raises(FileNotFoundError):
            storage.read(path)
    storage.delete("t/a b%=1/x")
    storage.delete("t/a b%=1/x")
    assert storage.files("t") == []


def test_a_folder_is_deleted_with_all_that_is_in_it_and_nothing_beside_it(storage: Storage) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: storage.put(f"t/{n % 7}/{n}", io.BytesIO(b"1")), range(300)))
    storage.put("t2/x", io.BytesIO(b""))
    assert len(storage.files("t")) == 300
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(storage.delete, ["t"] * 3))
    assert [each.path for each in storage.files("")] == ["t2/x"]


def test_names_begin_behind_a_name_in_a_folder_of_any_size(storage: Storage) -> None:
    def fill(number: int) -> None:
        storage.put(f"loads/{number:010d}.json", io.BytesIO(b"1"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(fill, range(1, 2_101)))
    storage.put("loads/f/x", io.BytesIO(b""))
    assert len(storage.names("loads")) == 2_101
    assert storage.names("loads", after=f"{2_099:010d}.json") == [f"{2_100:010d}.json", "f"]
    assert len(storage.names("loads", after=f"{1_000:010d}.json")) == 1_101


def test_a_file_in_several_parts_is_whole(storage: Storage) -> None:
    content = os.urandom(PARTS)
    assert storage.put("big", io.BytesIO(content)) == Written(PARTS, sha256(content).hexdigest())
    assert storage.read("big") == content
    with open_file(storage, "big") as file:
        assert file.seek(-7, io.SEEK_END) == PARTS - 7
        assert file.read() == content[-7:]


def test_of_many_creators_exactly_one_wins(storage: Storage) -> None:
    assert storage.create("loads/warm", b"1")
    race_to_create(storage, turns=20)
    assert len(storage.files("loads")) == 21  # and nothing of the trial of the store


def test_a_storage_travels_to_a_process_without_the_variables(storage: Storage) -> None:
    storage.put("a", io.BytesIO(b"1"))
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).read('a'))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["PYTHONPATH"] = f"{REPOSITORY}/broker:{REPOSITORY}/plugins"
    ended = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(storage), capture_output=True, env=environment
    )
    assert ended.stdout.decode().strip() == "b'1'", ended.stderr.decode()


@pytest.mark.parametrize("fault", ["refuse", "busy", "lose", "fail", "deny"])
def test_a_create_whose_answer_is_lost_or_wrong_says_what_is_true(
    fault: str, storage: Storage, through_proxy: Storage, proxy: FaultProxy
) -> None:
    through_proxy.create("loads/warm", b"1")
    proxy.times(1, fault, "PUT")
    assert through_proxy.create("loads/1", b"mine")
    proxy.times(1, fault, "PUT")
    assert not through_proxy.create("loads/1", b"another's")
    assert proxy.met == [fault, fault]
    assert storage.read("loads/1") == b"mine"


def test_a_create_without_an_answer_is_asked_for_again(
    storage: Storage, through_proxy: Storage, proxy: FaultProxy
) -> None:
    assert isinstance(through_proxy, ObjectStorage)
    impatient = ObjectStorage(through_proxy.root, through_proxy.settings, patience_s=2.0)
    impatient.create("loads/warm", b"1")
    proxy.times(1, "stall", "PUT")
    assert impatient.create("loads/1", b"mine")
    assert proxy.met == ["stall"]
    assert storage.read("loads/1") == b"mine"


@pytest.mark.parametrize("fault", ["refuse", "busy", "lose", "fail"])
@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("size", [1_000, PARTS])
def test_an_upload_goes_on_whatever_answer_is_lost(
    fault: str, method: str, size: int, storage: Storage, through_proxy: Storage, proxy: FaultProxy
) -> None:
    content = os.urandom(size)
    proxy.times(2, fault, method)
    assert through_proxy.put("file", io.BytesIO(content)) == Written(size, sha256(content).hexdigest())
    assert storage.read("file") == content
    assert bool(proxy.met) == (method == "PUT" or size == PARTS)


@pytest.mark.parametrize("fault", ["refuse", "busy", "lose", "fail", "cut"])
def test_what_is_read_or_listed_does_not_depend_on_one_answer(
    fault: str, storage: Storage, through_proxy: Storage, proxy: FaultProxy
) -> None:
    content = os.urandom(100_000)
    storage.put("t/a", io.BytesIO(content))
    reads: list[Callable[[], bool]] = [
        lambda: through_proxy.read("t/a") == content,
        lambda: through_proxy.read("t/a", 7, 50_000) == content[7:50_007],
        lambda: through_proxy.names("t") == ["a"],
        lambda: through_proxy.names("t", after="A") == ["a"],
        lambda: [each.bytes for each in through_proxy.files("t")] == [100_000],
    ]
    for read in reads:
        proxy.times(1, fault, "GET")
        assert read()
    assert proxy.met == [fault] * 5


def test_a_delete_is_repeated(storage: Storage, through_proxy: Storage, proxy: FaultProxy) -> None:
    for name in ("a", "b"):
        storage.put(f"t/{name}", io.BytesIO(b"1"))
    proxy.times(1, "lose", "POST")
    through_proxy.delete("t")
    assert storage.files("t") == []


def test_the_wait_for_a_store_that_is_gone_is_bounded_and_said_in_one_sentence(
    through_proxy: Storage, proxy: FaultProxy
) -> None:
    assert isinstance(through_proxy, ObjectStorage)
    impatient = ObjectStorage(through_proxy.root, through_proxy.settings, patience_s=1.0)
    proxy.fault = lambda method, path: "refuse"
    verbs: list[Callable[[], object]] = [
        lambda: impatient.read("a"),
        lambda: impatient.put("a", io.BytesIO(b"1")),
        lambda: impatient.create("a", b"1"),
        lambda: impatient.names(""),
    ]
    for verb in verbs:
        with pytest.raises(MillraceError, match=r"cannot \w+ s3://.*check the store and AWS_\*") as error:
            verb()
        assert "\n" not in str(error.value)


def test_wrong_credentials_are_one_sentence(
    seaweedfs: SeaweedFS, warehouse: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**seaweedfs.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MillraceError, match=r"signature .* does not match .*: let the identity in AWS_\*"):
        open_storage(warehouse).put("a", io.BytesIO(b"1"))


def test_a_server_that_is_killed_and_comes_back_is_waited_for(seaweedfs: SeaweedFS, storage: Storage) -> None:
    storage.put("before", io.BytesIO(b"1"))
    seaweedfs.kill()
    restart = threading.Thread(target=seaweedfs.start)
    restart.start()
    assert storage.create("loads/1", b"mine")
    restart.join(60)
    assert storage.read("before") == b"1"
    assert not storage.create("loads/1", b"another's")
