"""Identities in ZooKeeper: brokers keep what they write, clients get their part, strangers nothing."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from millrace.errors import MillraceError
from millrace.zookeeper.node_rights import load_identity
from millrace_consumer import Consumer
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import Process, wait_until


def millrace(*arguments: str, code: int = 0) -> str:
    """Run a command; return both of its outputs."""
    command = [sys.executable, "-m", "millrace.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@dataclass
class Ensemble:
    """A ZooKeeper, and the files of its identities."""

    zookeeper: str
    brokers: str
    clients: str

    @contextmanager
    def session(self, identity: str = "") -> Iterator[KazooClient]:
        """Kazoo's own client, by an identity's user and password or by none."""
        client = KazooClient(self.zookeeper)
        if identity:
            known = load_identity(identity)
            client.auth_data = {("digest", f"{known.user}:{known.password}")}
        client.start()
        yield client
        client.stop()
        client.close()


@pytest.fixture(scope="module")
def ensemble(start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    """A ZooKeeper of its own, because the rights on `/audit` would refuse other tests."""
    folder = tmp_path_factory.mktemp("identities")
    data = str(folder / "zookeeper")
    zookeeper = start_for_module("zookeeper", "--port", "0", "--data-dir", data).ready()
    brokers, clients = millrace("zookeeper", "identities", str(folder)).splitlines()
    return Ensemble(zookeeper, brokers, clients)


@pytest.fixture(scope="module")
def broker(
    ensemble: Ensemble, start_for_module: Callable[..., Process], tmp_path_factory: pytest.TempPathFactory
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("identified")
    own: dict[str, Any] = {"zookeeper_identity": ensemble.brokers, "security.authorizer": True}
    own["security.super_users"] = ["User:ANONYMOUS"]
    made = start_broker(start_for_module, ensemble.zookeeper, folder, "identified", 1, **own)
    made.create_topic("t", 1, flush_ms=5)
    return made


def test_the_files_are_their_owners_and_are_not_written_over(ensemble: Ensemble) -> None:
    for path in (ensemble.brokers, ensemble.clients):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600
        assert load_identity(path).password not in repr(load_identity(path))
    again = millrace("zookeeper", "identities", str(Path(ensemble.brokers).parent), code=2)
    assert "exists already" in again
    assert load_identity(ensemble.brokers).password not in load_identity(ensemble.clients).brokers


def test_strangers_see_and_change_nothing_that_a_broker_wrote(
    ensemble: Ensemble, broker: RunningBroker
) -> None:
    paths = ["", "/id", "/topics", "/topics/t", "/brokers/ids/1", "/security", "/security/acls", "/consumers"]
    with ensemble.session() as stranger:
        for path in (f"/identified{path}" for path in paths):
            for call in (stranger.get, stranger.get_children, stranger.exists):
                with pytest.raises(NoAuthError):
                    call(path)
            with pytest.raises(NoAuthError):
                stranger.set(path, b"mine")
            with pytest.raises(NoAuthError):
                stranger.create(f"{path}/mine", b"")
            with pytest.raises(NoAuthError):
                stranger.set_acls(path, OPEN_ACL_UNSAFE)
        with pytest.raises(NoAuthError):
            stranger.delete("/identified/topics/t")


def test_clients_read_topics_change_groups_and_have_no_part_in_security(
    ensemble: Ensemble, broker: RunningBroker
) -> None:
    with ensemble.session(ensemble.clients) as client:
        assert client.get_children("/identified/topics") == ["t"]
        assert client.get("/identified/topics/t")[0]
        with pytest.raises(NoAuthError):
            client.set("/identified/topics/t", b"mine")
        with pytest.raises(NoAuthError):
            client.create("/identified/topics/u", b"")
        with pytest.raises(NoAuthError):
            client.delete("/identified/topics/t")
        with pytest.raises(NoAuthError):
            client.get_children("/identified/security")
        with pytest.raises(NoAuthError):
            client.get("/identified/security/acls")
        with pytest.raises(NoAuthError):
            client.set("/identified/security/acls", b"{}")


def test_a_consumer_with_streams_works_by_its_client_file_and_not_without(
    ensemble: Ensemble, broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MillraceError, match="refuses access to this process: name the right file"):
        Consumer(ensemble.zookeeper, "identified", "g")
    client_file = tmp_path / "client.toml"
    client_file.write_text(f"zookeeper_identity = {json.dumps(ensemble.clients)}\n")
    monkeypatch.setenv("MILLRACE_CLIENT", str(client_file))
    sent = subprocess.run(
        [sys.executable, "-m", "millrace.cli", "produce", "t", "--bootstrap", broker.bootstrap],
        input=b"hello\n",
        timeout=60,
        check=True,
        capture_output=True,
    )
    assert b"produced 1 messages" in sent.stderr
    consumer = Consumer(ensemble.zookeeper, "identified", "g", start="smallest")
    (stream,) = consumer.create_message_streams({"t": 1})["t"]
    assert next(iter(stream)).value == b"hello"
    consumer.close()
    with ensemble.session(ensemble.brokers) as brokers:
        assert brokers.get_children("/identified/consumers/g/offsets") == ["t"]
    told = millrace("groups", "describe", "g", "--bootstrap", broker.bootstrap)
    assert "t" in told
    with ensemble.session() as stranger, pytest.raises(NoAuthError):
        stranger.get("/identified/consumers/g")


def test_secure_closes_what_an_open_cluster_has_left_and_the_broker_goes_on_with_its_identity(
    ensemble: Ensemble, start: Callable[..., Process], tmp_path: Path
) -> None:
    broker = start_broker(start, ensemble.zookeeper, tmp_path, "opened")
    broker.create_topic("t", 1)
    with ensemble.session() as stranger:
        assert stranger.get("/opened/topics/t")[0]
    broker.process.stop()
    arguments = ("--cluster", "opened", "--zookeeper", ensemble.zookeeper)
    told = millrace("zookeeper", "secure", "--identity", ensemble.brokers, *arguments)
    assert int(told.split()[0]) >= 5
    assert millrace("zookeeper", "secure", "--identity", ensemble.brokers, *arguments).startswith("0 nodes")
    refused = millrace("zookeeper", "secure", "--identity", ensemble.clients, *arguments, code=1)
    assert "nodes did not get their rights, such as /opened: " in refused
    with ensemble.session() as stranger, pytest.raises(NoAuthError):
        stranger.get("/opened/topics/t")
    without = start("broker", str(broker.config))
    assert without.wait() != 0
    assert "refuses access to this process" in without.output
    again = start("broker", str(broker.config), "--set", f"zookeeper_identity={ensemble.brokers}")
    again.ready()
    wait_until("its topic is served", lambda: "serving t-0" in again.output)
    assert load_identity(ensemble.brokers).password not in again.output + without.output + told


def test_an_identity_that_others_can_read_or_that_is_none_is_one_line(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    arguments = ("--cluster", "x", "--zookeeper", ensemble.zookeeper)
    open_file = tmp_path / "open.toml"
    open_file.write_text(Path(ensemble.brokers).read_text())
    told = millrace("zookeeper", "secure", "--identity", str(open_file), *arguments, code=2)
    assert "can be read by others: chmod 600" in told
    assert load_identity(ensemble.brokers).password not in told
    told = millrace("zookeeper", "secure", "--identity", ensemble.brokers, *arguments, code=1)
    assert "no cluster 'x'" in told
