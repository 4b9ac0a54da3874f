"""Refusals of HDFS with Kerberos, each in one sentence; tickets and tokens that end; and an open door."""

from __future__ import annotations

import io
import pickle
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.storage import gss
from millrace_warehouse.storage.gss import NoTicket
from millrace_warehouse.storage.hdfs import HdfsStorage
from tests.hadoop.conftest import RENEW_S, USER, client_conf, environment, identity, storage_at
from tests.peers.hdfs import Hdfs
from tests.peers.kdc import HOST, REALM, Kdc
from tests.peers.secured import Security
from tests.support import child, wait_until


def refused(storage: HdfsStorage) -> str:
    """The one line with which a new driver is refused."""
    began = time.monotonic()
    with pytest.raises(MillraceError) as error:
        HdfsStorage(storage.root, storage.where).names("")
    assert "\n" not in str(error.value)
    assert time.monotonic() - began < 60, "nothing that cannot pass is tried again"
    return str(error.value)


def test_no_server_takes_a_name_for_a_ticket(hdfs: Hdfs, security: Security) -> None:
    with httpx.Client(verify=ssl.create_default_context(cafile=security.ca), trust_env=False) as client:
        for address in (hdfs.namenode.web, hdfs.datanodes[0].web):
            url = f"https://{address}/webhdfs/v1/warehouses"
            answer = client.get(url, params={"op": "OPEN", "user.name": "hdfs"})
            assert answer.status_code in (401, 403)


def test_without_a_ticket_the_sentence_says_how_to_get_one(storage: HdfsStorage, tmp_path: Path) -> None:
    with environment(identity(None, tmp_path / "none")):
        words = refused(storage)
    assert words.startswith(f"Hadoop asks for a Kerberos ticket for HTTP/{HOST} (No Kerberos credentials")
    assert words.endswith("there is no ticket: run kinit, or set KRB5_CLIENT_KTNAME to a keytab")


def test_a_keytab_that_cannot_be_read_is_named(storage: HdfsStorage, tmp_path: Path) -> None:
    with environment(identity(tmp_path / "gone.keytab", tmp_path / "none")):
        assert f"by the keytab {tmp_path}/gone.keytab" in (words := refused(storage))
    assert "this user cannot read the keytab" in words


def test_a_keytab_with_an_old_key_is_named(storage: HdfsStorage, kdc: Kdc, tmp_path: Path) -> None:
    old = kdc.keytab("old", ["old"])
    kdc.change_key("old")
    with environment(identity(old, tmp_path / "old.cache")):
        words = refused(storage)
    assert f"by the keytab {old} (" in words
    assert words.endswith("export the keytab again")


def test_a_principal_that_the_kdc_does_not_know_is_named(
    storage: HdfsStorage, kdc: Kdc, tmp_path: Path
) -> None:
    keytab = kdc.keytab("left", ["left"])
    kdc.delete("left")
    with environment(identity(keytab, tmp_path / "left.cache")):
        assert f"(Client 'left@{REALM}' not found in Kerberos database)" in refused(storage)


def test_a_principal_without_a_rule_on_the_namenode_is_named(
    storage: HdfsStorage, kdc: Kdc, tmp_path: Path
) -> None:
    keytab = kdc.keytab("odd", ["a/b/c"])
    with environment(identity(keytab, tmp_path / "odd.cache")):
        words = refused(storage)
    assert f"refuses the ticket of a/b/c@{REALM} (" in words
    assert "hadoop.security.auth_to_local has a rule" in words


def test_a_namenode_that_has_no_principal_is_named(storage: HdfsStorage) -> None:
    addresses = tuple(address.replace(HOST, "127.0.0.1") for address in storage.where.addresses)
    words = refused(HdfsStorage(storage.root, replace(storage.where, addresses=addresses)))
    assert f"of {USER}@{REALM} for HTTP/127.0.0.1" in words
    assert "not found in Kerberos database" in words


@contextmanager
def clock_of(kdc: Kdc, offset: str) -> Iterator[None]:
    """While inside, the KDC's clock is wrong."""
    kdc.kill()
    kdc.start(clock=offset)
    try:
        yield
    finally:
        kdc.kill()
        kdc.start()


def test_clocks_that_differ_are_named_by_either_side(
    storage: HdfsStorage, kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    trusting = {"KRB5_CONFIG": str(kdc.client_conf("own-clock.conf", timesync=False))}
    with clock_of(kdc, "+1h"):
        with environment({**identity(keytab, tmp_path / "one.cache"), **trusting}):
            words = refused(storage)
        assert "Clock skew too great" in words
        assert words.endswith("the clocks of this machine and of the KDC differ: set them by NTP")
        # A client that takes over the KDC's clock comes to servers with another one.
        with environment(identity(keytab, tmp_path / "two.cache")):
            words = refused(storage)
        assert f"refuses the ticket of {USER}@{REALM} (" in words
        assert "check its clock" in words


def test_a_missing_library_is_named(
    storage: HdfsStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gss._library.cache_clear()
    monkeypatch.setattr(gss, "_LIBRARY", "libgssapi_gone.so.2")
    monkeypatch.setenv("KRB5CCNAME", str(tmp_path / "none"))  # a client that has no token yet
    try:
        assert "libgssapi_gone.so.2 is not installed: install it (Debian:" in refused(storage)
    finally:
        gss._library.cache_clear()


def test_a_certificate_that_is_not_trusted_is_refused_at_once(storage: HdfsStorage, tmp_path: Path) -> None:
    words = refused(HdfsStorage(storage.root, replace(storage.where, ca_file="")))
    assert "has a certificate that is not trusted" in words
    assert "let MILLRACE_HDFS_CA name the PEM file" in words
    with pytest.raises(ConfigError, match=r"MILLRACE_HDFS_CA names .*gone\.pem"):
        HdfsStorage(storage.root, replace(storage.where, ca_file=str(tmp_path / "gone.pem"))).names("")


def test_a_task_goes_on_by_the_token_as_long_as_its_driver_lives(
    storage: HdfsStorage, tmp_path: Path
) -> None:
    storage.put("a", io.BytesIO(b"1"))
    task = pickle.loads(pickle.dumps(storage))
    for _ in range(3):
        time.sleep(RENEW_S / 2)
        assert task.names("") == ["a"]
    assert task.where.token == storage._client.token_for_tasks()
    handed = tmp_path / "handed"
    assert child(lambda: handed.write_bytes(pickle.dumps(storage))) == 0
    orphan = pickle.loads(handed.read_bytes())  # its driver has ended, so nothing renews the token
    assert orphan.where.token != task.where.token

    def ended() -> str:
        try:
            orphan.names("")
        except MillraceError as error:
            return str(error)
        return ""

    words = wait_until("the token ends", ended, timeout_s=3 * RENEW_S)
    assert "HDFS takes the delegation token no longer (Token" in words
    assert "\n" not in words
    assert orphan.where.token not in words


DRIVER = """
import pickle, sys
from pathlib import Path
from millrace_warehouse.storage import open_storage
storage = open_storage(sys.argv[1])
storage.names("")
Path(sys.argv[2]).write_text(storage._client._namenodes._own)
if sys.argv[3] == "hands":
    pickle.dumps(storage)
"""


@pytest.mark.parametrize("hands", [True, False])
def test_a_process_that_ends_cancels_its_token_unless_a_task_has_got_it(
    storage: HdfsStorage, tmp_path: Path, hands: bool
) -> None:
    arguments = [storage.root, str(tmp_path / "token"), "hands" if hands else "keeps"]
    subprocess.run([sys.executable, "-c", DRIVER, *arguments], timeout=120, check=True)
    token = (tmp_path / "token").read_text()
    task = HdfsStorage(storage.root, replace(storage.where, token=token, kerberos=False))
    if hands:
        assert task.names("") == []
    else:
        with pytest.raises(MillraceError, match="HDFS takes the delegation token no longer"):
            task.names("")


def test_every_storage_of_a_process_goes_on_by_one_token(storage: HdfsStorage) -> None:
    assert storage.names("") == []
    another = storage_at(storage.root)
    assert another.names("") == []
    assert another._client.token_for_tasks() == storage._client.token_for_tasks() != ""


def test_a_ticket_that_expires_ends_with_its_token_and_a_new_one_continues(
    storage: HdfsStorage, kdc: Kdc, keytab: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "short.cache"
    kdc.ticket(keytab, USER, cache, life="4s")
    with environment(identity(None, cache)):
        storage.put("a", io.BytesIO(b"1"))
        time.sleep(5)
        assert storage.names("") == ["a"], "the token is enough"

        def ended() -> str:
            try:
                storage.names("")
            except NoTicket as error:
                return str(error)
            return ""

        words = wait_until("the token ends, too", ended, timeout_s=3 * RENEW_S)
        assert "the ticket has expired: run kinit" in words
        kdc.ticket(keytab, USER, cache)
        assert storage.names("") == ["a"]


def test_a_webhdfs_that_takes_a_name_without_a_ticket_is_reported_once(
    security: Security, hdfs: Hdfs, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trap: every other setting of Kerberos is made, and these have other defaults."""
    simple = {"type": "simple", "simple.anonymous.allowed": "true"}
    settings = {f"hadoop.http.authentication.{key}": value for key, value in simple.items()}
    with Hdfs(tmp_path / "open", security=security, settings=settings) as trap:
        with environment({"HADOOP_CONF_DIR": str(client_conf(trap, tmp_path / "conf"))}):
            opened = storage_at(f"{trap.uri}/")
        assert opened.names("") == []
        assert opened.names("") == []
        assert pickle.loads(pickle.dumps(opened)).names("") == []
    (record,) = [each for each in caplog.records if each.name == "millrace.warehouse.storage"]
    assert "takes any user's name without a ticket" in record.getMessage()
    assert "set hadoop.http.authentication.type to kerberos" in record.getMessage()
