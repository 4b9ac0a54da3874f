"""A real Kubernetes control plane on 127.0.0.1: etcd, the API server and the controller manager.

The programs are unchanged and come from Go modules (`tests/peers/kube/`); `make test-kubernetes` builds them.
The API server authorizes by RBAC, enforces Pod Security, and writes into its audit log who did what.
Scheduler, kubelet, network and volumes are missing: `tests.peers.kubelet` stands in for the first two.
"""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.brokers import free_port
from tests.support import REPOSITORY, start_for_the_test_run, wait_until

PROGRAMS = REPOSITORY / ".cache" / "kubernetes"
START_TIMEOUT_S = 180.0
ADMIN = "admin-token"
Thing = dict[str, Any]
"""One object of Kubernetes, as JSON."""
CONTROLLERS = (
    "deployment",
    "disruption",
    "endpointslice",
    "garbage-collector",
    "namespace",
    "persistentvolumeclaim-protection",
    "replicaset",
    "root-ca-certificate-publisher",
    "serviceaccount",
    "statefulset",
)
"""Controllers that act on what a chart or Spark creates. Others would delete pods: there is no node."""
MADE_FOR_EVERY_NAMESPACE = {"configmaps/kube-root-ca.crt", "serviceaccounts/default"}
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
"""Audit policy of the API server: every request of a service account, without its body."""


class Kubernetes:
    """A control plane, ready when made. A context that kills its processes at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[tuple[str, subprocess.Popen[bytes]]] = []
        port, etcd = free_port(), f"http://127.0.0.1:{free_port()}"
        self.url = f"https://127.0.0.1:{port}"
        self.ca = folder / "certificates" / "apiserver.crt"
        self.audit_log = folder / "audit.log"
        (folder / "tokens.csv").write_text(f'{ADMIN},admin,1,"system:masters"\n')
        (folder / "audit.yaml").write_text(json.dumps(AUDIT))
        key = folder / "service-accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        try:
            self._start_etcd(etcd)
            self._start_api_server(port, etcd, key)
            wait_until("the API server is ready", self._ready, timeout_s=START_TIMEOUT_S)
            self.kubeconfig = self.write_kubeconfig("admin", ADMIN)
            self._start_controllers(key)
            wait_until(
                "the controllers run",
                lambda: self.find("api/v1/namespaces/default/serviceaccounts/default"),
                timeout_s=START_TIMEOUT_S,
            )
        except BaseException:
            self.close()
            raise

    def client(self, token: str = ADMIN) -> httpx.Client:
        """Return an HTTP client of the API that sends a token."""
        context = ssl.create_default_context(cafile=self.ca)
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, headers=headers, verify=context, timeout=30, trust_env=False)

    @cached_property  # the API server writes its certificate when it starts
    def _admin(self) -> httpx.Client:
        return self.client()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send one request as the administrator; raise AssertionError unless it succeeds."""
        answer = self._admin.request(method, f"/{path}", json=body, headers=headers)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer

    def find(self, path: str) -> Thing | None:
        """Return an object, or None if there is none under this path."""
        answer = self._admin.get(f"/{path}")
        return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def serves(self, path: str) -> bool:
        """True if the API answers here: kinds that were added a moment ago are refused for a while."""
        return self._admin.get(f"/{path}").is_success

    def items(self, path: str, selector: str = "") -> list[Thing]:
        """Return the objects of a collection, all or those with the labels of a selector."""
        query = f"?labelSelector={selector}" if selector else ""
        return list(self.ask("GET", path + query).json()["items"])

    def apply(self, thing: Thing, path: str) -> list[str]:
        """Create or change an object, as `kubectl apply --server-side`. Return the warnings."""
        patch = {"Content-Type": "application/apply-patch+yaml"}
        answer = self.ask(
            "PATCH", f"{path}?fieldManager=test&force=true&fieldValidation=Strict", thing, **patch
        )
        return answer.headers.get_list("warning")

    def namespace(self, name: str, level: str = "restricted") -> str:
        """Create a namespace that enforces a level of Pod Security."""
        labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
        metadata = {"name": name, "labels": labels}
        thing = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        self.apply(thing, f"api/v1/namespaces/{name}")
        account = f"api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(f"{name} has its service account", lambda: self.find(account))
        return name

    def token(self, namespace: str, account: str) -> str:
        """Return a token of a service account, as `kubectl create token`."""
        path = f"api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.ask("POST", path, body).json()["status"]["token"])

    def collections(self) -> Iterator[str]:
        """Yield the path of every listable kind of namespaced object, with {} for the namespace."""
        groups = [
            group["preferredVersion"]["groupVersion"] for group in self.ask("GET", "apis").json()["groups"]
        ]
        for version in ("api/v1", *(f"apis/{group}" for group in groups)):
            for kind in self.ask("GET", version).json()["resources"]:
                if kind["namespaced"] and "list" in kind["verbs"]:
                    yield f"{version}/namespaces/{{}}/{kind['name']}"

    def contents(self, namespace: str) -> set[str]:
        """KIND/NAME of all objects in a namespace but events and what every namespace has."""
        found = set()
        for path in self.collections():
            kind = path.rpartition("/")[2]
            if kind != "events":
                found |= {f"{kind}/{item['metadata']['name']}" for item in self.items(path.format(namespace))}
        return found - MADE_FOR_EVERY_NAMESPACE

    def requests_of(self, account: str) -> set[tuple[str, str, int]]:
        """(verb, resource, status) of the requests that a service account NAMESPACE:NAME has sent so far."""
        user, found = f"system:serviceaccount:{account}", set()
        for line in self.audit_log.read_text().splitlines():
            entry = json.loads(line)
            if entry["user"]["username"] == user and "objectRef" in entry:
                found.add((entry["verb"], entry["objectRef"]["resource"], entry["responseStatus"]["code"]))
        return found

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """Write a file for KUBECONFIG that logs in with a token."""
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        file = self.folder / f"{name}.kubeconfig"
        file.write_text(yaml.safe_dump(config))
        file.chmod(0o600)
        return file

    def close(self) -> None:
        """SIGKILL to all processes; wait until they are gone."""
        if self.ca.exists():
            self._admin.close()
        for _, process in reversed(self._processes):
            process.kill()
            process.wait()
        self._processes.clear()

    def __enter__(self) -> Kubernetes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_etcd(self, clients: str) -> None:
        peers = f"http://127.0.0.1:{free_port()}"
        flags = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",
        }
        self._start("etcd", flags)

    def _start_api_server(self, port: int, etcd: str, key: Path) -> None:
        flags = {
            "etcd-servers": etcd,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",  # it refuses to publish a loopback address
            "secure-port": port,
            "cert-dir": self.folder / "certificates",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "audit-policy-file": self.folder / "audit.yaml",
            "audit-log-path": self.audit_log,
        }
        self._start("apiserver", flags)

    def _start_controllers(self, key: Path) -> None:
        flags = {
            "kubeconfig": self.kubeconfig,
            "bind-address": "127.0.0.1",
            "secure-port": free_port(),
            "cert-dir": self.folder / "controllers",
            "leader-elect": "false",
            "root-ca-file": self.ca,
            "service-account-private-key-file": key,
            "controllers": ",".join(f"{name}-controller" for name in CONTROLLERS),
        }
        self._start("controller-manager", flags)

    def _start(self, program: str, flags: Mapping[str, object]) -> None:
        command = [str(PROGRAMS / "kube"), program, *(f"--{name}={value}" for name, value in flags.items())]
        with open(self.folder / f"{program}.log", "ab") as log:
            process = start_for_the_test_run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._processes.append((program, process))

    def _ready(self) -> bool:
        for program, process in self._processes:
            if process.poll() is not None:
                words = (self.folder / f"{program}.log").read_text(errors="replace")[-3000:]
                raise AssertionError(f"{program} ended with exit code {process.returncode}:\n{words}")
        try:
            return self._admin.get("/readyz").is_success
        except (OSError, httpx.TransportError):
            return False
