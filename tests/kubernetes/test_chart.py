"""The Helm chart on a real API server: installed, changed, upgraded from its first version, and removed.

Controllers create the chart's pods, and admission checks them. No container runs: see `tests.peers.kubelet`.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.conftest import Helm
from tests.peers.kubernetes import Kubernetes, Thing
from tests.support import REPOSITORY, wait_until

FOLDER = REPOSITORY / "deploy" / "helm"
CHART = FOLDER / "millrace"
FIRST_CHART = "c9524600"
"""Revision that is upgraded from until there is a tag: the one that added the chart."""
EXAMPLES = {"default": (), "dc1": ("values-dc1.yaml",), "offline": ("values-offline.yaml",)}
PLAIN = "--set=serviceMonitor.enabled=false"
LOADER = "--set=load.enabled=true,load.topics={PageView},load.catalog=lake"
OF_THE_RELEASE = "app.kubernetes.io/instance=millrace"
MONITORING = "monitoring.coreos.com"
pytestmark = pytest.mark.usefixtures("kubelet")


def values(example: str, folder: Path = FOLDER) -> list[str | Path]:
    return [word for name in EXAMPLES[example] for word in ("--values", folder / name)]


def install(helm: Helm, namespace: str, *words: str | Path, chart: Path = CHART) -> str:
    return helm("install", "millrace", chart, "--namespace", namespace, "--wait", *words)


def upgrade(helm: Helm, namespace: str, *words: str | Path) -> str:
    return helm("upgrade", "millrace", CHART, "--namespace", namespace, "--wait", *words)


def uninstall(helm: Helm, namespace: str) -> None:
    helm("uninstall", "millrace", "--namespace", namespace, "--wait")


def pods(kubernetes: Kubernetes, namespace: str) -> dict[str, Thing]:
    """Pods of the release that are not being deleted, by their names."""
    found = kubernetes.items(f"api/v1/namespaces/{namespace}/pods", OF_THE_RELEASE)
    return {pod["metadata"]["name"]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def identities(kubernetes: Kubernetes, namespace: str) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in pods(kubernetes, namespace).items()}


def statefulset(kubernetes: Kubernetes, namespace: str, name: str = "millrace-broker") -> Thing:
    found = kubernetes.find(f"apis/apps/v1/namespaces/{namespace}/statefulsets/{name}")
    assert found is not None
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_release_is_installed_changed_and_removed(
    example: str, helm: Helm, kubernetes: Kubernetes, namespace: str
) -> None:
    loader = (LOADER,) if example == "offline" else ()
    install(helm, namespace, *values(example), PLAIN, *loader)
    others = {"registry", "auditor", "audit-warehouse", "load"} if loader else set()
    running = pods(kubernetes, namespace)
    components = [pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in running.values()]
    assert sorted(components) == sorted([*["broker"] * 3, *["audit-reader"] * 2, *others])

    changes = (
        "--set=image.tag=0.2.0",
        "--set=broker.replicas=4",
        "--set=auditReader.resources.limits.memory=2Gi",
    )
    upgrade(helm, namespace, *values(example), PLAIN, *loader, *changes)
    changed = pods(kubernetes, namespace)
    assert len(changed) == len(running) + 1
    assert {pod["spec"]["containers"][0]["image"] for pod in changed.values()} == {"millrace:0.2.0"}

    uninstall(helm, namespace)
    claims = {f"data-millrace-broker-{number}" for number in range(4)}
    claims |= {f"data-millrace-{name}-0" for name in others & {"registry", "auditor"}}
    wait_until(
        "only the volumes are left",
        lambda: kubernetes.contents(namespace) == {f"persistentvolumeclaims/{claim}" for claim in claims},
    )
    # As docs/deployment.md says: their data stays until the claims are deleted.
    path = f"api/v1/namespaces/{namespace}/persistentvolumeclaims?labelSelector={OF_THE_RELEASE}"
    kubernetes.ask("DELETE", path)
    wait_until("nothing is left", lambda: not kubernetes.contents(namespace))


def test_unknown_fields_would_be_noticed(helm: Helm, namespace: str) -> None:
    """The other tests see the API server's warnings: this is one."""
    wrong = "--set=broker.resources.limit.memory=1Gi"
    done = helm.run("install", "millrace", CHART, "--namespace", namespace, PLAIN, wrong)
    assert "Warning: unknown field" in done.stderr
    assert "spec.template.spec.containers[0].resources.limit" in done.stderr
    uninstall(helm, namespace)


@pytest.fixture(scope="module")
def chart_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """deploy/helm of the last tag, or of the chart's first version."""

    def git(*words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=False, timeout=60)

    revision = git("describe", "--tags", "--abbrev=0").stdout.decode().strip() or FIRST_CHART
    archive = git("archive", revision, "deploy/helm")
    if archive.returncode != 0:
        pytest.skip(f"needs revision {revision}, which this clone lacks: git fetch --unshallow")
    folder = tmp_path_factory.mktemp("before")
    subprocess.run(["tar", "--extract", "--directory", folder], input=archive.stdout, check=True)
    return folder / "deploy" / "helm"


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_release_of_the_chart_before_is_upgraded(
    example: str, chart_before: Path, helm: Helm, kubernetes: Kubernetes, namespace: str
) -> None:
    install(helm, namespace, *values(example, chart_before), PLAIN, chart=chart_before / "millrace")
    before = set(pods(kubernetes, namespace))
    upgrade(helm, namespace, *values(example), PLAIN)
    brokers = {f"millrace-broker-{number}" for number in range(3)}
    assert brokers <= before & set(pods(kubernetes, namespace))
    revision = statefulset(kubernetes, namespace)["status"]["updateRevision"]
    for name in brokers:
        assert pods(kubernetes, namespace)[name]["metadata"]["labels"]["controller-revision-hash"] == revision
    helm("rollback", "millrace", "1", "--namespace", namespace, "--wait")
    uninstall(helm, namespace)


def test_an_upgrade_restarts_only_what_it_changes(helm: Helm, kubernetes: Kubernetes, namespace: str) -> None:
    install(helm, namespace, PLAIN)
    before = identities(kubernetes, namespace)
    peers = '--set-json=networkPolicy.clients=[{"namespaceSelector": {}}]'
    for words in ((), (peers,), ("--set=serviceMonitor.labels.release=prometheus", peers)):
        upgrade(helm, namespace, PLAIN, *words)
        assert identities(kubernetes, namespace) == before
    upgrade(helm, namespace, PLAIN, "--set=broker.config=max_buffered_bytes = 1000000")
    after = identities(kubernetes, namespace)
    restarted = {name for name in before if after.get(name) != before[name]}
    assert restarted == {f"millrace-broker-{number}" for number in range(3)}
    uninstall(helm, namespace)


def test_larger_volumes_need_the_documented_step(helm: Helm, kubernetes: Kubernetes, namespace: str) -> None:
    install(helm, namespace, PLAIN)
    before = identities(kubernetes, namespace)
    larger = ("--namespace", namespace, PLAIN, "--set=broker.storage=200Gi")
    refused = helm.run("upgrade", "millrace", CHART, *larger)
    assert refused.returncode == 1
    assert "updates to statefulset spec for fields other than" in refused.stderr
    path = f"apis/apps/v1/namespaces/{namespace}/statefulsets/millrace-broker"
    kubernetes.ask("DELETE", f"{path}?propagationPolicy=Orphan")
    wait_until("the StatefulSet is gone", partial(gone, kubernetes, path))
    helm("upgrade", "millrace", CHART, "--wait", *larger)
    assert identities(kubernetes, namespace) == before, "no pod was restarted"
    (claim,) = statefulset(kubernetes, namespace)["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "200Gi"}
    uninstall(helm, namespace)


def test_monitors_are_refused_without_the_operator_in_a_sentence(
    helm: Helm, kubernetes: Kubernetes, namespace: str
) -> None:
    words = ("install", "millrace", CHART, "--namespace", namespace, *values("dc1"))
    refused = helm.run(*words)
    assert refused.returncode == 1
    assert "serviceMonitor.enabled: this cluster has no Prometheus operator" in refused.stderr
    assert "set serviceMonitor.enabled=false" in refused.stderr
    assert kubernetes.contents(namespace) == set()


def gone(kubernetes: Kubernetes, path: str) -> bool:
    return kubernetes.find(path) is None


@pytest.fixture
def operator(kubernetes: Kubernetes) -> Iterator[None]:
    """The kinds of the Prometheus operator, with any contents; no operator runs."""
    paths = []
    for kind in ("ServiceMonitor", "PodMonitor"):
        plural = f"{kind.lower()}s"
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{MONITORING}"},
            "spec": {
                "group": MONITORING,
                "names": {"kind": kind, "plural": plural},
                "scope": "Namespaced",
                "versions": [version],
            },
        }
        paths.append(f"apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{MONITORING}")
        assert kubernetes.apply(crd, paths[-1]) == []
        served = f"apis/{MONITORING}/v1/{plural}"
        wait_until(f"{kind} is served", partial(kubernetes.serves, served))
    yield
    for path in paths:
        kubernetes.ask("DELETE", path)
        wait_until("the kind is gone", partial(gone, kubernetes, path))


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("example", ["dc1", "offline"])
def test_monitors_come_and_go_with_the_release(
    example: str, helm: Helm, kubernetes: Kubernetes, namespace: str
) -> None:
    install(helm, namespace, *values(example))
    monitors = {name for name in kubernetes.contents(namespace) if "monitors" in name.partition("/")[0]}
    services = {"broker", "registry", "auditor"} if example == "offline" else {"broker"}
    expected = {f"servicemonitors/millrace-{name}" for name in services}
    assert monitors == {*expected, "podmonitors/millrace-audit-reader"}
    upgrade(helm, namespace, *values(example), "--set=serviceMonitor.labels.release=prometheus")
    for kind in ("servicemonitors", "podmonitors"):
        for monitor in kubernetes.items(f"apis/{MONITORING}/v1/namespaces/{namespace}/{kind}"):
            assert monitor["metadata"]["labels"]["release"] == "prometheus"
    upgrade(helm, namespace, *values(example), PLAIN)
    assert not [name for name in kubernetes.contents(namespace) if "monitors" in name.partition("/")[0]]
    uninstall(helm, namespace)


def may(kubernetes: Kubernetes, account: str, namespace: str, verb: str, group: str, resource: str) -> bool:
    """Ask the authorizer whether a service account NAMESPACE:NAME may do something."""
    wanted = {"namespace": namespace, "verb": verb, "group": group, "resource": resource}
    review: dict[str, Any] = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{account}", "resourceAttributes": wanted},
    }
    review["spec"]["groups"] = ["system:authenticated", "system:serviceaccounts"]
    answer = kubernetes.ask("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", review).json()
    return bool(answer["status"]["allowed"])


def test_pods_have_no_token_and_their_service_account_has_no_rights(
    helm: Helm, kubernetes: Kubernetes, namespace: str
) -> None:
    """Millrace's processes never talk to the API server."""
    install(helm, namespace, *values("offline"), PLAIN, LOADER)
    for pod in pods(kubernetes, namespace).values():
        assert pod["spec"]["serviceAccountName"] == "default"
        assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume]
    made = kubernetes.contents(namespace)
    assert not {name for name in made if name.startswith(("roles/", "rolebindings/", "serviceaccounts/"))}
    account = f"{namespace}:default"
    for path in kubernetes.collections():
        version, resource = path.split("/namespaces/{}/")
        group = version.split("/")[1] if version.startswith("apis/") else ""
        for verb in ("get", "list", "create", "update", "delete"):
            if resource not in ("localsubjectaccessreviews",):
                assert not may(kubernetes, account, namespace, verb, group, resource), (verb, resource)
    uninstall(helm, namespace)


def test_the_operators_pod_is_admitted_and_a_privileged_one_is_not(
    kubernetes: Kubernetes, namespace: str
) -> None:
    admin = yaml.safe_load((FOLDER / "admin.yaml").read_text())
    assert kubernetes.apply(admin, f"api/v1/namespaces/{namespace}/pods/admin") == []
    admin["metadata"]["name"] = "other"
    del admin["spec"]["securityContext"]["runAsNonRoot"]
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        kubernetes.apply(admin, f"api/v1/namespaces/{namespace}/pods/other")
    kubernetes.ask("DELETE", f"api/v1/namespaces/{namespace}/pods/admin")
