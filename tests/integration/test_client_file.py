"""One client file for all clients of ours; what is wrong with it is said in one line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import librdkafka_settings
from millrace.client.login import LoginRefused
from millrace.security.client import load_client
from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import free_port, wait_for_values
from tests.certificates import Authority
from tests.compat.brokers import RunningBroker, start_broker
from tests.support import REPOSITORY, Process, run_millrace, wait_until
from tests.warehouses import EMPTY_EVENT

PASSWORD = "canary-52d1ab-in-no-log"


@dataclass
class Closed:
    """A broker that only takes TLS with a login, and its user's client file."""

    broker: RunningBroker
    bootstrap: str
    folder: Path
    zookeeper: str

    def client_file(self, name: str = "alice", **changed: str) -> Path:
        return client_file(self.folder / f"{name}.toml", **changed)

    def run(
        self, *words: str, stdin: str = "", client: Path | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        environment = {"MILLRACE_CLIENT": str(client)} if client else {}
        return run_millrace(*words, stdin=stdin, timeout_s=timeout_s, env=environment)

    def create_user(self, name: str, password: str = PASSWORD) -> None:
        written = self.folder / f"{name}.password"
        written.touch(mode=0o600)
        written.write_text(password)
        done = self.run(
            *("users", "create", name, "--cluster", "closed"),
            *("--zookeeper", self.zookeeper, "--password-file", str(written)),
        )
        assert done.returncode == 0, done.stderr


def client_file(path: Path, **changed: str) -> Path:
    values = {
        "protocol": "SASL_SSL",
        "ca": "Test CA.pem",
        "user": "alice",
        "password_file": "alice.password",
        **changed,
    }
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items() if value))
    return path


def listener_settings(folder: Path, port: int) -> dict[str, Any]:
    server = Authority(folder).issue("server")
    return {
        "listen": None,
        "tls.certificate": server.certificate,
        "tls.key": server.key,
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.advertised": f"localhost:{port}",
        "listeners.only.protocol": "SASL_SSL",
    }


@pytest.fixture(scope="module")
def closed(
    start_for_module: Callable[..., Process], zookeeper: str, tmp_path_factory: pytest.TempPathFactory
) -> Closed:
    folder, port = tmp_path_factory.mktemp("closed"), free_port()
    broker = start_broker(start_for_module, zookeeper, folder, "closed", **listener_settings(folder, port))
    made = Closed(broker, f"localhost:{port}", folder, zookeeper)
    made.create_user("alice")
    with ClusterClient(made.bootstrap, security=load_client(str(made.client_file()))) as client:
        wait_until("alice may log in", lambda: _gets_in(client))
        client.create_topic("Written", 2)
    return made


def _gets_in(client: ClusterClient) -> bool:
    try:
        return bool(client.broker_ids())
    except LoginRefused:  # the broker hears of a user within a second
        return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named_by", "mechanism"), [("option", "SCRAM-SHA-256"), ("environment", "SCRAM-SHA-512")]
)
def test_commands_produce_and_consume_as_the_client_file_says(
    closed: Closed, named_by: str, mechanism: str
) -> None:
    file = closed.client_file(f"by-{named_by}", mechanism=mechanism)
    words = ["--client", str(file)] if named_by == "option" else []
    client = file if named_by == "environment" else None
    topic, at = f"by-{named_by}-{mechanism}", ("--bootstrap", closed.bootstrap)
    for command, stdin in (
        (("topics", "create", topic, *at), ""),
        (("produce", topic, *at), "one\ntwo\nthree\n"),
        (("groups", "list", *at), ""),
    ):
        done = closed.run(*words, *command, stdin=stdin, client=client)
        assert done.returncode == 0, done.stderr
    read = closed.run(*words, "consume", topic, "--from-beginning", "--until-end", *at, client=client)
    assert sorted(read.stdout.split()) == ["one", "three", "two"], read.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"user": "mallory"}, "refuses user 'mallory' by SCRAM-SHA-512"),
        ({"password_file": "wrong.password"}, "refuses user 'alice' by SCRAM-SHA-512"),
        ({"ca": "Stranger.pem"}, "does not prove its identity: unable to get local issuer"),
        ({"mechanism": "PLAIN"}, "does not offer PLAIN: set mechanism to one of SCRAM-SHA-256, SCRAM-SHA"),
        ({"password_file": "open.password"}, "can be read by others: chmod 600"),
        ({"password_file": "away.password"}, "cannot read the password"),
        ({"mechanism": "SCRAM-MD5"}, "mechanism 'SCRAM-MD5' is none of"),
        ({"protocol": "SASL_PLAINTEXT", "ca": "", "mechanism": "PLAIN"}, "use protocol SASL_SSL"),
        ({"protocol": "PLAINTEXT", "ca": ""}, "with user the protocol is SASL_SSL"),
        ({"protocol": "SSL", "user": "", "password_file": ""}, "if its listener asks for TLS or a login"),
    ],
)
def test_what_is_wrong_with_a_client_file_is_one_line(
    closed: Closed, changed: Mapping[str, str], words: str
) -> None:
    for name, mode in (("wrong", 0o600), ("open", 0o644)):
        path = closed.folder / f"{name}.password"
        path.touch(mode=0o600)
        path.write_text(f"{PASSWORD}x")
        path.chmod(mode)
    Authority(closed.folder, "Stranger")
    done = closed.run(
        *("--client", str(closed.client_file("wrong", **changed))),
        *("topics", "list", "--bootstrap", closed.bootstrap),
    )
    assert done.returncode in (1, 2)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert PASSWORD not in done.stderr


@pytest.mark.slow
def test_who_says_nothing_of_security_is_told_what_may_be_missing(closed: Closed) -> None:
    done = closed.run("topics", "list", "--bootstrap", closed.bootstrap)
    assert done.returncode == 1
    assert "name a client file with that in MILLRACE_CLIENT" in done.stderr


def test_a_new_password_is_taken_up_at_the_next_connection(closed: Closed) -> None:
    closed.create_user("carol")
    file = closed.client_file("carol", user="carol", password_file="carol.password")
    with ClusterClient(closed.bootstrap, security=load_client(str(file)), timeout_s=20) as client:
        wait_until("carol may log in", lambda: _gets_in(client))
        closed.create_user("carol", "another")
        assert client.broker_ids() == [1], "open connections go on"
        client.close()
        wait_until("carol may log in again", lambda: _gets_in(client))


def test_a_mirror_reads_its_origin_as_its_section_says(
    closed: Closed, start: Callable[..., Process], zookeeper: str, tmp_path: Path
) -> None:
    closed.client_file()
    settings = {
        "bootstrap": closed.bootstrap,
        "topics": ["Written"],
        "security.protocol": "SASL_SSL",
        "security.ca": str(closed.folder / "Test CA.pem"),
        "security.user": "alice",
        "security.password_file": str(closed.folder / "alice.password"),
    }
    mirror: dict[str, Any] = {f"mirror.closed.{key}": value for key, value in settings.items()}
    copy = start_broker(start, zookeeper, tmp_path, "copy-of-closed", **mirror)
    done = closed.run(
        *("--client", str(closed.client_file()), "produce", "Written", "--bootstrap", closed.bootstrap),
        stdin="".join(f"line {number}\n" for number in range(100)),
    )
    assert done.returncode == 0, done.stderr
    with copy.client() as client:
        wait_for_values(client, "Written", 100)
    assert PASSWORD not in copy.process.output


@pytest.mark.slow
def test_a_load_logs_in_and_no_secret_is_in_what_spark_writes(
    closed: Closed, start: Callable[..., Process], tmp_path: Path
) -> None:
    file = closed.client_file()
    database = f"sqlite:///{tmp_path / 'registry.db'}"
    process = start("registry", "--listen", "127.0.0.1:0", "--database-url", database)
    registry = f"http://{process.ready()}"
    with SchemaRegistryClient(registry) as schemas:
        schemas.register("PageView", json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text()))
    with ClusterClient(closed.bootstrap, security=load_client(str(file))) as client:
        for topic in ("PageView", "audit"):
            client.create_topic(topic, 1)
    with AuditedProducer(
        closed.bootstrap,
        registry,
        cluster="closed",
        server="web",
        service="shop",
        config=librdkafka_settings(load_client(str(file))),
    ) as producer:
        for number in range(50):
            producer.send("PageView", "PageView", EMPTY_EVENT, time_ms=1_431_856_800_000 + number)
    events, warehouse = tmp_path / "events", tmp_path / "warehouse"
    events.mkdir()
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}"}
    conf["spark.eventLog.compress"] = "false"  # nothing is found in what is compressed
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    words += ["--bootstrap", closed.bootstrap, "--registry", registry, "--warehouse", str(warehouse)]
    done = closed.run("--client", str(file), "load", "PageView", *words, "--json", timeout_s=200)
    assert done.returncode == 0, done.stderr
    assert sum(newest["rows"] for newest in json.loads(done.stdout)) == 50
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    logged = b"".join(path.read_bytes() for path in written if path.is_relative_to(events))
    assert b"SparkListenerTaskEnd" in logged
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]
    assert PASSWORD not in done.stdout + done.stderr
