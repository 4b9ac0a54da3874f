"""The files of two datacenters on machines of their own: the product reads them, and they fit together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import click
import pytest

from millrace.cli import cli
from millrace.config import BrokerConfig, load, parse_addresses
from millrace.security.client import load_client
from tests.unit.deploy.files import DEPLOY, PAGE, Installed, environment, exec_start, installed, make_secrets

ROWS = installed()
FOLDER = DEPLOY / "datacenters"
OPTIONAL = ("zoo.cfg", "agent.env", "load.env")
BROKERS = [row for row in ROWS if row.source.suffix == ".toml"]
SERVICES = [row for row in ROWS if row.source.suffix == ".env"]


def _name(row: Installed | Path) -> str:
    path = row.source if isinstance(row, Installed) else row
    return str(path.relative_to(FOLDER))


def _config(row: Installed) -> BrokerConfig:
    return load(BrokerConfig, row.source)


def _options(file: Path, unit: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, object]:
    """Return the unit's command's reading of its options and variables."""
    variables = environment(file.read_text())
    for name, value in (variables | {"MILLRACE_REGISTRY": "of secrets.env"}).items():
        monkeypatch.setenv(name, value)
    words = exec_start(unit)[1:]
    assert words[-1] == "$MILLRACE_OPTIONS"
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    return command.make_context(words[0], variables["MILLRACE_OPTIONS"].split()).params


def test_the_page_installs_every_file() -> None:
    named = {row.source for row in ROWS}
    others = {path for path in FOLDER.glob("*/*") if path.name not in OPTIONAL}
    assert named == others
    assert len({row.machine for row in ROWS}) == 10


@pytest.mark.parametrize("row", BROKERS, ids=_name)
def test_a_brokers_file_is_for_its_machine(row: Installed) -> None:
    config = _config(row)
    cluster, _, number = row.machine.partition("-")
    assert (config.cluster, str(config.broker_id)) == (cluster, number)
    inside = next(iter(config.named_listeners.values()))  # what Millrace's own processes are told
    assert inside.listen == f"{row.address}:9092"
    assert {listener.protocol for listener in config.named_listeners.values()} == {"SASL_SSL"}
    assert config.security.authorizer
    assert config.metrics_tls
    assert {origin.security.protocol for origin in config.mirror.values()} <= {"SASL_SSL"}
    assert config.metrics_listen == f"{row.address}:9190"
    for name, listener in config.listeners.items():
        if name != "inside":
            assert listener.advertised.startswith(f"{row.machine}.example.com:")


@pytest.mark.parametrize("cluster", ["dc1", "dc2", "offline"])
def test_the_brokers_of_a_cluster_differ_in_nothing_but_themselves(cluster: str) -> None:
    rows = [row for row in BROKERS if row.machine.startswith(cluster)]
    alike = {
        re.sub(
            rf"{row.machine}|{re.escape(row.address)}(?=:9)|(?<=broker_id = )\d", "", row.source.read_text()
        )
        for row in rows
    }
    assert len(rows) == 3
    assert len(alike) == 1


@pytest.mark.parametrize("cluster", ["dc1", "dc2", "offline"])
def test_brokers_find_the_zookeepers_that_zoo_cfg_names(cluster: str) -> None:
    servers = re.findall(
        r"^server\.(\d)=([\d.]+):2888:3888$", (FOLDER / cluster / "zoo.cfg").read_text(), re.M
    )
    machines = {row.machine: row.address for row in BROKERS if row.machine.startswith(cluster)}
    assert {f"{cluster}-{number}": address for number, address in servers} == machines
    for row in BROKERS:
        if row.machine.startswith(cluster):
            assert parse_addresses(_config(row).zookeeper) == [(host, 2181) for host in machines.values()]


def test_only_the_offline_brokers_mirror_and_they_mirror_every_datacenter() -> None:
    for row in BROKERS:
        mirrored = {name: parse_addresses(origin.bootstrap) for name, origin in _config(row).mirror.items()}
        origins = ("dc1", "dc2") if row.machine.startswith("offline") else ()
        assert mirrored == {origin: _inside(origin) for origin in origins}


def _inside(cluster: str) -> list[tuple[str, int]]:
    return [(row.address, 9092) for row in BROKERS if row.machine.startswith(cluster)]


@pytest.mark.parametrize("row", SERVICES, ids=lambda row: f"{row.machine}-{row.source.name}")
def test_a_service_takes_its_options_and_finds_what_it_needs(
    row: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(row.source, row.unit, monkeypatch)
    cluster = row.machine.partition("-")[0]
    if options.get("listen") or options.get("metrics_listen"):
        assert options["access_file"]
        assert options["certificate"]
    if "listen" in options:
        assert str(options["listen"]).startswith(f"{row.address}:")
    if options.get("bootstrap"):
        bootstrap = options["bootstrap"]
        assert parse_addresses(bootstrap if isinstance(bootstrap, str) else "") == _inside(cluster)
    if "zookeeper" in options:  # whose turn it is stands in the aggregate cluster's
        assert options["zookeeper"] == _config(BROKERS[-1]).zookeeper
    if "cluster" in options:
        assert (options["cluster"], options["tier"]) == (cluster, "offline" if cluster == "offline" else None)
    if "origins" in options:
        assert options["origins"] == "dc1,dc2"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_secrets(tmp_path_factory.mktemp("secrets") / "secrets", "shop")


@pytest.mark.parametrize("machine", [*dict.fromkeys(row.machine for row in ROWS), "shop"])
def test_every_file_that_a_machine_reads_is_among_its_secrets_and_no_other(
    machine: str, secrets: Path
) -> None:
    files = [row.source for row in ROWS if row.machine == machine] or [FOLDER / "dc1/agent.env"]
    read = set(re.findall(r"/etc/millrace/security/([\w.-]+)", "".join(file.read_text() for file in files)))
    there = {file.name for file in (secrets / machine).iterdir()}
    for name in read & {"reader.toml", "auditor.toml", "producer.toml"}:
        client = load_client(str(secrets / machine / name))
        paths = (client.ca, client.password_file, client.zookeeper_identity)
        read |= {Path(path).name for path in paths if path}
    asks = any(file.suffix == ".env" for file in files)
    assert there == read | ({"secrets.env"} if asks else set())
    if asks:
        text = (secrets / machine / "secrets.env").read_text()
        registry = next(row for row in SERVICES if row.unit == "millrace-registry")
        assert re.fullmatch(rf"MILLRACE_REGISTRY=https://{machine}:[\w-]+@{registry.address}:8081\n", text)


@pytest.mark.parametrize("cluster", ["dc1", "dc2"])
def test_an_agent_produces_to_its_own_datacenter(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = _options(FOLDER / cluster / "agent.env", "millrace-agent", monkeypatch)
    assert options["cluster"] == cluster
    assert parse_addresses(str(options["bootstrap"])) == _inside(cluster)


def test_the_page_names_every_port_that_the_files_open() -> None:
    ports = set(re.findall(r"^\| ([\d, ]+) \|", PAGE, re.M))
    named = {port for cell in ports for port in cell.split(", ")}
    text = "\n".join(path.read_text() for path in FOLDER.glob("*/*"))
    opened = set(re.findall(r"(?<=\d:)\d{4,5}\b", text)) | {"9093"}
    assert opened | {"2181"} == named
