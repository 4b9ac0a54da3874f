"""docs/deployment.md on ten machines: its files and units as they are, up to an event offline."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from millrace_warehouse.commands.following import FollowNumbers
from millrace_warehouse.commands.textfile import METRICS, SUCCESS
from tests.deploy.machines import Machine, Network, install_all, two_datacenters, why_not
from tests.support import REPOSITORY, START_S, wait_until
from tests.unit.deploy.files import DEPLOY, expressions, installed, metrics_in

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CLUSTERS = ("dc1", "dc2", "offline")
BROKERS = ("10.1.0.1:9092", "10.2.0.1:9092", "10.9.0.1:9092")
ZOOKEEPERS = ("10.1.0.1:2181", "10.2.0.1:2181", "10.9.0.1:2181")
OFFLINE = BROKERS[2]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """All machines, with everything started in the page's order."""
    network = Network(tmp_path_factory.mktemp("machines"), two_datacenters())
    try:
        started = network.machines
        install_all(started)
        for cluster in CLUSTERS:
            for number in (1, 2, 3):
                settings = DEPLOY / "datacenters" / cluster / "zoo.cfg"
                started[f"{cluster}-{number}"].start_zookeeper(number, settings)
        order = ("broker", "registry", "audit-reader", "auditor", "audit-warehouse")
        for unit in (f"millrace-{name}" for name in order):
            for row in installed():
                if row.unit == unit:
                    _start_until_it_stays(started[row.machine], unit)
            if unit == "millrace-broker":
                _let_in(started["operator"])
        yield started
    finally:
        network.close()


def _let_in(operator: Machine) -> None:
    """Create the users, their rights and the topics of the audit, as the page says."""
    for cluster, zookeeper, broker in zip(CLUSTERS, ZOOKEEPERS, BROKERS, strict=True):
        words = ("security", "users", "/srv/secrets/security", "--cluster", cluster, "--zookeeper", zookeeper)
        operator.millrace("--client", f"/srv/secrets/identities/{cluster}/operator.toml", *words)
        for topic in ["audit-offline"] if cluster == "offline" else ["audit", "audit-counts"]:
            create = ("topics", "create", topic, "--partitions", "1", "--bootstrap", broker)
            wait_until(f"{cluster} knows the admin", partial(_succeeds, operator, *create))
    operator.millrace("acls", "allow", "User:producer", "read", "--topic", "audit", "--bootstrap", BROKERS[0])


def _succeeds(machine: Machine, *words: str) -> bool:
    try:
        machine.millrace(*words)
    except AssertionError:
        return False
    return True


def _start_until_it_stays(machine: Machine, unit: str) -> None:
    """As Restart=always does: ZooKeeper may still be electing its leader. A standby prints no ready line."""

    def stays() -> bool:
        service = machine.start(unit)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and service.running:
            if "ready: " in service.output or "stands by" in service.output:
                return True
            time.sleep(0.05)
        return False

    try:
        wait_until(f"{unit} stays", stays, timeout_s=2 * START_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {machine.service(unit).output[-3000:]}") from None


def test_an_event_of_a_service_is_counted_everywhere(machines: dict[str, Machine]) -> None:
    shop, operator = machines["shop"], machines["operator"]
    registry = operator.variables["MILLRACE_REGISTRY"]
    operator.millrace("schemas", "apply", str(REPOSITORY / "schemas"))
    operator.millrace("topics", "create", "PageView", "--partitions", "3", "--bootstrap", "10.1.0.1:9092")
    shop.start("millrace-agent").ready()
    event = {"clientAddress": "10.0.0.1", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}
    events = [{"time": int(time.time() * 1000), "key": f"member {n}", "event": event} for n in range(100)]
    code = (
        "import sys, urllib.request as web; print(web.urlopen(web.Request("
        "'https://127.0.0.1:8083/v1/topics/PageView/events', sys.stdin.read().encode(),"
        "{'Content-Type': 'application/json', 'Authorization': 'Bearer ' + sys.argv[1]}),"
        " timeout=30).read().decode())"
    )
    token = (operator.folder / "srv/secrets/shop.token").read_text().strip()
    shop.variables = {"SSL_CERT_FILE": "/etc/millrace/security/ca.pem"}
    answer = shop.run(sys.executable, "-c", code, token, stdin=json.dumps(events))
    assert json.loads(answer) == {"accepted": 100}

    def consumed() -> bool:
        words = ("--from-beginning", "--until-end", "--bootstrap", OFFLINE, "--registry", registry)
        return operator.millrace("consume", "PageView", *words).count("member") >= 100

    wait_until("the events offline", consumed)

    def counted() -> bool:
        counts = [
            line
            for address in ("10.1.0.1", "10.1.0.2", "10.9.0.1", "10.9.0.2")
            for line in operator.get(f"https://{address}:9191/metrics", prometheus(operator)).splitlines()
            if line.startswith("millrace_audit_reader_messages_total{") and 'kind="audited"' in line
        ]
        tiers = {line.split('tier="')[1].split('"')[0]: 0.0 for line in counts}
        for line in counts:
            tiers[line.split('tier="')[1].split('"')[0]] += float(line.rsplit(" ", 1)[1])
        return tiers == {"dc1": 100, "offline": 100}

    wait_until("both tiers have counted them", counted)


def prometheus(operator: Machine) -> str:
    """The token for every page of metrics."""
    return (operator.folder / "srv/secrets/prometheus.token").read_text().strip()


def test_every_part_says_that_it_is_well(machines: dict[str, Machine]) -> None:
    operator = machines["operator"]
    for row in installed():
        if row.unit == "millrace-broker":
            assert json.loads(operator.get(f"https://{row.address}:9190/healthz"))["healthy"]
    assert json.loads(operator.get("https://10.9.0.4:8081/healthz")) == {"status": "ok"}
    wait_until(
        "the auditor has heard of all tiers", lambda: _answers(operator, "https://10.9.0.4:8082/v1/health")
    )


def _answers(machine: Machine, url: str) -> bool:
    try:
        return bool(machine.get(url))
    except AssertionError:
        return False


def test_alerts_and_dashboards_read_only_metrics_that_are_served(machines: dict[str, Machine]) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    ]
    operator = machines["operator"]
    token = prometheus(operator)
    for target in targets:
        with pytest.raises(AssertionError, match="401"):
            operator.get(f"https://{target}/metrics")
    pages = [operator.get(f"https://{target}/metrics", token) for target in targets]
    pages.append(machines["shop"].get("https://127.0.0.1:8083/metrics", token))
    served = set()
    for page in pages:
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            served |= {name + ending for ending in endings}
    served |= {SUCCESS, *(name for fields in METRICS.values() for name, _, _ in fields.values())}
    served |= {metric.name for metric in FollowNumbers().collect()}
    asked = {name for expression in expressions() for name in metrics_in(expression)}
    assert len(asked) > 30
    assert asked - served == set()


LOGIN = """
from confluent_kafka.admin import AdminClient
folder = "/etc/millrace/security"
login = {
    "security.protocol": "SASL_SSL", "ssl.ca.location": f"{folder}/ca.pem", "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "producer", "sasl.password": open(f"{folder}/producer.password").readline().strip(),
}
"""


def test_a_service_that_logs_in_is_served_at_the_outside_listener_and_nobody_else(
    machines: dict[str, Machine],
) -> None:
    shop = machines["shop"]
    code = f"""{LOGIN}
import sys
login["sasl.password"] += sys.argv[1]
servers = {{"bootstrap.servers": "dc1-2.example.com:9093", "log_level": 0}}
try:
    found = AdminClient({{**servers, **login}}).list_topics(timeout=8)
    print(sorted(f"{{broker.host}}:{{broker.port}}" for broker in found.brokers.values()))
except Exception as error:
    print(type(error).__name__)
"""
    found = shop.run(sys.executable, "-c", code, "").strip()
    assert found == str([f"dc1-{n}.example.com:9093" for n in (1, 2, 3)])
    assert shop.run(sys.executable, "-c", code, "wrong").strip() == "KafkaException"


def test_the_second_reader_takes_over_and_a_machine_may_be_lost(machines: dict[str, Machine]) -> None:
    first, second = machines["dc1-1"], machines["dc1-2"]
    first.service("millrace-audit-reader").end(9)
    wait_until(
        "dc1's other reader counts", lambda: "ready: " in second.service("millrace-audit-reader").output
    )
    first.service("zookeeper").end(9)  # two of three are left
    create = ("topics", "create", "SearchQuery", "--partitions", "3", "--bootstrap", "10.1.0.2:9092")
    machines["operator"].millrace(*create)


PRODUCER = f"""{LOGIN}
import signal, sys, time
from confluent_kafka import Producer
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
acknowledged = []
def done(error, message):
    assert error is None, error
    acknowledged.append(message.value())
producer = Producer({{"bootstrap.servers": sys.argv[1], "enable.idempotence": True, **login}})
number = 0
while not stop:
    producer.produce(sys.argv[2], b"%d" % number, on_delivery=done)
    number += 1
    producer.poll(0.002)
producer.flush()
print("acknowledged", len(acknowledged), "of", number, flush=True)
"""


def consumed(machine: Machine, topic: str, bootstrap: str) -> list[str]:
    """Every message of a topic, sorted."""
    words = ("--from-beginning", "--until-end", "--bootstrap", bootstrap)
    return sorted(machine.millrace("consume", topic, *words).split())


def test_brokers_are_restarted_one_by_one_under_traffic_and_nothing_is_lost_or_repeated(
    machines: dict[str, Machine],
) -> None:
    shop, operator = machines["shop"], machines["operator"]
    operator.millrace("topics", "create", "Rolling", "--partitions", "6", "--bootstrap", "10.1.0.2:9092")
    brokers = "10.1.0.1:9092,10.1.0.2:9092,10.1.0.3:9092"
    producer = shop.in_background(sys.executable, "-c", PRODUCER, brokers, "Rolling", log="producer.log")
    for cluster in ("dc1", "offline"):
        for number in (1, 2, 3):
            machine = machines[f"{cluster}-{number}"]
            assert machine.service("millrace-broker").end() == 0
            _start_until_it_stays(machine, "millrace-broker")
    assert producer.running, producer.output
    assert producer.end() == 0, producer.output
    _, acknowledged, _, sent = producer.output.splitlines()[-1].split()
    assert int(acknowledged) == int(sent) > 1000
    wanted = sorted(map(str, range(int(sent))))
    assert consumed(operator, "Rolling", brokers) == wanted
    wait_until("all of them offline", lambda: consumed(operator, "Rolling", OFFLINE) == wanted)


def test_what_a_cluster_has_lost_is_restored_from_its_copies(
    machines: dict[str, Machine], tmp_path: Path
) -> None:
    dc2 = [machines[f"dc2-{number}"] for number in (1, 2, 3)]
    operator, services = machines["operator"], machines["offline-4"]
    brokers = "10.2.0.1:9092,10.2.0.2:9092,10.2.0.3:9092"
    operator.millrace("topics", "create", "Kept", "--partitions", "3", "--bootstrap", brokers)
    sent = [str(number) for number in range(300)]
    produce = ("/opt/millrace/bin/millrace", "produce", "Kept", "--bootstrap", brokers)
    operator.run(*produce, stdin="\n".join(sent) + "\n")
    subjects, token = "https://10.9.0.4:8081/subjects", prometheus(operator)
    registered = json.loads(operator.get(subjects, token))
    assert "AuditHeartbeat" in registered
    backup = str(DEPLOY / "backup.sh")
    dc2[1].run(backup, "/srv/backup")  # while everything runs
    services.run(backup, "/srv/backup")
    for machine in dc2:
        assert machine.service("millrace-broker").end() == 0
    log = dc2[0].folder / "var/lib/millrace/broker"
    shutil.copytree(log, tmp_path / "log")

    shutil.rmtree(log)  # a disk is lost, and every ZooKeeper of the cluster
    for machine in dc2:
        machine.service("zookeeper").end(9)
        shutil.rmtree(machine.folder / "var/lib/zookeeper/version-2")
    services.service("millrace-registry").end(9)
    registry = services.folder / "var/lib/millrace/registry"
    for file in registry.iterdir():
        file.unlink()

    shutil.copytree(tmp_path / "log", log)
    for number, machine in enumerate(dc2, 1):
        shutil.copytree(
            dc2[1].folder / "srv/backup/zookeeper", machine.folder / "var/lib/zookeeper/version-2"
        )
        machine.start_zookeeper(number, DEPLOY / "datacenters/dc2/zoo.cfg")
    for machine in dc2:
        _start_until_it_stays(machine, "millrace-broker")
    shutil.copy(services.folder / "srv/backup/registry.db", registry)
    services.start("millrace-registry").ready()
    assert consumed(operator, "Kept", brokers) == sorted(sent)
    assert json.loads(operator.get(subjects, token)) == registered
    operator.run(*produce, stdin="300\n")
    wait_until("the mirror goes on", lambda: consumed(operator, "Kept", OFFLINE) == sorted([*sent, "300"]))
