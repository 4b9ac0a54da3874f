"""A security folder: what is missing is made, what is there stays, a renewal is for the same hosts."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from millrace.config import TlsConfig
from millrace.errors import ConfigError
from millrace.security.certificates import client_context, server_context
from millrace.security.client import password
from millrace.security.folder import USERS, SecurityFolder


def subject_names(folder: SecurityFolder, host: str) -> str | None:
    """Return the error of a client that looks for `host` in the brokers' certificate; None: no error."""
    server = server_context(TlsConfig(certificate=str(folder.broker)), "none")
    client = client_context(TlsConfig(ca=str(folder.ca)))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(6):
        for side in (ours, theirs):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    assert done == {ours, theirs}
    return None


def test_everything_is_made_once_and_users_are_added_later(tmp_path: Path) -> None:
    folder = SecurityFolder(tmp_path / "security")
    assert len(folder.make()) == 3 + 2 * len(USERS)
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    assert folder.make() == []
    assert [path.name for path in folder.make(users=["carol"])] == ["carol.password", "carol.toml"]
    assert {path: path.read_bytes() for path in before} == before
    assert len(set(folder.passwords().values())) == len(USERS) + 1
    for user in (*USERS, "carol"):
        assert password(folder.client(user)) == folder.passwords()[user]


def test_only_the_owner_reads_keys_and_passwords(tmp_path: Path) -> None:
    folder = SecurityFolder(tmp_path / "security")
    folder.make()
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    secret = {name for name in modes if name.endswith((".password", ".key")) or name == "broker.pem"}
    assert {modes[name] for name in secret} == {0o600}
    assert {modes[name] for name in modes.keys() - secret} == {0o644}
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_clients_take_the_certificate_for_its_hosts_alone_and_so_its_successor(tmp_path: Path) -> None:
    folder = SecurityFolder(tmp_path / "security")
    folder.make(hosts=["kafka-1.dc1", "10.0.0.1"])
    first = folder.broker.read_bytes()
    for _ in range(2):
        assert subject_names(folder, "kafka-1.dc1") is None
        assert subject_names(folder, "10.0.0.1") is None
        assert "kafka-2.dc1" in (subject_names(folder, "kafka-2.dc1") or "")
        folder.renew()
    assert folder.broker.read_bytes() != first


def test_what_cannot_be_made_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `millrace security init"):
        SecurityFolder(tmp_path / "nothing").renew()
    folder = SecurityFolder(tmp_path / "security")
    folder.make()
    (folder.path / "ca.key").unlink()
    with pytest.raises(ConfigError, match="run this where the authority's key is kept"):
        folder.renew()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="name another folder"):
        SecurityFolder(tmp_path / "file" / "below").make()
