"""Bad input as a person or a script gives it: each row is a real command that ends in one clear line.

The rows are run a few at a time when the first test asks for its own: most of their time is spent waiting for
something that is not there. Every row gets a folder of its own and may leave neither messages nor rows in it.
What a server refuses to start on is tested with that server; here is what is left.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from millrace_registry.client import SchemaRegistryClient
from tests.brokers import read_topic
from tests.support import Process, run_millrace
from tests.warehouses import TestSite, loaded_rows

Start = Callable[..., Process]
AT_ONCE = 4
START_MS = 1_431_856_800_000
GOOD = 3
LOG_LINE = '1.2.3.4 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1 "-" "-"\n'
OLD_JAVA = "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n"
LOCAL = """\
zookeeper = "127.0.0.1:0"
registry = "127.0.0.1:0"
auditor = "127.0.0.1:0"
[clusters.dc1]
brokers = ["127.0.0.1:0"]
[clusters.offline]
brokers = ["127.0.0.1:0"]
[clusters.offline.mirror]
origins = ["dc1"]
"""
SPAN = "--from 2015-05-17T10:00 --to 2015-05-17T11:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command, with {names} of `places`, and what its one line must say."""

    command: str
    says: str
    within_s: float = 8
    """On a quiet machine; a busy one gets three times as long."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None


PUBLISH = "publish-access-log {file} --cluster {cluster} --bootstrap {broker} --registry {registry}"
LOAD = "load Good --warehouse {own} --bootstrap {broker} --registry {registry}"
ROWS = {
    "consume an unknown topic": Row(
        command="consume Missing --until-end --bootstrap {broker}", says="millrace topics create Missing"
    ),
    "publish to an unknown topic": Row(command=f"{PUBLISH} --topic Missing", says="has no topic Missing"),
    "load an unknown topic and one with bad records": Row(
        command="load Bad Missing --warehouse {own} --bootstrap {broker} --registry {registry}",
        says="topic 'Missing' does not exist",
        within_s=25,
    ),
    "an auditor on a taken port": Row(
        command="auditor --origins dc1 --bootstrap {broker} --registry {registry} --listen {taken}"
        " --zookeeper {zookeeper}"
        " --database-url sqlite:///{own}/auditor.db",
        says="cannot listen on {taken}: Address already in use; choose another --listen",
    ),
    **{
        f"up on a taken port of {key}": Row(
            command=f"up {{local}} --set data_dir={{own}} --set {key}={value}",
            says=f"{child} ended before it was ready: cannot listen on {{taken}}: Address already in use; end"
            f" the process that uses this address, or set another `{key}` in the deployment's file or with"
            " --set",
            within_s=15,
        )
        for key, value, child in (
            ("zookeeper", "{taken}", "zookeeper"),
            ("clusters.dc1.brokers", '["{taken}"]', "dc1-1"),
            ("clusters.dc1.metrics", '["{taken}"]', "dc1-1"),
            ("registry", "{taken}", "registry"),
            ("auditor", "{taken}", "auditor"),
        )
    },
    "a broker without ZooKeeper": Row(
        command="broker {config} --set zookeeper={nobody} --set log_dir={own} --set listen=127.0.0.1:0",
        says="no ZooKeeper answers at {nobody}: start one (millrace zookeeper) or give its address",
        within_s=15,
    ),
    "mirror status without ZooKeeper": Row(
        command="mirror status {lost}", says="no ZooKeeper answers at {nobody}", within_s=15
    ),
    "ZooKeeper without Java": Row(
        command="zookeeper --port 0 --data-dir {own}",
        env={"PATH": "{no_java}", "JAVA_HOME": ""},
        says="no Java on PATH: install Java 17 or newer",
    ),
    "up with an old Java": Row(
        command="up {local} --set data_dir={own}",
        env={"PATH": "{old_java}", "JAVA_HOME": ""},
        says="java is Java 11: install Java 17 or newer",
        within_s=15,
    ),
    "load with an old Java": Row(
        command=LOAD, env={"PATH": "{old_java}", "JAVA_HOME": ""}, says="java is Java 11: install Java 17"
    ),
    "repair beside a running broker": Row(
        command="log repair {log_dir}", says="{log_dir} is in use by another broker"
    ),
    "up with an unknown key": Row(
        command="up {local} --set clusters.dc1.topic=1 --set data_dir={own}",
        says="clusters.dc1: unknown key 'topic'; did you mean 'topics'?",
    ),
    "a file for another command": Row(
        command="mirror status {local}", says="unknown key 'registry'; known keys: "
    ),
    "hours that end before they begin": Row(
        command="publish Good --from 2015-05-18 --to 2015-05-17 --unasked --warehouse {own}",
        says="is not before --to",
    ),
    "hours that are not whole": Row(
        command="publish Good --from 2015-05-17T10:30 --to 2015-05-17T12 --unasked --warehouse {own}",
        says="--from 2015-05-17T10:30:00+00:00 is not a whole hour in UTC",
    ),
    "hours that nobody judges": Row(
        command="publish Good --hour 2015-05-17T10 --warehouse {own}",
        env={"MILLRACE_AUDITOR": ""},
        says="give --auditor URL, or --unasked",
    ),
    "a topic that was never loaded, published": Row(
        command="publish Good --unasked --warehouse {own}", says="no load of Good in "
    ),
    "a catalog that nobody has configured": Row(
        command="publish Good --unasked --warehouse {own} --catalog nowhere", says="'nowhere'"
    ),
    "audit of a time that ends before it begins": Row(
        command="audit Good --from 2015-05-18 --to 2015-05-17", says="--from 2015-05-18 is not before --to"
    ),
    "no broker for topics": Row(
        command="topics list --bootstrap {nobody}",
        within_s=15,
        says="cannot reach a broker at {nobody}: Connection refused; start it or give another address",
    ),
    "no broker for produce": Row(
        command="produce Good --bootstrap {nobody}",
        says="cannot reach a broker at {nobody}",
        stdin="x\n",
        within_s=15,
    ),
    "no broker for an auditor": Row(
        command="auditor --origins dc1 --bootstrap {nobody} --registry {registry} --listen 127.0.0.1:0"
        " --zookeeper {zookeeper}"
        " --database-url sqlite:///{own}/auditor.db",
        says="cannot reach a broker at {nobody}",
    ),
    "no registry for publishing": Row(
        command="publish-access-log {file} --cluster dc1 --topic Good --bootstrap {broker}"
        " --registry http://{nobody}",
        says="schema registry http://{nobody} does not answer",
        within_s=12,
    ),
    "no registry for schemas": Row(
        command="schemas apply schemas --registry http://{nobody}",
        within_s=12,
        says="start it with `millrace registry`, or give the right address",
    ),
    "no auditor": Row(
        command=f"audit Good {SPAN} --auditor http://{{nobody}}", says="no auditor answers at http://{nobody}"
    ),
    "a warehouse that is a file": Row(
        command="verify --warehouse {file}",
        says="there is no warehouse at file://{file}: correct --warehouse",
    ),
    "a warehouse that is not there": Row(
        command="verify --warehouse {own}/none", says="there is no warehouse at file://{own}/none"
    ),
    "a warehouse on no storage": Row(
        command="load Good --warehouse ftp://host/x --bootstrap {broker} --registry {registry}",
        says="ftp:// is not a storage that Millrace supports",
    ),
    "consume from a word": Row(
        command="consume Good --until-end --bootstrap word", says="bootstrap 'word' is not HOST:PORT"
    ),
    "load from a port that is none": Row(
        command="load Good --warehouse {own} --bootstrap localhost:99999 --registry {registry}",
        says="--bootstrap 'localhost:99999' is not HOST:PORT",
    ),
    "verify against a word": Row(
        command="verify --warehouse {own} --bootstrap word", says="--bootstrap 'word' is not HOST:PORT"
    ),
    "listen on a word": Row(
        command="broker {config} --set listen=word --set log_dir={own}", says="listen 'word' is not HOST:PORT"
    ),
    "ZooKeeper at a word": Row(
        command="broker {config} --set zookeeper=word --set log_dir={own} --set listen=127.0.0.1:0",
        says="'word' is not HOST:PORT",
    ),
    "a registry that is no URL": Row(
        command="schemas apply schemas --registry localhost:8081", says="write http://HOST:PORT"
    ),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a row's command."""

    done: subprocess.CompletedProcess[str]
    seconds: float
    own: Path


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("site")
    site = TestSite.start(start_for_module, f"bad-input-{uuid4().hex[:6]}", folder, zookeeper)
    for topic in ("Good", "Bad"):
        site.publish(site.topic(topic, 1), [START_MS + n for n in range(GOOD)])
    with SchemaRegistryClient(site.registry) as registry:
        known = chr(registry.latest("Bad").schema_id)
    assert known < "x"
    # A body that ends too soon, and a schema that nobody registered: both are messages like any other.
    lines = f"\0\0\0\0{known}\2\n\0\0\0\0xbody\n"
    sent = run_millrace("produce", "Bad", "--bootstrap", site.cluster.bootstrap, stdin=lines)
    assert sent.returncode == 0, sent.stderr
    return site


@pytest.fixture(scope="module")
def places(site: TestSite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Create the places that the rows name."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "no-java").mkdir()
    (folder / "old-java").mkdir()
    java = folder / "old-java" / "java"
    java.write_text(OLD_JAVA)
    java.chmod(0o755)
    (folder / "access.log").write_text(LOG_LINE)
    (folder / "local.toml").write_text(LOCAL)
    broker = site.cluster.brokers[1]
    with socket.socket() as bound, socket.create_server(("127.0.0.1", 0)) as taken:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        nobody = f"127.0.0.1:{bound.getsockname()[1]}"
        (folder / "lost.toml").write_text(f'broker_id = 1\ncluster = "x"\nzookeeper = "{nobody}"\n')
        yield {
            "broker": broker.address,
            "cluster": site.cluster.name,
            "registry": site.registry,
            "zookeeper": site.cluster.zookeeper,
            "nobody": nobody,
            "taken": f"127.0.0.1:{taken.getsockname()[1]}",
            "config": str(broker.config),
            "log_dir": str(broker.config.with_suffix("")),
            "file": str(folder / "access.log"),
            "local": str(folder / "local.toml"),
            "lost": str(folder / "lost.toml"),
            "no_java": str(folder / "no-java"),
            "old_java": str(folder / "old-java"),
        }


@pytest.fixture(scope="module")
def ended(
    places: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Future[Ended]]]:
    """Every row's command, started."""
    folder = tmp_path_factory.mktemp("rows")

    def run(row: Row, own: Path) -> Ended:
        own.mkdir()
        names = {**places, "own": str(own)}
        begun = time.monotonic()
        done = run_millrace(
            *[word.format_map(names) for word in row.command.split()],
            stdin=row.stdin,
            env={name: value.format_map(names) for name, value in row.env.items()},
        )
        return Ended(done, time.monotonic() - begun, own)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        # The longest first, so that nothing is left to wait for at the end.
        order = sorted(ROWS, key=lambda name: -ROWS[name].within_s)
        yield {name: pool.submit(run, ROWS[name], folder / str(n)) for n, name in enumerate(order)}


WRONG_USAGE = {
    "audit of a time that ends before it begins",
    "a warehouse that is a file",
    "a warehouse that is not there",
    "up with an unknown key",
    "a file for another command",
    "hours that end before they begin",
    "hours that are not whole",
    "hours that nobody judges",
    "a warehouse on no storage",
    "consume from a word",
    "load from a port that is none",
    "verify against a word",
    "listen on a word",
    "ZooKeeper at a word",
    "a registry that is no URL",
}
"""Rows whose command cannot succeed however often it is run: exit code 2."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
def test_it_ends_in_one_line_that_says_what_to_do(
    name: str, ended: Mapping[str, Future[Ended]], places: Mapping[str, str]
) -> None:
    row, result = ROWS[name], ended[name].result()
    said = result.done.stderr.splitlines()
    assert result.done.returncode == (2 if name in WRONG_USAGE else 1), said
    assert row.says.format_map({**places, "own": str(result.own)}) in said[-1]
    assert [line for line in said if line.startswith("millrace: ")] == said[-1:]
    if not row.command.startswith("load Bad"):  # Spark's JVM has words of its own
        assert said == said[-1:]
    assert "Traceback" not in result.done.stderr + result.done.stdout
    assert result.seconds < 10 * row.within_s, "on a quiet machine a tenth of it"
    if not row.command.startswith("load Bad"):  # Bad itself is loaded
        assert [*result.own.glob("*-*/*.log"), *result.own.glob("*/loads/*")] == []


def test_records_that_cannot_be_decoded_are_set_aside_and_the_rest_is_loaded(
    ended: Mapping[str, Future[Ended]], site: TestSite
) -> None:
    warehouse = ended["load an unknown topic and one with bad records"].result().own
    assert len(loaded_rows(warehouse, "Bad")) == GOOD
    (file,) = (warehouse / "Bad" / "rows").glob("0000000001-*/rejected-*.parquet")
    reasons = {row["raw"]: row["reason"] for row in pq.read_table(file).to_pylist()}
    assert [raw[5:] for raw in sorted(reasons)] == [b"\2", b"body"]
    assert "120" in reasons[b"\0\0\0\0xbody"]  # the schema id
    assert all(reasons.values())
    assert not (warehouse / "Missing" / "loads").exists()


def test_an_audit_of_an_unknown_topic_is_never_complete(site: TestSite, start: Start, tmp_path: Path) -> None:
    auditor = start(
        "auditor",
        "--listen",
        "127.0.0.1:0",
        "--database-url",
        f"sqlite:///{tmp_path}/auditor.db",
        "--origins",
        "dc1",
        "--bootstrap",
        site.cluster.bootstrap,
        "--registry",
        site.registry,
        "--zookeeper",
        site.cluster.zookeeper,
    )
    asked = run_millrace("audit", "Missing", *SPAN.split(), "--auditor", f"http://{auditor.ready()}")
    assert (asked.returncode, asked.stderr) == (1, "")
    assert "no producer and no reader has named topic Missing" in asked.stdout
    assert asked.stdout.splitlines()[-1].startswith("Missing: unknown")


def test_nothing_reached_a_topic_and_no_topic_was_made(
    ended: Mapping[str, Future[Ended]], site: TestSite
) -> None:
    for each in ended.values():
        each.result()
    with site.cluster.client() as client:
        assert sorted(client.topics()) == ["Bad", "Good", "audit", "audit-offline"]
        assert [len(read_topic(client, topic)[0].records) for topic in ("Good", "Bad")] == [GOOD, GOOD + 2]
