"""`millrace load --master k8s://…` in client mode, with the rights and the template of docs/clusters.md.

Executors run as local processes: `tests.peers.kubelet` lists what that leaves out.
"""

from __future__ import annotations

import json
import re
import signal
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import yaml

from tests.conftest import Start
from tests.jobs import kill_at_a_step
from tests.peers.kubelet import Kubelet
from tests.peers.kubernetes import Kubernetes, Thing
from tests.peers.spark_cluster import CONF
from tests.support import REPOSITORY, run_millrace, wait_until
from tests.warehouses import HOUR_MS, TestSite, loaded_rows

START_MS = 1_431_856_800_000
EVENTS = 3_000
PARTITIONS = 12
FORBIDDEN = 403
SPARE = ("services", "persistentvolumeclaims")
"""Resources that Spark looks for in vain: an executor has a claim of its own only if a setting says so."""
ACCOUNT, DRIVER = "millrace-load", "driver"
PATHS = {
    "ServiceAccount": "api/v1/namespaces/{}/serviceaccounts",
    "Role": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def documented(kind: str) -> list[Thing]:
    """The objects of the YAML block of docs/clusters.md that begins with this kind."""
    page = (REPOSITORY / "docs" / "clusters.md").read_text()
    blocks = [list(yaml.safe_load_all(text)) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (found,) = (block for block in blocks if block[0]["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def site(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> TestSite:
    folder = tmp_path_factory.mktemp("on-kubernetes")
    return TestSite.start(start_for_module, f"offline-{uuid4().hex[:6]}", folder, zookeeper)


@pytest.fixture
def options(kubernetes: Kubernetes, namespace: str, tmp_path: Path) -> list[str]:
    """--master and --conf of the documented service account, template and small executors."""
    for thing in documented("ServiceAccount"):
        path = f"{PATHS[thing['kind']].format(namespace)}/{thing['metadata']['name']}"
        for subject in thing.get("subjects", []):
            subject["namespace"] = namespace  # as `kubectl apply --namespace` does
        assert kubernetes.apply(thing, path) == []
    (driver,) = documented("Pod")  # its process is the test's own
    driver["metadata"] = {"name": DRIVER}
    driver["spec"]["containers"][0]["image"] = "millrace"
    assert kubernetes.apply(driver, f"api/v1/namespaces/{namespace}/pods/{DRIVER}") == []
    token, template = tmp_path / "token", tmp_path / "executor.yaml"
    token.write_text(kubernetes.token(namespace, ACCOUNT))
    template.write_text(yaml.safe_dump(*documented("Pod")))
    conf = {
        **CONF,
        "spark.executor.instances": "2",
        "spark.kubernetes.namespace": namespace,
        "spark.kubernetes.driver.pod.name": DRIVER,
        "spark.kubernetes.container.image": "spark-py:4.3.0",
        "spark.kubernetes.executor.podTemplateFile": str(template),
        "spark.kubernetes.authenticate.oauthTokenFile": str(token),
        "spark.kubernetes.authenticate.caCertFile": str(kubernetes.ca),
        "spark.kubernetes.allocation.batch.delay": "1s",
    }
    words = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    return ["--master", f"k8s://{kubernetes.url}", *words]


def executors(kubernetes: Kubernetes, namespace: str) -> list[str]:
    """Names of the executors' pods that are not being deleted."""
    found = kubernetes.items(f"api/v1/namespaces/{namespace}/pods", "spark-role=executor")
    return [pod["metadata"]["name"] for pod in found if "deletionTimestamp" not in pod["metadata"]]


def unexpected(kubernetes: Kubernetes, namespace: str) -> set[tuple[str, str]]:
    """(verb, resource) of refused requests, without those that docs/clusters.md names as harmless."""
    sent = kubernetes.requests_of(f"{namespace}:{ACCOUNT}")
    return {
        (verb, resource) for verb, resource, status in sent if status == FORBIDDEN and resource not in SPARE
    }


def check(site: TestSite, warehouse: Path, topic: str) -> None:
    """Every event once, and `verify` agrees."""
    rows = loaded_rows(warehouse, topic)
    assert len(rows) == len({(row.instance, row.sequence) for row in rows}) == EVENTS
    hours = sorted({f"{row.time:%Y-%m-%dT%H}" for row in rows})
    words = [word for hour in hours for word in ("--hour", hour)]
    published = run_millrace("publish", topic, *words, "--warehouse", str(warehouse), "--unasked")
    assert published.returncode == 0, published.stderr
    places = ("--warehouse", str(warehouse), "--bootstrap", site.cluster.bootstrap)
    verified = run_millrace("verify", *places, "--json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert [table["published"] for table in json.loads(verified.stdout)["topics"]] == [EVENTS]


def test_a_load_is_exact_with_the_documented_rights_and_leaves_nothing(
    site: TestSite,
    kubernetes: Kubernetes,
    kubelet: Kubelet,
    namespace: str,
    options: list[str],
    tmp_path: Path,
) -> None:
    topic = site.topic("OnKubernetes")
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    before = set(kubelet.started)
    done = run_millrace("load", topic, *site.load_options(tmp_path / "w"), *options, timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)
    assert (result["rows"], result["rejected"]) == (EVENTS, 0)
    assert set(kubelet.started) - before, "no executor ran"
    check(site, tmp_path / "w", topic)
    own = {f"{thing['kind'].lower()}s/{ACCOUNT}" for thing in documented("ServiceAccount")} | {
        f"pods/{DRIVER}"
    }
    wait_until("nothing is left", lambda: kubernetes.contents(namespace) == own)

    assert unexpected(kubernetes, namespace) == set()


def test_executors_that_are_deleted_or_killed_in_the_middle_are_replaced_and_the_rows_are_exact(
    site: TestSite,
    kubernetes: Kubernetes,
    kubelet: Kubelet,
    namespace: str,
    options: list[str],
    start: Start,
    tmp_path: Path,
) -> None:
    topic, warehouse = site.topic("Deleted", PARTITIONS), tmp_path / "w"
    assert site.publish(topic, [START_MS + n * HOUR_MS // 500 for n in range(EVENTS)]) == EVENTS
    load = start("load", topic, *site.load_options(warehouse), *options)
    wait_until(
        "a task has written a file",
        lambda: [*warehouse.rglob("*.parquet")] or not load.running,
        timeout_s=300,
    )
    deleted, killed = executors(kubernetes, namespace)
    for pod in (deleted, killed):  # with one core each they have tasks left
        kubelet.signal(pod, signal.SIGSTOP)
    assert load.running, load.output
    assert len([*warehouse.rglob("*.parquet")]) < PARTITIONS
    kubernetes.ask("DELETE", f"api/v1/namespaces/{namespace}/pods/{deleted}")
    kubelet.signal(killed, signal.SIGKILL)
    assert load.wait(timeout_s=600) == 0, load.output
    check(site, warehouse, topic)

    assert unexpected(kubernetes, namespace) == set()
    (role,) = (thing for thing in documented("ServiceAccount") if thing["kind"] == "Role")
    rules = [(verb, rule["resources"]) for rule in role["rules"] for verb in rule["verbs"]]
    granted = {(verb, resource) for verb, resources in rules for resource in resources}
    sent = kubernetes.requests_of(f"{namespace}:{ACCOUNT}")
    assert granted == {(verb, resource) for verb, resource, status in sent if status != FORBIDDEN}


def test_executors_go_with_the_pod_of_the_command(
    site: TestSite, kubernetes: Kubernetes, namespace: str, options: list[str], start: Start, tmp_path: Path
) -> None:
    topic = site.topic("Abandoned")
    assert site.publish(topic, [START_MS]) == 1
    load = start("load", topic, *site.load_options(tmp_path / "w"), *options)
    wait_until("an executor", partial(executors, kubernetes, namespace), timeout_s=300)
    kill_at_a_step(load, steps=0, pause_s=0)  # SIGKILL also to the driver: it deletes nothing
    kubernetes.ask("DELETE", f"api/v1/namespaces/{namespace}/pods/{DRIVER}")
    own = {f"{thing['kind'].lower()}s/{ACCOUNT}" for thing in documented("ServiceAccount")}
    wait_until("nothing is left", lambda: kubernetes.contents(namespace) == own)
