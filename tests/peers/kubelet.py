"""Stand-in for scheduler and kubelet: binds all pods to one node, runs Spark's executors as local processes.

What it does: an executor's pod becomes a process with the command, variables and memory that Spark's image
and entry point give it. The phases of the pod follow the process. A deleted pod's process is killed; one that
ends makes its pod Failed or Succeeded. All other pods are only *reported* as running and ready, so that
controllers go on.

What it does not test: images, their contents and users; volumes (an executor sees this machine's files);
networks, names and policies between pods (everything is 127.0.0.1); probes; limits of CPU and memory;
scheduling, and nodes that fail; graceful ends (it sends SIGKILL at once).
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace.zookeeper.embedded import find_java
from tests.jobs import descendants
from tests.peers.kubernetes import Kubernetes, Thing
from tests.support import start_for_the_test_run

POLL_S = 0.25
NODE = "this-machine"
_MERGE = {"Content-Type": "application/merge-patch+json"}


class Kubelet:
    """Runs in a thread until it is closed. A context.

    `folder` gets a log and a working directory for each executor's pod.
    """

    def __init__(self, kubernetes: Kubernetes, folder: Path) -> None:
        self._client = kubernetes.client()
        self._folder = folder
        self._executors: dict[str, tuple[Thing, subprocess.Popen[bytes]]] = {}
        self._bound: set[str] = set()
        self._closing = threading.Event()
        self.failure: BaseException | None = None
        """Error that ended the thread early: a bug of this file or an API server that is gone."""
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()

    def log_of(self, pod: str) -> str:
        """Output of an executor, by the name of its pod."""
        return (self._folder / f"{pod}.log").read_text(errors="replace")

    def signal(self, pod: str, number: int) -> None:
        """Send a signal to an executor, by the name of its pod."""
        running = list(self._executors.values())
        (process,) = (process for found, process in running if found["metadata"]["name"] == pod)
        process.send_signal(number)

    @property
    def started(self) -> list[str]:
        """Names of the executor pods that were started so far."""
        return sorted(file.stem for file in self._folder.glob("*.log"))

    def close(self) -> None:
        """End the thread and all executors."""
        self._closing.set()
        self._thread.join()
        for _, process in self._executors.values():
            _kill(process)
        self._client.close()

    def __enter__(self) -> Kubelet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            while not self._closing.wait(POLL_S):
                pods = {pod["metadata"]["uid"]: pod for pod in self._ask("GET", "/api/v1/pods")["items"]}
                for uid, pod in pods.items():
                    self._look_at(uid, pod)
                for uid in [uid for uid in self._executors if uid not in pods]:
                    _kill(self._executors.pop(uid)[1])
        except BaseException as error:
            self.failure = error
            raise

    def _look_at(self, uid: str, pod: Thing) -> None:
        running = self._executors.get(uid)
        if "deletionTimestamp" in pod["metadata"]:
            if running:
                _kill(running[1])
                del self._executors[uid]
            self._ask("DELETE", _path(pod), {"gracePeriodSeconds": 0})
        elif uid not in self._bound and "schedulingGates" not in pod["spec"]:
            self._bound.add(uid)
            self._bind(pod)
            if pod["metadata"].get("labels", {}).get("spark-role") == "executor":
                self._executors[uid] = (pod, self._start(pod))
            self._report(pod, "Running")
        elif running and (code := running[1].poll()) is not None:
            del self._executors[uid]
            self._report(pod, "Failed" if code else "Succeeded", code)

    def _bind(self, pod: Thing) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        metadata = {"name": pod["metadata"]["name"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        self._ask("POST", f"{_path(pod)}/binding", binding)

    def _report(self, pod: Thing, phase: str, code: int | None = None) -> None:
        """Write the status of a pod as a kubelet does; `code` is the exit code of its process."""
        running, now = phase == "Running", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state: Thing = {"running": {"startedAt": now}} if running else {"terminated": {"exitCode": code}}
        containers = [
            {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
            | {"ready": running, "started": running, "state": state}
            for container in pod["spec"]["containers"]
        ]
        conditions = [
            {"type": kind, "status": str(running), "lastTransitionTime": now}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        address = {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "hostIP": "127.0.0.1"}
        status = {"phase": phase, "startTime": now, "conditions": conditions, **address}
        self._ask("PATCH", f"{_path(pod)}/status", {"status": {**status, "containerStatuses": containers}})

    def _start(self, pod: Thing) -> subprocess.Popen[bytes]:
        """Start what the entry point of Spark's image starts for an executor."""
        (container,) = pod["spec"]["containers"]
        assert container["args"] == ["executor"], container["args"]
        name = pod["metadata"]["name"]
        work = self._folder / name
        work.mkdir(parents=True)
        given, home = _variables(pod, container), _spark_home()
        options = sorted(
            (key for key in given if re.fullmatch(r"SPARK_JAVA_OPT_\d+", key)),
            key=lambda key: int(key.rpartition("_")[2]),
        )
        memory = given["SPARK_EXECUTOR_MEMORY"]
        backend = {
            "driver-url": given["SPARK_DRIVER_URL"],
            "executor-id": given["SPARK_EXECUTOR_ID"],
            "cores": given["SPARK_EXECUTOR_CORES"],
            "app-id": given["SPARK_APPLICATION_ID"],
            "hostname": given["SPARK_EXECUTOR_POD_IP"],
            "resourceProfileId": given["SPARK_RESOURCE_PROFILE_ID"],
            "podName": given["SPARK_EXECUTOR_POD_NAME"],
        }
        java = [find_java(), *(given[key] for key in options), f"-Xms{memory}", f"-Xmx{memory}"]
        main = ["-cp", f"{home}/jars/*", "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"]
        image = {"PATH": os.environ["PATH"], "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
        with open(self._folder / f"{name}.log", "ab") as log:
            return start_for_the_test_run(
                [*java, *main, *(word for key, value in backend.items() for word in (f"--{key}", value))],
                env={**image, **given, "SPARK_LOCAL_DIRS": str(work)},  # in place of an emptyDir
                cwd=work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _ask(self, method: str, path: str, body: Any = None) -> Thing:
        headers = _MERGE if method == "PATCH" else None
        answer = self._client.request(method, path, json=body, headers=headers)
        if answer.status_code in (404, 409):  # the pod was deleted, or is another one of the same name
            return {}
        return dict(answer.raise_for_status().json())


def _path(pod: Thing) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _variables(pod: Thing, container: Thing) -> dict[str, str]:
    """Environment of a container: its literal values, and the fields of the pod that it asks for."""
    fields = {"status.podIP": "127.0.0.1"}
    fields |= {f"metadata.{key}": pod["metadata"][key] for key in ("name", "namespace", "uid")}
    found = {}
    for variable in container.get("env", []):
        if field := variable.get("valueFrom", {}).get("fieldRef"):
            found[variable["name"]] = fields[field["fieldPath"]]
        else:
            found[variable["name"]] = variable.get("value", "")
    return found


def _spark_home() -> Path:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None, "Spark is not installed"
    return Path(spec.origin).parent


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to an executor and to its Python workers, which are in a process group of their own."""
    below = descendants(process.pid)
    process.kill()
    process.wait()
    for pid in below:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
