"""docs/deployment.md on ten machines: its files and units as they are, up to an event offline."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.deploy.machines import Machine, Network, install_all, two_datacenters, why_not
from tests.support import REPOSITORY, wait_until
from tests.unit.deploy.files import DEPLOY, expressions, installed, metrics_in

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
CLUSTERS = ("dc1", "dc2", "offline")
OFFLINE = "10.9.0.1:9092"


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
        order = ("registry", "broker", "audit-reader", "auditor", "audit-warehouse")
        for unit in (f"millrace-{name}" for name in order):
            for row in installed():
                if row.unit == unit:
                    _start_until_it_stays(started[row.machine], unit)
        yield started
    finally:
        network.close()


def _start_until_it_stays(machine: Machine, unit: str) -> None:
    """As Restart=always does: ZooKeeper may still be electing its leader. A standby prints no ready line."""

    def stays() -> bool:
        service = machine.start(unit)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and service.running:
            if "ready: " in service.output or "stands by" in service.output:
                return True
            time.sleep(0.05)
        return False

    try:
        wait_until(f"{unit} stays", stays)
    except AssertionError as error:
        raise AssertionError(f"{error}: {machine.service(unit).output[-3000:]}") from None


def test_an_event_of_a_service_is_counted_everywhere(machines: dict[str, Machine]) -> None:
    inside, shop, offline = machines["dc1-1"], machines["shop"], machines["offline-4"]
    registry = "http://10.9.0.4:8081"
    inside.millrace("schemas", "apply", str(REPOSITORY / "schemas"), "--registry", registry)
    inside.millrace("topics", "create", "PageView", "--partitions", "3", "--bootstrap", "10.1.0.1:9092")
    shop.start("millrace-agent").ready()
    event = {"clientAddress": "10.0.0.1", "method": "GET", "url": "/", "protocol": "HTTP/1.1", "status": 200}
    events = [{"time": int(time.time() * 1000), "key": f"member {n}", "event": event} for n in range(100)]
    code = (
        "import sys, urllib.request as web; print(web.urlopen(web.Request("
        "'http://127.0.0.1:8083/v1/topics/PageView/events', sys.stdin.read().encode(),"
        "{'Content-Type': 'application/json'}), timeout=30).read().decode())"
    )
    assert json.loads(shop.run(sys.executable, "-c", code, stdin=json.dumps(events))) == {"accepted": 100}

    def consumed() -> bool:
        words = ("--from-beginning", "--until-end", "--bootstrap", OFFLINE, "--registry", registry)
        return offline.millrace("consume", "PageView", *words).count("member") >= 100

    wait_until("the events offline", consumed)

    def counted() -> bool:
        counts = [
            line
            for address in ("10.1.0.1", "10.1.0.2", "10.9.0.1", "10.9.0.2")
            for line in offline.get(f"http://{address}:9191/metrics").splitlines()
            if line.startswith("millrace_audit_reader_messages_total{") and 'kind="audited"' in line
        ]
        tiers = {line.split('tier="')[1].split('"')[0]: 0.0 for line in counts}
        for line in counts:
            tiers[line.split('tier="')[1].split('"')[0]] += float(line.rsplit(" ", 1)[1])
        return tiers == {"dc1": 100, "offline": 100}

    wait_until("both tiers have counted them", counted)


def test_every_part_says_that_it_is_well(machines: dict[str, Machine]) -> None:
    operator = machines["offline-4"]
    for row in installed():
        if row.unit == "millrace-broker":
            assert json.loads(operator.get(f"http://{row.address}:9190/healthz"))["healthy"]
    assert json.loads(operator.get("http://10.9.0.4:8081/healthz")) == {"status": "ok"}
    wait_until(
        "the auditor has heard of all tiers", lambda: _answers(operator, "http://10.9.0.4:8082/v1/health")
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
    pages = [machines["offline-4"].get(f"http://{target}/metrics") for target in targets]
    pages.append(machines["shop"].get("http://127.0.0.1:8083/metrics"))
    served = set()
    for page in pages:
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE):
            endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
            served |= {name + ending for ending in endings}
    asked = {name for expression in expressions() for name in metrics_in(expression)}
    assert len(asked) > 30
    assert asked - served == set()


def test_a_service_with_a_certificate_is_served_at_the_outside_listener_and_nobody_else(
    machines: dict[str, Machine],
) -> None:
    shop = machines["shop"]
    code = """
import sys
from confluent_kafka.admin import AdminClient
ssl = {"security.protocol": "SSL", "ssl.ca.location": "/srv/authority/ca.pem"}
own = {"ssl.certificate.location": "/srv/authority/shop.pem", "ssl.key.location": "/srv/authority/shop.key"}
servers = {"bootstrap.servers": "dc1-2.example.com:9093", "log_level": 0}
try:
    found = AdminClient({**servers, **ssl, **(own if sys.argv[1] == "own" else {})}).list_topics(timeout=8)
    print(sorted(f"{broker.host}:{broker.port}" for broker in found.brokers.values()))
except Exception as error:
    print(type(error).__name__)
"""
    found = shop.run(sys.executable, "-c", code, "own").strip()
    assert found == str([f"dc1-{n}.example.com:9093" for n in (1, 2, 3)])
    assert shop.run(sys.executable, "-c", code, "none").strip() == "KafkaException"


def test_the_second_reader_takes_over_and_a_machine_may_be_lost(machines: dict[str, Machine]) -> None:
    first, second = machines["dc1-1"], machines["dc1-2"]
    first.service("millrace-audit-reader").end(9)
    wait_until(
        "dc1's other reader counts", lambda: "ready: " in second.service("millrace-audit-reader").output
    )
    first.service("zookeeper").end(9)  # two of three are left
    second.millrace("topics", "create", "SearchQuery", "--partitions", "3", "--bootstrap", "10.1.0.2:9092")
