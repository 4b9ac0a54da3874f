"""A canary in every place where a secret can be, and work that succeeds and fails: it is found nowhere else.

Looked at: output of every process, logs, Spark's plans, event logs and pages, Airflow's database and logs,
command lines, environments, databases, and the mode of every file.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.config import load
from millrace.deployment_file import UpConfig
from millrace.security.client import load_client
from millrace.security.folder import SecurityFolder
from millrace.zookeeper.node_rights import load_identity
from millrace_demo.up import make_tokens, roles_of
from tests import postgres
from tests.brokers import free_port
from tests.canary import Secrets, Watch, files_with
from tests.certificates import Authority
from tests.compat.brokers import start_broker
from tests.integration.test_client_file import client_file
from tests.peers.spark_cluster import CONF, SparkCluster
from tests.support import REPOSITORY, Process, run_millrace, wait_until

Start = Callable[..., Process]
HOUR_MS = 1_431_856_800_000
EVENTS = 300
FIELDS = {"clientAddress": "10.0.0.1", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}
CLIENTS = (
    r"millrace\.cli (schemas|auditor|audit|agent|load|publish)|run_once|job_runner|[Ss]park-?[Ss]ubmit"
    r"|script\.py|jobs\.here|java -version"
)
"""Command lines of processes that are given the URL of a service, with its token: in their environment."""
MAY_KNOW = {
    "registry-token": CLIENTS,
    "auditor-token": CLIENTS,
    "registry-database": r"millrace\.cli registry",
    "auditor-database": r"millrace\.cli auditor",
    "scram-of-airflow": "run_once",
    "store": CLIENTS,
    "catalog": CLIENTS,
}

DAG = """
from datetime import UTC, datetime
from airflow.sdk import DAG, TriggerRule
from millrace_airflow.operators.load import LoadTopicOperator
from millrace_airflow.operators.publish import PublishOperator
from millrace_airflow.sensors.completeness import CompletenessSensor

HOUR = {"start": "2015-05-17T10:00:00Z", "end": "2015-05-17T11:00:00Z"}
with DAG("canary", schedule=None, start_date=datetime(2025, 1, 1, tzinfo=UTC)):
    load = LoadTopicOperator(task_id="load", topics=["PageView"], spark_conf=SPARK)
    publish = PublishOperator(task_id="publish", topic="PageView", **HOUR)
    in_an_executor = LoadTopicOperator(task_id="damaged", topics=["Damaged"], spark_conf=SPARK,
                                       trigger_rule=TriggerRule.ALL_DONE)
    no_topic = LoadTopicOperator(task_id="missing", topics=["Missing"], trigger_rule=TriggerRule.ALL_DONE)
    never = CompletenessSensor(task_id="never", topic="PageView", timeout=1, poke_interval=1, **HOUR,
                               trigger_rule=TriggerRule.ALL_DONE)
    load >> publish >> in_an_executor >> no_topic >> never
"""

READ = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
topic, bootstrap, known = sys.argv[1:]
registry, client = open(known).read().split()
options = {"bootstrap": bootstrap, "subscribe": topic, "client.file": client}
options |= {"registry.url": registry, "registry.subject": "PageView"}
frame = spark.read.format("millrace").options(**options).load()
frame.explain("extended")
frame.createOrReplaceTempView("views")
print("ROWS", spark.sql("select count(*), max(url) from views").collect())
"""


@dataclass
class World:
    """A cluster whose every door asks for a secret, its services, and a Spark cluster beside it."""

    start: Start
    folder: Path
    zookeeper: str
    secrets: Secrets
    authority: Authority
    environment: dict[str, str]
    kept: set[Path] = field(default_factory=set)
    """The files that are there for secrets."""
    outputs: list[str] = field(default_factory=list)
    """Outputs of the commands so far."""
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
    for user, place in (("services", "scram"), ("airflow", "scram-of-airflow")):
        password = world.secret_file(f"{user}.password", secrets.make(place))
        client_file(
            folder / f"{user}.toml",
            user=user,
            password_file=password,
            zookeeper_identity=str(identities["clients"]),
        )
        named = ("--cluster", "canary", "--zookeeper", world.zookeeper, "--password-file", password)
        world.run("users", "create", user, *named, MILLRACE_CLIENT=str(operator))
    world.registry = world.url(registry.ready(), "registry-token")
    with world.connect() as client:
        for topic in ("PageView", "Damaged", "NoAvro", "audit", "audit-counts", "audit-offline"):
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


def publish(world: World) -> None:
    """Events by an agent, which a reader counts; a message that is no event; one damaged on the disk."""
    places = ("--bootstrap", world.bootstrap, "--zookeeper", world.zookeeper)
    world.service("audit-reader", "--cluster", "canary", *places, MILLRACE_REGISTRY=world.registry).ready()
    agent = world.service(
        "agent",
        *(
            "--cluster",
            "canary",
            "--bootstrap",
            world.bootstrap,
            "--service",
            "shop",
            "--listen",
            "127.0.0.1:0",
        ),
        *("--spool", str(world.folder / "spool"), "--subject", "Damaged=PageView"),
        *("--lateness-ms", "0", "--report-interval-ms", "100"),
        MILLRACE_REGISTRY=world.registry,
    )
    address = agent.ready()
    events = [{"time": HOUR_MS + number, "event": FIELDS} for number in range(EVENTS)]
    for topic in ("PageView", "Damaged"):
        answer = httpx.post(f"http://{address}/v1/topics/{topic}/events", json=events)
        assert answer.json() == {"accepted": EVENTS}, answer.text
    world.run("produce", "NoAvro", "--bootstrap", world.bootstrap, stdin="no event\n")
    with world.connect() as client:

        def all_there() -> bool:
            return all(client.list_offsets(topic, LATEST)[0] for topic in ("PageView", "Damaged", "NoAvro"))

        wait_until("the topics have their messages", all_there)

    def all_sent() -> bool:
        return "millrace_agent_spool_events 0.0" in httpx.get(f"http://{address}/metrics").text

    wait_until("the agent has sent all", all_sent)
    assert agent.stop() == 0
    (segment,) = (world.folder / "canary-1").glob("Damaged-0-*/*.log")
    with segment.open("r+b") as log:
        log.seek(segment.stat().st_size // 2)
        middle = log.read(8)
        log.seek(-8, os.SEEK_CUR)
        log.write(bytes(byte ^ 0xFF for byte in middle))


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


def run_airflow(world: World, spark: Mapping[str, str], master: str) -> str:
    """A DAG with a load, a publication, and tasks that fail in a driver, in an executor and by themselves."""
    dags = world.folder / "dags"
    dags.mkdir()
    # Without the store's key: Airflow shows what a DAG says, to who may see DAGs.
    shown = {key: value for key, value in spark.items() if "secret" not in key}
    (dags / "canary.py").write_text(f"SPARK = {shown!r}\n{DAG}")
    extra = {
        "registry": world.registry,
        "auditor": world.auditor,
        "warehouse": str(world.folder / "warehouse"),
        "subjects": "Damaged=PageView",
        "spark_master": master,
        "protocol": "SASL_SSL",
        "ca": world.authority.ca,
        "job_dir": str(world.folder / "jobs"),
    }
    login = {"login": "airflow", "password": world.secrets.make("scram-of-airflow")}
    connection = {"conn_type": "millrace", "host": world.bootstrap, **login, "extra": extra}
    command = [sys.executable, "-m", "millrace_demo.run_once", "canary", "--dags-folder", str(dags)]
    environment = {key: value for key, value in world.environment.items() if key != "MILLRACE_CLIENT"}
    done = subprocess.run(
        [*command, "--airflow-home", str(world.folder / "airflow")],
        env={**os.environ, **environment, "AIRFLOW_CONN_MILLRACE_DEFAULT": json.dumps(connection)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    world.outputs += [done.stdout, done.stderr]
    return done.stdout


def read_with_spark(world: World, spark: Mapping[str, str], master: str, topic: str) -> str:
    """A query of the data source, its plans printed; the registry's URL comes by a file."""
    script = world.folder / "read.py"
    script.write_text(READ)
    properties = world.secret_file("spark.conf", "".join(f"{key} {value}\n" for key, value in spark.items()))
    known = world.secret_file("read.txt", f"{world.registry} {world.environment['MILLRACE_CLIENT']}")
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", master]
    done = subprocess.run(
        [*submit, "--properties-file", properties, str(script), topic, world.bootstrap, known],
        env={**os.environ, **world.environment, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    world.outputs += [done.stdout, done.stderr]
    return done.stdout + done.stderr


def check_nothing_is_found(world: World, watch: Watch) -> None:
    """Check that watched processes, outputs and files left hold no secret, except the files for secrets."""
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


@pytest.mark.slow
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


@pytest.mark.long
def test_no_secret_leaves_its_place_when_jobs_of_spark_and_airflow_succeed_and_fail(world: World) -> None:
    folder, events = world.folder, world.folder / "events"
    events.mkdir()
    ui = free_port()
    spark = {
        **CONF,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executorEnv.SSL_CERT_FILE": world.authority.ca,
        "spark.ui.enabled": "true",
        "spark.ui.port": str(ui),
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{events}",
        "spark.hadoop.fs.s3a.secret.key": world.secrets.make("store"),
    }
    publish(world)
    with SparkCluster(folder / "cluster", workers=1) as cluster:
        pages = [f"http://127.0.0.1:{ui}", *cluster.pages()]
        with Watch(world.secrets, folder, MAY_KNOW, pages) as watch:
            tasks = run_airflow(world, spark, cluster.master)
            read = read_with_spark(world, spark, cluster.master, "PageView")
            unread = read_with_spark(world, spark, cluster.master, "NoAvro")
    # What was to succeed and to fail did so, where it was meant to.
    ended = dict(line.partition(": ")[::2] for line in tasks.splitlines())
    assert ended["load"].startswith("success"), tasks
    assert ended["publish"].startswith("success"), tasks
    assert "millrace log verify" in ended["damaged"], tasks
    assert "does not exist" in ended["missing"], tasks
    assert ended["never"].startswith("failed"), tasks
    assert f"ROWS [Row(count(1)={EVENTS}" in read, read
    assert "millrace.errors" in unread, unread
    # And was looked at.
    assert all(watch.seen[name] for name in ("stages?details=true", "sql?details=true")), watch.seen
    written = b"".join(path.read_bytes() for path in events.rglob("*") if path.is_file())
    assert b"SparkListenerSQLExecutionStart" in written
    assert b"SparkListenerTaskEnd" in written
    check_nothing_is_found(world, watch)


@pytest.mark.long
def test_no_secret_of_the_secure_demo_leaves_its_file(tmp_path: Path) -> None:
    folder, secrets = tmp_path / "demo", Secrets()
    made = SecurityFolder(folder.parent / "security")
    made.make()
    for user, password in made.passwords().items():
        secrets.know(user, password)
    key = (made.path / "ca.key").read_text().splitlines()[1]
    secrets.know("ca.key", key)
    deployment = tmp_path / "deployment.toml"
    given = (REPOSITORY / "deploy" / "local.toml").read_text()
    deployment.write_text(f"security = {json.dumps(str(made.path))}\n{given}")
    for service, roles in roles_of(load(UpConfig, deployment)).items():
        make_tokens(made, service, roles)
    for file in made.path.glob("*.token"):
        secrets.know(f"{file.stem}-token", file.read_text().strip())
    asks = rf"{CLIENTS}|pyspark\.daemon|SparkSubmit"
    may_know: dict[str, str] = {"loads": "run_once", "registry-token": asks, "auditor-token": asks}
    may_know["registry-auditor-token"] = r"millrace\.cli auditor"
    may_know |= {f"registry-{name}-reader-token": "audit-reader" for name in ("dc1", "dc2", "offline")}
    may_know["registry-warehouse-reader-token"] = "audit-warehouse"
    with Watch(secrets, tmp_path, may_know, []) as watch:
        done = run_millrace(
            *("demo", "--secure", "--events", "20000", "--hours", "2", "--keep", str(folder)),
            *("--deployment", str(deployment)),
            timeout_s=900,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert watch.failure is None
    assert not watch.sightings
    assert not secrets.within((done.stdout + done.stderr).encode())
    kept = {made.path / f"{user}.password" for user in made.passwords()} | {made.path / "ca.key"}
    kept |= set(made.path.glob("*.token"))
    assert files_with(secrets, tmp_path).keys() <= kept
    assert not [path for path in kept if path.stat().st_mode & 0o077]
