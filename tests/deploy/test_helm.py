"""The chart: Helm renders it, Kubernetes' schemas take every object, the product what its pods are given."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from millrace.cli import cli
from millrace.config import BrokerConfig, load
from millrace.security.client import load_client
from millrace.service.access import AccessList
from tests.deploy.machines import Machine, Network, Service, why_not
from tests.support import REPOSITORY
from tests.unit.deploy.files import DEPLOY

pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None or shutil.which("kubernetes-validate") is None,
    reason="needs helm and kubernetes-validate: make test-deploy installs them where Go is there",
)
FOLDER = DEPLOY / "helm"
RELEASES = ["dc1", "offline"]
VERSIONS = ["1.27", "1.34"]
LOADER = ("load.enabled=true", "load.topics={PageView,SearchQuery}", "load.catalog=lake")
MONITORS = ("ServiceMonitor", "PodMonitor")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=120)


def rendered(release: str, *settings: str, version: str = VERSIONS[-1]) -> list[dict[str, Any]]:
    words = ("--namespace", release, "--values", f"values-{release}.yaml", "--kube-version", version)
    done = run("helm", "template", "millrace", "millrace", *words, *(f"--set={one}" for one in settings))
    assert done.returncode == 0, done.stderr
    return [thing for thing in yaml.safe_load_all(done.stdout) if thing]


def pods(things: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, template) of everything that makes pods."""
    for thing in things:
        if "template" in thing.get("spec", {}):
            yield thing["metadata"]["name"], thing["spec"]["template"]


def validate(things: list[dict[str, Any]], file: Path, version: str) -> str:
    own = [thing for thing in things if thing["kind"] not in MONITORS]
    file.write_text(yaml.safe_dump_all(own))
    done = run("kubernetes-validate", "--strict", "--quiet", "-k", version, str(file))
    return done.stdout + done.stderr


def test_helm_finds_nothing_to_say() -> None:
    done = run("helm", "lint", "--strict", "--quiet", "millrace")
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("release", RELEASES)
def test_kubernetes_takes_every_object(release: str, version: str, tmp_path: Path) -> None:
    secret = ("registry.databaseUrlSecret=database", "auditor.databaseUrlSecret=database")
    for settings in ((), secret):
        things = rendered(release, *settings, version=version)
        things.append(yaml.safe_load((FOLDER / "admin.yaml").read_text()))
        assert validate(things, tmp_path / "all.yaml", version) == ""
    broken = next(thing for thing in things if thing["kind"] == "StatefulSet")
    broken["spec"]["replica"] = broken["spec"].pop("replicas")
    assert "replica" in validate([broken], tmp_path / "broken.yaml", version)


@pytest.mark.parametrize("release", RELEASES)
def test_every_broker_has_a_file_that_the_product_reads(release: str, tmp_path: Path) -> None:
    things = rendered(release)
    (config,) = (thing for thing in things if thing["kind"] == "ConfigMap")
    file = tmp_path / "broker.toml"
    file.write_text(config["data"]["broker.toml"])
    (broker,) = dict(pods(things))["millrace-broker"]["spec"]["containers"]
    # The shell makes words of the command; millrace prints them here.
    show = tmp_path / "millrace"
    show.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    show.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOSTNAME": "millrace-broker-2"}
    done = subprocess.run(
        [*broker["command"], *broker["args"]], env=environment, capture_output=True, text=True, check=True
    )
    words = done.stdout.split()
    assert words[:2] == ["broker", "/etc/millrace/broker.toml"]
    settings = load(BrokerConfig, file, [words[at + 1] for at, word in enumerate(words) if word == "--set"])
    assert (settings.broker_id, settings.cluster) == (3, release)
    service = f"millrace-broker-2.millrace-broker.{release}.svc"
    inside = settings.named_listeners["inside"]
    assert (inside.advertised, inside.protocol) == (f"{service}:9092", "SASL_SSL")
    assert settings.security.authorizer
    assert settings.metrics_tls
    assert settings.replica_client.user == "broker"
    assert {origin.security.user for origin in settings.mirror.values()} <= {"mirror"}
    assert set(settings.mirror) == ({"dc1", "dc2"} if release == "offline" else set())


@pytest.mark.parametrize("release", RELEASES)
def test_every_other_container_has_arguments_that_its_command_takes(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    for name, pod in pods(rendered(release)):
        (container,) = pod["spec"]["containers"]
        if name == "millrace-broker":
            continue
        for variable in container.get("env", []):
            monkeypatch.setenv(variable["name"], variable.get("value", "of a Secret"))
        command, *words = container["args"]
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        found.make_context(command, words)
        started.append(command)
    offline = ["audit-reader", "audit-warehouse", "auditor", "registry"]
    assert sorted(started) == (offline if release == "offline" else ["audit-reader"])


def test_the_reader_of_the_warehouse_names_the_catalog_that_an_object_store_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without one it ends at once: only a local warehouse has a catalog of its own."""
    (container,) = dict(pods(rendered("offline")))["millrace-audit-warehouse"]["spec"]["containers"]
    command, *words = container["args"]
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    monkeypatch.setenv("MILLRACE_REGISTRY", "of a Secret")
    given = found.make_context(command, words).params
    assert given["warehouse"].startswith("s3://")
    assert given["catalog"]
    words = ["--values", "values-offline.yaml", "--kube-version", VERSIONS[-1]]
    refused = run("helm", "template", "millrace", "millrace", *words, "--set=auditWarehouse.catalog=")
    assert "auditWarehouse.catalog: name the catalog of the tables" in refused.stderr


def test_a_resident_loader_takes_its_arguments_and_is_scraped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    things = rendered("offline", *LOADER)
    assert validate(things, tmp_path / "all.yaml", VERSIONS[-1]) == ""
    (container,) = dict(pods(things))["millrace-load"]["spec"]["containers"]
    monkeypatch.setenv("MILLRACE_REGISTRY", "of a Secret")
    command, *words = container["args"]
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    given = found.make_context(command, words).params
    assert given["topics"] == ("PageView", "SearchQuery")
    assert given["follow"]
    assert given["live"]
    assert "millrace-load" in {thing["metadata"]["name"] for thing in things if thing["kind"] == "PodMonitor"}
    assert "millrace-load" not in dict(pods(rendered("offline")))


def _selects(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("release", RELEASES)
def test_services_budgets_and_monitors_select_what_is_there(release: str) -> None:
    things = rendered(release, "serviceMonitor.labels.release=prometheus")
    templates = [pod for _, pod in pods(things)]
    services = [thing for thing in things if thing["kind"] == "Service"]
    for thing in things:
        kind, spec = thing["kind"], thing.get("spec", {})
        if kind in ("PodDisruptionBudget", "PodMonitor"):
            chosen = [
                one
                for one in templates
                if _selects(spec["selector"]["matchLabels"], one["metadata"]["labels"])
            ]
            assert len(chosen) == 1, thing
        if kind == "Service":
            (chosen_pod,) = (
                one for one in templates if _selects(spec["selector"], one["metadata"]["labels"])
            )
            ports = {port["name"] for port in chosen_pod["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        if kind == "ServiceMonitor":
            (service,) = (
                one
                for one in services
                if _selects(spec["selector"]["matchLabels"], one["metadata"]["labels"])
            )
            assert {end["port"] for end in spec["endpoints"]} <= {
                port["name"] for port in service["spec"]["ports"]
            }
            assert thing["metadata"]["labels"]["release"] == "prometheus"
    assert [thing["kind"] for thing in things].count("PodDisruptionBudget") == 2


@pytest.mark.parametrize("release", RELEASES)
def test_every_pod_runs_without_rights_and_serving_ones_are_probed(release: str) -> None:
    for name, pod in pods(rendered(release)):
        spec = pod["spec"]
        (container,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [
            container[kind]
            for kind in ("startupProbe", "readinessProbe", "livenessProbe")
            if kind in container
        ]
        assert bool(probes) == bool(ports), name
        for probe in probes:
            assert next(iter(probe[how] for how in ("tcpSocket", "httpGet") if how in probe))["port"] in ports


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder that secrets.sh makes: NAMESPACE/COMPONENT is a Secret."""
    folder = tmp_path_factory.mktemp("secrets") / "secrets"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = (FOLDER / "secrets.sh", folder, "offline", "dc1", "dc2")
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=300)
    return folder


def secret_of(pod: dict[str, Any]) -> str:
    """The component whose Secret is mounted in a pod."""
    (name,) = (volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume)
    return str(name).removeprefix("millrace-")


@pytest.mark.parametrize("release", RELEASES)
def test_every_file_that_a_pod_names_is_in_its_secret(release: str, secrets: Path) -> None:
    things = rendered(release, *(LOADER if release == "offline" else ()))
    (config,) = (thing["data"]["broker.toml"] for thing in things if thing["kind"] == "ConfigMap")
    admin = yaml.safe_load((FOLDER / "admin.yaml").read_text())
    for name, spec in [
        *((name, pod["spec"]) for name, pod in pods(things)),
        ("millrace-admin", admin["spec"]),
    ]:
        (container,) = spec["containers"]
        assert f"millrace-{secret_of(spec)}" == name
        folder, variables = secrets / release / secret_of(spec), container.get("env", [])
        text = str(container) + (config if name == "millrace-broker" else "")
        named = set(re.findall(r"/security/([\w.-]+)", text))
        keys = {one["valueFrom"]["secretKeyRef"]["key"] for one in variables if "valueFrom" in one}
        there = {file.name for file in folder.iterdir()}
        assert named | keys - ({"auditor"} if release != "offline" else set()) <= there
        if "client.toml" in there:
            client = load_client(str(folder / "client.toml"))
            read = (client.ca, client.password_file, client.zookeeper_identity)
            named |= {Path(file).name for file in read if file} | {"client.toml"}
        assert there == named | keys & there, f"{name} is given what it does not read"
        if "access.toml" in there:
            AccessList(str(folder / "access.toml"))


def _lets_in(rule: Mapping[str, Any], namespace: str, labels: Mapping[str, str], *, own: str) -> bool:
    """True if a rule of a policy in the namespace `own` lets in a pod by one of its peers."""

    def chosen(selector: Mapping[str, Any] | None, found: Mapping[str, str]) -> bool:
        wanted = selector or {}
        return _selects(wanted.get("matchLabels", {}), found) and all(
            found.get(one["key"]) in one["values"] for one in wanted.get("matchExpressions", [])
        )

    return any(
        (
            chosen(peer["namespaceSelector"], {"kubernetes.io/metadata.name": namespace})
            if "namespaceSelector" in peer
            else namespace == own
        )
        and chosen(peer.get("podSelector"), labels)
        for peer in rule["from"]
    )


def test_the_policies_let_in_who_has_to_come_in_and_nobody_else() -> None:
    def ports(release: str, namespace: str, labels: Mapping[str, str]) -> set[str]:
        (policy,) = (thing for thing in rendered(release) if thing["kind"] == "NetworkPolicy")
        assert all(
            _selects(policy["spec"]["podSelector"]["matchLabels"], pod["metadata"]["labels"])
            for _, pod in pods(rendered(release))
        )
        return {
            port["port"]
            for rule in policy["spec"]["ingress"]
            if _lets_in(rule, namespace, labels, own=release)
            for port in rule["ports"]
        }

    def of(release: str, component: str) -> Mapping[str, str]:
        found: Mapping[str, str] = dict(pods(rendered(release)))[f"millrace-{component}"]["metadata"][
            "labels"
        ]
        return found

    client = yaml.safe_load((FOLDER / "admin.yaml").read_text())["metadata"]["labels"]
    assert ports("dc1", "dc1", of("dc1", "audit-reader")) == {"kafka", "http"}
    assert ports("dc1", "offline", of("offline", "broker")) == {"kafka"}
    assert ports("dc1", "offline", of("offline", "auditor")) == set()
    assert ports("dc1", "dc1", client) == {"kafka", "http"}
    assert ports("dc1", "dc1", {}) == set()
    assert ports("dc1", "shop", client) == set()
    assert ports("offline", "dc1", of("dc1", "audit-reader")) == {"http"}
    assert ports("offline", "dc2", client) == {"http"}
    assert ports("offline", "offline", of("offline", "audit-warehouse")) == {"kafka", "http"}
    assert ports("offline", "monitoring", {}) == {"metrics", "http"}


def start_pod(machine: Machine, namespace: str, pod: Mapping[str, Any], *words: str) -> Service:
    """Run a pod's container, or other words in its place, on a machine where Secrets are in /srv/secrets."""
    (container,) = pod["containers"]
    secret = f"/srv/secrets/{namespace}/{secret_of(dict(pod))}"

    def here(text: str) -> str:
        return text.replace("/security", secret).replace("/data", f"/srv/{container['name']}")

    variables = {"PATH": f"/opt/millrace/bin:{os.environ['PATH']}", "HOSTNAME": "millrace-broker-0"}
    for one in container.get("env", []):
        if "valueFrom" in one:
            file = machine.folder / secret.lstrip("/") / one["valueFrom"]["secretKeyRef"]["key"]
            variables[one["name"]] = file.read_text()
        else:
            variables[one["name"]] = here(one["value"])
    (machine.folder / "srv" / container["name"]).mkdir(exist_ok=True)
    command = words or [*container.get("command", ["millrace"]), *map(here, container["args"])]
    settings = (f"{name}={value}" for name, value in variables.items())
    return machine.in_background("env", *settings, *command, log=f"{container['name']}.log")


GET = """
import sys, urllib.error, urllib.request as web
url, *token = sys.argv[1:]
headers = {"Authorization": f"Bearer {token[0]}"} if token else {}
try:
    print(web.urlopen(web.Request(url, headers=headers), timeout=10).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_release_runs_with_its_secrets_and_answers_nobody_without_one(
    secrets: Path, tmp_path: Path
) -> None:
    """All on one machine, which has the names of the Services: kubelet and network are not Kubernetes'."""
    things = rendered("offline")
    templates = {name.removeprefix("millrace-"): pod["spec"] for name, pod in pods(things)}
    admin = yaml.safe_load((FOLDER / "admin.yaml").read_text())["spec"]
    names = (
        "zookeeper",
        *(f"millrace-{name}" for name in ("bootstrap", "broker", "registry", "auditor", "audit-reader")),
    )
    with closing(Network(tmp_path, {"machine": "10.9.0.1"})) as network:
        machine = network.machines["machine"]
        hosts = [f"{name}.offline.svc" for name in (*names, "millrace-broker-0.millrace-broker")]
        (machine.folder / "etc/hosts").write_text(f"127.0.0.1 localhost {' '.join(hosts)}\n")
        shutil.copytree(secrets, machine.folder / "srv/secrets")
        (config,) = (thing["data"]["broker.toml"] for thing in things if thing["kind"] == "ConfigMap")
        file = machine.folder / "etc/millrace/broker.toml"
        file.write_text(
            config.replace("/security", "/srv/secrets/offline/broker").replace("/data", "/srv/broker")
        )

        words = ("zookeeper", "--port", "2181", "--data-dir", "/srv/zookeeper")
        machine.in_background("/opt/millrace/bin/millrace", *words, log="zookeeper.log").ready()
        start_pod(machine, "offline", templates["broker"]).ready()
        operator = ("--client", "/srv/secrets/identities/offline/operator.toml", "security", "users")
        where = ("--cluster", "offline", "--zookeeper", "zookeeper.offline.svc:2181")
        machine.millrace(*operator, "/srv/secrets/security", *where)
        start_pod(machine, "offline", templates["registry"]).ready()

        def administer(*words: str) -> None:
            service = start_pod(machine, "offline", admin, "millrace", *words)
            assert service.wait() == 0, service.output

        bootstrap = ("--bootstrap", "millrace-bootstrap.offline.svc:9092")
        for topic in ("audit", "audit-counts", "audit-offline"):
            administer("topics", "create", topic, "--partitions", "1", *bootstrap)
        administer("schemas", "apply", str(REPOSITORY / "schemas"))
        start_pod(machine, "offline", templates["audit-reader"]).ready()
        start_pod(machine, "offline", templates["auditor"]).ready()

        refused = machine.in_background(
            "/opt/millrace/bin/millrace", "topics", "list", *bootstrap, log="refused.log"
        )
        assert refused.wait() != 0
        token = (secrets / "offline/metrics/token").read_text().strip()
        for component, port in (
            ("broker", 9190),
            ("audit-reader", 9191),
            ("registry", 8081),
            ("auditor", 8082),
        ):
            get = ("env", "SSL_CERT_FILE=/srv/secrets/offline/metrics/ca.pem", sys.executable, "-c", GET)
            url = f"https://millrace-{component}.offline.svc:{port}/metrics"
            assert machine.run(*get, url, token).strip() == "200"
            assert machine.run(*get, url).strip() == "401"
