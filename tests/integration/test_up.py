"""`millrace up`: every process starts, one signal stops all, a child that dies is started again."""

from __future__ import annotations

import os
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from confluent_kafka import KafkaError, Producer

from millrace.client.cluster_client import ClusterClient
from millrace.client.confluent import librdkafka_settings
from millrace.config import ClientSecurity
from millrace.errors import MillraceError
from millrace.records.mirror_position import Origin
from millrace.security.folder import SecurityFolder
from millrace.wire.mirror_append import MirrorAppend, MirrorMode
from millrace_audit.client import completeness
from millrace_broker.coordination.cluster import Cluster
from tests.brokers import read_topic
from tests.conftest import Start
from tests.support import REPOSITORY, WAIT_S, Process, run_millrace, wait_until

FREE_PORTS = [
    "zookeeper=127.0.0.1:0",
    "registry=127.0.0.1:0",
    "auditor=127.0.0.1:0",
    'clusters.dc1.brokers=["127.0.0.1:0"]',
    'clusters.dc2.brokers=["127.0.0.1:0"]',
    'clusters.offline.brokers=["127.0.0.1:0", "127.0.0.1:0"]',
    'clusters.dc1.metrics=["127.0.0.1:0"]',
    "clusters.dc2.metrics=[]",
    "clusters.offline.metrics=[]",
]


def overrides(data_dir: Path) -> list[str]:
    values = [f"data_dir={data_dir}", *FREE_PORTS]
    return [argument for value in values for argument in ("--set", value)]


def children_of(pid: int) -> dict[int, str]:
    """Command lines of a process's children and their children, by process id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == pid and fields[0] != "Z":
            found[int(entry.name)] = command
            found |= children_of(int(entry.name))
    return found


def started(start: Start, folder: Path) -> Process:
    (folder / "topics.toml").write_text('[PageView]\nproof = "carried"\n')
    topics_file = f"topics_file={folder / 'topics.toml'}"
    process = start("up", str(REPOSITORY / "deploy" / "local.toml"), *overrides(folder), "--set", topics_file)
    process.ready()
    return process


@pytest.fixture(scope="module")
def up(start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> Process:
    return started(start_for_module, tmp_path_factory.mktemp("up"))


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/cmdline").exists() and is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_producer_and_a_consumer_stay_in_their_datacenter_and_the_offline_cluster_has_all(
    up: Process,
) -> None:
    addresses = dict(line.split() for line in up.lines if len(line.split()) == 2)
    for name in ("dc1", "dc2"):
        producer = Producer({"bootstrap.servers": addresses[name]})
        producer.produce("PageView", name.encode())
        assert producer.flush(WAIT_S) == 0

    def values(name: str) -> list[bytes]:
        with ClusterClient(addresses[name]) as client:
            contents = read_topic(client, "PageView").values() if "PageView" in client.topics() else []
        return sorted(value or b"" for each in contents for value in each.values)

    assert len({addresses[name] for name in ("dc1", "dc2", "offline")}) == 3
    wait_until("both are in the offline cluster", lambda: values("offline") == [b"dc1", b"dc2"])
    assert (values("dc1"), values("dc2")) == ([b"dc1"], [b"dc2"])


def address_of(up: Process, name: str) -> str:
    """Address on the line of a part."""
    (address,) = [line.split()[1] for line in up.lines if line.startswith(f"{name} ")]
    return address


def check_registry_page(up: Process, ca: Path | None = None, token: str = "") -> None:
    """Fail unless the registry's page shows the topic in which the readers report."""
    page = address_of(up, "registry").replace("***", f"millrace:{token}") + "/ui/subjects/AuditHeartbeat"

    def topics() -> str:
        try:
            text = httpx.get(page, verify=ssl.create_default_context(cafile=ca)).text
        except httpx.TransportError:
            return ""
        return text.partition('<td data-l="topics">')[2].partition("<")[0]

    wait_until("a reader has registered its schema", topics)
    kill_child(up, "millrace.cli registry")  # a registry looks when it starts, and then each minute
    wait_until("the registry shows the topic", lambda: "audit-offline" in topics(), timeout_s=2 * WAIT_S)


def kill_child(up: Process, words: str) -> int:
    """Kill the child whose command line has the words; its process id."""
    pid = next(pid for pid, command in children_of(up.pid).items() if words in command)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_the_registry_s_page_shows_the_topics_that_use_a_schema(up: Process) -> None:
    check_registry_page(up)


def test_the_auditor_knows_from_the_file_of_topics_which_proof_is_enough(up: Process) -> None:
    url = address_of(up, "auditor")
    now = datetime.now(UTC)
    enough = {
        topic: completeness(url, topic, now - timedelta(hours=2), now - timedelta(hours=1)).enough
        for topic in ("PageView", "SearchQuery")
    }
    assert enough == {"PageView": "carried", "SearchQuery": "complete"}


def test_a_file_of_topics_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    words = [*overrides(tmp_path / "data"), "--set", f"topics_file={file}"]
    result = run_millrace("up", str(REPOSITORY / "deploy" / "local.toml"), *words)
    assert result.returncode == 2
    assert f"the file of topics {file} cannot be read (No such file" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "data" / "zookeeper").exists()


def test_a_child_that_dies_is_started_again_at_its_address(up: Process) -> None:
    address = address_of(up, "dc2")
    broker = kill_child(up, "dc2-1.toml")
    wait_until("it is reported", lambda: "dc2-1 ended with exit code -9" in up.output)
    with ClusterClient(address, timeout_s=30) as client:
        assert "audit" in client.topics()
    assert up.running
    assert broker not in children_of(up.pid)


@pytest.mark.slow
def test_children_end_with_a_supervisor_that_is_killed(start: Start, tmp_path: Path) -> None:
    supervisor = started(start, tmp_path)
    children = list(children_of(supervisor.pid))
    supervisor.kill()
    wait_until("all children are gone", lambda: not alive(children))


def refusals(logs: Path) -> list[str]:
    """Return the log lines of requests refused for want of a right or a login."""
    lines = [line for log in logs.iterdir() for line in log.read_text().splitlines()]
    return [line for line in lines if '"what": "refused"' in line or "has failed" in line]


def refused_to_write(bootstrap: str, security: ClientSecurity, topic: str) -> bool:
    """Tell whether the brokers refuse the user's write to the topic."""
    outcomes: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, **librdkafka_settings(security)})

    def delivered(error: KafkaError | None, _: object) -> None:
        outcomes.append(error.code() if error else 0)

    producer.produce(topic, b"forged", on_delivery=delivered)
    producer.flush(WAIT_S)
    return outcomes == [KafkaError.TOPIC_AUTHORIZATION_FAILED]


@pytest.mark.slow
def test_a_secure_start_is_one_option_no_secret_leaves_its_file_and_sigterm_stops_every_child(
    start: Start, tmp_path: Path
) -> None:
    replicas = ("--set", "clusters.offline.replicas=2")
    file = str(REPOSITORY / "deploy" / "local.toml")
    process = start("up", file, "--secure", *overrides(tmp_path), *replicas)
    process.ready()
    addresses = dict(line.split() for line in process.lines if len(line.split()) == 2)
    folder = SecurityFolder(tmp_path / "security")
    for name in ("dc1", "dc2"):
        producer = Producer(
            {"bootstrap.servers": addresses[name], **librdkafka_settings(folder.client("producer"))}
        )
        producer.produce("PageView", name.encode())
        assert producer.flush(WAIT_S) == 0
    with ClusterClient(addresses["offline"], security=folder.client("consumer")) as client:

        def copied() -> bool:
            contents = read_topic(client, "PageView").values() if "PageView" in client.topics() else []
            return sorted(value or b"" for each in contents for value in each.values) == [b"dc1", b"dc2"]

        wait_until("the mirrors have copied both", copied)
        wait_until("the readers have counted", lambda: "audit-counts" in client.topics())
    with Cluster.connect(addresses["zookeeper"], "offline", create=False) as cluster:
        assert {len(one.isr) for one in cluster.topics["PageView"].partitions.values()} == {2}
    assert not refusals(tmp_path / "logs")
    for user, topic in (("producer", "audit-counts"), ("reader", "PageView"), ("consumer", "PageView")):
        assert refused_to_write(addresses["dc1"], folder.client(user), topic), (user, topic)
    with ClusterClient(addresses["dc1"], security=folder.client("consumer")) as client:
        with pytest.raises(MillraceError, match="no right"):
            client.create_topic("Mine", 1)
        origin = Origin("dc1", "PageView", client.topic("PageView").topic_id, 0)
    describe = MirrorAppend(mode=MirrorMode.DESCRIBE, origin=origin)
    with ClusterClient(addresses["offline"], security=folder.client("loads")) as client:
        assert client.mirror_append("PageView", describe).partition >= 0
    with (
        ClusterClient(addresses["offline"], security=folder.client("producer")) as client,
        pytest.raises(MillraceError, match="no right"),
    ):
        client.mirror_append("PageView", MirrorAppend(mode=MirrorMode.APPEND, origin=origin))
    refused = run_millrace("topics", "list", "--bootstrap", addresses["dc1"])
    assert (refused.returncode, refused.stdout) == (1, "")

    registry = addresses["registry"].replace("***@", "")
    context = ssl.create_default_context(cafile=str(folder.ca))
    assert httpx.get(f"{registry}/subjects", verify=context).status_code == 401
    tokens = {name: folder.token_file(name).read_text().strip() for name in ("registry", "auditor")}
    own = {
        name: folder.token_file(f"registry-{name}").read_text().strip()
        for name in ("auditor", "dc1-reader", "dc2-reader", "offline-reader", "warehouse-reader")
    }
    for name, token in own.items():
        with httpx.Client(base_url=registry, verify=context, auth=(name, token)) as asking:
            assert asking.get("/subjects").status_code == 200
            assert asking.delete("/subjects/AuditCount").status_code == 403
            counts = asking.post("/subjects/AuditCount/versions", json={"schema": "no schema"})
            assert counts.status_code == 422
            assert asking.post("/subjects/PageView/versions", json={"schema": '"int"'}).status_code == 403
    for name, path in (("registry", "/subjects"), ("auditor", "/v1/topics")):
        url = addresses[name].replace("***", f"millrace:{tokens[name]}")
        assert httpx.get(url + path, verify=context).status_code == 200
    check_registry_page(process, folder.ca, tokens["registry"])

    children = children_of(process.pid)
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in children]
    secrets = [*folder.passwords().values(), "PRIVATE KEY"]
    kept = {folder.broker, tmp_path / "security" / "ca.key", *folder.path.glob("*.password")}
    kept |= set(folder.path.glob("*.token"))
    for token in own.values():
        assert len([one for one in environments if token.encode() in one]) == 1, "each process has its own"
    for secret in (*secrets, *tokens.values()):
        assert secret not in process.output
        assert not [command for command in children.values() if secret in command]
        assert not [one for one in environments if secret.encode() in one]
        files = {path for path in tmp_path.rglob("*") if path.is_file()}
        assert {path for path in files if secret.encode() in path.read_bytes()} <= kept
    assert {path for path in kept if path.stat().st_mode & 0o077} == set()
    folders = [path for path in (tmp_path, *tmp_path.iterdir()) if path.is_dir()]
    assert {path for path in folders if path.stat().st_mode & 0o077} == set()
    assert {path for path in tmp_path.glob("*.db*") if path.stat().st_mode & 0o077} == set()

    assert len(children) >= 10  # ZooKeeper, registry, auditor, four brokers, three readers
    assert process.stop() == 0
    assert "ready: everything is up" in process.lines
    assert process.lines[-2:] == ["stopping", "stopped"]
    wait_until("all children are gone", lambda: not alive(list(children)))


def test_an_origin_that_is_no_cluster_is_named(tmp_path: Path) -> None:
    result = run_millrace(
        "up",
        str(REPOSITORY / "deploy" / "local.toml"),
        *overrides(tmp_path),
        "--set",
        'clusters.offline.mirror.origins=["dc1", "dc9"]',
    )
    assert result.returncode == 2
    assert "origin 'dc9' is not a cluster that the file lists before it" in result.stderr.splitlines()[-1]
