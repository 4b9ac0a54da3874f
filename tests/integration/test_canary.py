"""A canary in each place where a secret can be, and commands whose server is wrong: it is found in no other.

Looked at: output of every process, logs, command lines, environments, databases, and the mode of every file.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millrace.client.cluster_client import ClusterClient
from millrace.coordination.node_rights import load_identity
from millrace.security.client import load_client
from tests import postgres
from tests.brokers import free_port
from tests.canary import Secrets, Watch, files_with
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.integration.test_client_file import client_file
from tests.support import REPOSITORY, Process, run_millrace

Start = Callable[..., Process]
CLIENTS = r"millrace\.cli (schemas|auditor|audit|load|publish)|[Ss]park-?[Ss]ubmit|script\.py"
"""Command lines of processes that are given the URL of a service, with its token: in their environment."""
MAY_KNOW = {
    "registry-token": CLIENTS,
    "auditor-token": CLIENTS,
    "registry-database": r"millrace\.cli registry",
    "auditor-database": r"millrace\.cli auditor",
    "store": CLIENTS,
    "catalog": CLIENTS,
}


@dataclass
class World:
    """A cluster whose every door asks for a secret, and its services."""

    start: Start
    folder: Path
    zookeeper: str
    secrets: Secrets
    authority: Authority
    environment: dict[str, str]
    kept: set[Path] = field(default_factory=set)
    """The files that are there for secrets."""
    outputs: list[str] = field(default_factory=list)
    """What commands have printed."""
    processes: list[Process] = field(default_factory=list)
    bootstrap: str = ""
    registry: str = ""
    auditor: str = ""

    def secret_file(self, path: str, text: str) -> str:
        file = self.folder / path
        file.touch(mode=0o600)
        file.write_text(text)
        self.kept.add(file)
        return str(file)

    def access_file(self, name: str, token: str, *roles: str) -> str:
        digest = hashlib.sha256(token.encode()).hexdigest()
        path = self.folder / f"{name}-access.toml"
        path.write_text(f'[ours]\ntoken_sha256 = "{digest}"\nroles = {json.dumps(roles)}\n')
        return str(path)

    def service(self, *words: str, **environment: str) -> Process:
        process = self.start(*words, env={**self.environment, **environment})
        self.processes.append(process)
        return process

    def run(self, *words: str, code: int | None = 0, stdin: str = "", **environment: str) -> str:
        """A command of ours to its end; what it prints. `code` None: it fails with one line."""
        done = run_millrace(*words, stdin=stdin, env={**self.environment, **environment}, timeout_s=300)
        said = done.stdout + done.stderr
        self.outputs.append(said)
        if code is None:
            assert done.returncode == 1, said
            assert done.stderr.splitlines()[-1].startswith("millrace: "), said
        else:
            assert done.returncode == code, said
        return said

    def connect(self) -> ClusterClient:
        return ClusterClient(self.bootstrap, security=load_client(self.environment["MILLRACE_CLIENT"]))

    def url(self, address: str, secret: str) -> str:
        return f"https://{self.secrets.login(secret, 'ours')}@{address}"


@pytest.fixture
def world(start: Start, tmp_path: Path) -> Iterator[World]:
    secrets, folder = Secrets(), tmp_path / "world"
    folder.mkdir()
    (folder / "tmp").mkdir(mode=0o700)
    if not postgres.installed():
        pytest.skip("needs PostgreSQL's server and psycopg: apt-get install postgresql")
    authority = Authority(folder)
    environment = {
        "TMPDIR": str(folder / "tmp"),
        "SPARK_LOCAL_DIRS": str(folder / "spark"),
        "SSL_CERT_FILE": authority.ca,
        "MILLRACE_CLIENT": str(folder / "services.toml"),
    }
    zookeeper = start("zookeeper", "--port", "0", "--data-dir", str(folder / "zookeeper")).ready()
    made = World(start, folder, zookeeper, secrets, authority, environment)
    with postgres.server() as database:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("create database auditor")
        _start_services(made, database.url)
        yield made
        left = files_with(secrets, Path(database.folder))
        assert not left, left


def _start_services(world: World, database: str) -> None:
    folder, secrets = world.folder, world.secrets
    key_password = secrets.make("key")
    broker_key = world.authority.issue("broker", password=key_password.encode())
    service_key = world.authority.issue("service")
    world.kept |= {Path(broker_key.key), Path(service_key.key)}
    tls = ("--certificate", service_key.certificate, "--key", service_key.key)
    access = {name: secrets.make(f"{name}-token") for name in ("registry", "auditor", "metrics")}
    server = database.replace("millrace@", "millrace:{}@")
    registry = world.service(
        "registry",
        *("--listen", "localhost:0", *tls),
        *("--access", world.access_file("registry", access["registry"], "read", "register")),
        MILLRACE_REGISTRY_DATABASE_URL=server.format(secrets.make("registry-database")),
    )
    world.run("zookeeper", "identities", str(folder / "identities"))
    identities = {name: folder / "identities" / f"{name}.toml" for name in ("brokers", "clients")}
    for name, path in identities.items():
        secrets.know(f"zookeeper-{name}", load_identity(str(path)).password)
    world.kept |= set(identities.values())
    port = free_port()
    settings: dict[str, Any] = {
        "listen": None,
        "zookeeper_identity": str(identities["brokers"]),
        "metrics_listen": f"127.0.0.1:{free_port()}",
        "metrics_access": world.access_file("metrics", access["metrics"], "metrics"),
        "tls.certificate": broker_key.certificate,
        "tls.key": broker_key.key,
        "tls.key_password_file": world.secret_file("key.password", key_password),
        "listeners.only.listen": f"127.0.0.1:{port}",
        "listeners.only.advertised": f"localhost:{port}",
        "listeners.only.protocol": "SASL_SSL",
    }
    broker = start_broker(world.start, world.zookeeper, folder, "canary", **settings)
    world.processes.append(broker.process)
    world.bootstrap = f"localhost:{port}"
    operator = folder / "operator.toml"
    operator.write_text(f"zookeeper_identity = {json.dumps(str(identities['brokers']))}\n")
    password = world.secret_file("services.password", secrets.make("scram"))
    identity = str(identities["clients"])
    client_file(
        folder / "services.toml", user="services", password_file=password, zookeeper_identity=identity
    )
    named = ("--cluster", "canary", "--zookeeper", world.zookeeper, "--password-file", password)
    world.run("users", "create", "services", *named, MILLRACE_CLIENT=str(operator))
    world.registry = world.url(registry.ready(), "registry-token")
    with world.connect() as client:
        for topic in ("PageView", "audit", "audit-counts", "audit-offline"):
            client.create_topic(topic, 1)
    world.run("schemas", "apply", str(REPOSITORY / "schemas"), MILLRACE_REGISTRY=world.registry)
    places = ("--bootstrap", world.bootstrap, "--zookeeper", world.zookeeper)
    auditor = world.service(
        "auditor",
        *("--listen", "localhost:0", *tls, *places, "--origins", "canary"),
        *("--access", world.access_file("auditor", access["auditor"], "read")),
        MILLRACE_REGISTRY=world.registry,
        MILLRACE_AUDITOR_DATABASE_URL=server.replace("/postgres", "/auditor").format(
            secrets.make("auditor-database")
        ),
    )
    world.auditor = world.url(auditor.ready(), "auditor-token")


@contextmanager
def store_that_refuses() -> Iterator[str]:
    """The address of an S3 that answers each request that its signature does not match."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = b"<Error><Code>SignatureDoesNotMatch</Code><Message>wrong signature</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = answer

        def do_HEAD(self) -> None:
            self.send_response(403)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def check_nothing_is_found(world: World, watch: Watch) -> None:
    """What was watched, what was printed and what is left hold no secret but in the files for it."""
    assert watch.failure is None
    assert watch.seen["environment"] > 0
    assert watch.seen["file"] > 0
    assert not watch.sightings
    for said in [*world.outputs, *(process.output for process in world.processes)]:
        assert not world.secrets.within(said.encode()), said
    found = files_with(world.secrets, world.folder)
    left = {path: names for path, names in found.items() if path not in world.kept}
    assert not left, left
    assert not [path for path in world.kept if path.stat().st_mode & 0o077]
    assert not list((world.folder / "tmp").iterdir()), "temporary files are gone with the command"


def test_no_command_says_a_secret_of_its_own_when_a_server_is_wrong(world: World) -> None:
    """Every command that takes a secret, where it cannot do its work."""
    with Watch(world.secrets, world.folder, MAY_KNOW, []) as watch:
        run_commands_with_a_wrong_server(world)
    check_nothing_is_found(world, watch)


def run_commands_with_a_wrong_server(world: World) -> None:
    nowhere, secrets, wrong = "localhost:1", world.secrets, world.folder / "wrong.toml"
    client_file(
        wrong, user="services", password_file=world.secret_file("wrong.password", secrets.make("wrong"))
    )
    registry, auditor = (world.url(nowhere, f"{name}-token") for name in ("registry", "auditor"))
    at = ("--bootstrap", world.bootstrap)
    load = ("load", "PageView", "--warehouse", str(world.folder / "warehouse"))
    hour = ("--from", "2015-05-17T10:00Z", "--to", "2015-05-17T11:00Z")
    publication = ("publish", "PageView", "--warehouse", str(world.folder / "warehouse"), "--catalog", "lake")
    world.run("topics", "list", "--bootstrap", nowhere, code=None)
    world.run("topics", "list", *at, code=None, MILLRACE_CLIENT=str(wrong))
    world.run("produce", "PageView", *at, stdin="x\n", code=None, MILLRACE_CLIENT=str(wrong))
    world.run("schemas", "plan", str(REPOSITORY / "schemas"), code=None, MILLRACE_REGISTRY=registry)
    world.run("audit", "PageView", *hour, code=None, MILLRACE_AUDITOR=auditor)
    plain = world.auditor.replace("https://", "http://")
    world.run("audit", "PageView", *hour, code=None, MILLRACE_AUDITOR=plain)
    world.run(*load, "--bootstrap", nowhere, code=None, MILLRACE_REGISTRY=world.registry)
    world.run(*load, *at, code=None, MILLRACE_REGISTRY=registry)
    world.run(*load, *at, code=None, MILLRACE_REGISTRY=world.registry.replace("ours:", "ours:not"))
    world.run(*load, *at, code=None, MILLRACE_REGISTRY=world.registry.replace("@", "@ "))
    for host in ("127.0.0.1:1", "127.0.0.1:port", "[::1"):
        url = f"postgresql://ours:{secrets.make('registry-database')}@{host}/x"
        world.run("registry", "--listen", "127.0.0.1:0", code=None, MILLRACE_REGISTRY_DATABASE_URL=url)
    password = secrets.make("catalog")
    for uri in ("127.0.0.1:1", "127.0.0.1:port"):
        lake = {"PYICEBERG_CATALOG__LAKE__URI": f"postgresql+psycopg://ours:{password}@{uri}/lake"}
        world.run(*publication, "--unasked", code=None, **lake, PYICEBERG_CATALOG__LAKE__TYPE="sql")
    rest = {"PYICEBERG_CATALOG__LAKE__URI": "http://127.0.0.1:1", "PYICEBERG_CATALOG__LAKE__TYPE": "rest"}
    rest["PYICEBERG_CATALOG__LAKE__CREDENTIAL"] = f"ours:{password}"
    world.run(*publication, "--unasked", code=None, **rest)
    with store_that_refuses() as store:
        keys = {"AWS_ACCESS_KEY_ID": "ours", "AWS_SECRET_ACCESS_KEY": secrets.make("store")}
        keys |= {"AWS_ENDPOINT_URL": store, "AWS_REGION": "us-east-1", "MILLRACE_REGISTRY": world.registry}
        world.run("load", "PageView", "--warehouse", "s3://lake/here", *at, code=None, **keys)
