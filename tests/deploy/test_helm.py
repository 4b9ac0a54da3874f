"""The chart: Helm renders it, Kubernetes' schemas take every object, the product what its pods are given."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from millrace.cli import cli
from millrace.config import BrokerConfig, load
from tests.unit.deploy.files import DEPLOY

pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None or shutil.which("kubernetes-validate") is None,
    reason="needs helm and kubernetes-validate: make test-deploy installs them where Go is there",
)
FOLDER = DEPLOY / "helm"
RELEASES = ["dc1", "offline"]
VERSIONS = ["1.27", "1.34"]
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
    assert settings.named_listeners["inside"].advertised == f"{service}:9092"
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
            monkeypatch.setenv(variable["name"], variable["value"])
        command, *words = container["args"]
        found = cli.get_command(click.Context(cli), command)
        assert found is not None
        found.make_context(command, words)
        started.append(command)
    offline = ["audit-reader", "audit-warehouse", "auditor", "registry"]
    assert sorted(started) == (offline if release == "offline" else ["audit-reader"])


def test_the_reader_of_the_warehouse_names_the_catalog_that_an_object_store_needs() -> None:
    """Without one it ends at once: only a local warehouse has a catalog of its own."""
    (container,) = dict(pods(rendered("offline")))["millrace-audit-warehouse"]["spec"]["containers"]
    command, *words = container["args"]
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    given = found.make_context(command, words).params
    assert given["warehouse"].startswith("s3://")
    assert given["catalog"]
    words = ["--values", "values-offline.yaml", "--kube-version", VERSIONS[-1]]
    refused = run("helm", "template", "millrace", "millrace", *words, "--set=auditWarehouse.catalog=")
    assert "auditWarehouse.catalog: name the catalog of the tables" in refused.stderr


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
