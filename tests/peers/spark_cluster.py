"""A real Spark standalone cluster on 127.0.0.1: one master and workers, from the installed PySpark's jars.

Every part is a process of its own that can be found and killed by its id: workers are children of whoever
made the cluster, executors are children of workers, Python workers are below executors. What is submitted
to it is the caller's business; `CONF` keeps small executors small.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from millrace.zookeeper.embedded import find_java
from millrace_spark.jobs.submit import spark_home
from tests.brokers import free_port
from tests.jobs import descendants
from tests.support import START_S, start_for_the_test_run, wait_until

CONF: Mapping[str, str] = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
"""For applications on a small cluster: executors that start quickly and take little memory."""
_DAEMON = ("-Xmx192m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dspark.deploy.maxExecutorRetries=-1")
_EXECUTOR = b"CoarseGrainedExecutorBackend"
_PYTHON_WORKERS = b"pyspark.daemon"


class SparkCluster:
    """Started and ready when made; a context that kills everything at its end.

    `folder` keeps the logs and the workers' folders. `environment` is added to that of the workers and so of
    the executors and their Python. `separate_hosts`: a loopback address for each worker, because Spark starts
    no speculative copy of a task on the host where the first one runs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        separate_hosts: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._home = spark_home()
        self._size = ["--cores", str(cores), "--memory", memory]
        self._environment = dict(environment or {})
        self._hosts = {
            f"worker{number}": f"127.0.0.{number + 2 if separate_hosts else 1}" for number in range(workers)
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._address = f"127.0.0.1:{free_port()}"
        self._rest_port = free_port()
        self._page = f"http://127.0.0.1:{free_port()}/json/"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            host, _, port = self._address.partition(":")
            page = self._page.split(":")[2].split("/")[0]
            self._start(
                "master",
                "master.Master",
                *("--host", host, "--port", port, "--webui-port", page),
                settings=["-Dspark.master.rest.enabled=true", f"-Dspark.master.rest.port={self._rest_port}"],
            )
            wait_until("the Spark master answers", self.state, timeout_s=START_S)
            for name in self._hosts:
                self._start_worker(name)
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        """Value for --master."""
        return f"spark://{self._address}"

    @property
    def cluster_mode(self) -> Mapping[str, str]:
        """Settings for a small driver that runs on the cluster."""
        return {
            "spark.submit.deployMode": "cluster",
            "spark.master.rest.port": str(self._rest_port),
            "spark.driver.memory": "512m",
        }

    @property
    def workers(self) -> list[int]:
        """Process ids of the workers that run."""
        started = [self._processes[name] for name in self._hosts if name in self._processes]
        return [process.pid for process in started if process.poll() is None]

    def pages(self) -> list[str]:
        """The URLs of the master's page and of the workers'."""
        workers = (self.state() or {}).get("workers", [])
        return [self._page.removesuffix("/json/"), *(worker["webuiaddress"] for worker in workers)]

    def drivers(self) -> list[str]:
        """Every driver that was submitted to the master, and what became of it: `driver-… RUNNING`."""
        state = self.state() or {}
        known = [*state.get("activedrivers", []), *state.get("completeddrivers", [])]
        return sorted(f"{driver['id']} {driver['state']}" for driver in known)

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        return self._below(self.workers, _EXECUTOR)

    def python_workers(self) -> list[int]:
        """Process ids of the executors' Python: those that run tasks, without the daemons that fork them."""
        daemons = self._below(self.executors(), _PYTHON_WORKERS)
        return [pid for pid in daemons if any(pid in descendants(other) for other in daemons)]

    def state(self) -> dict[str, Any] | None:
        """Status that the master reports of itself, None while it does not answer."""
        with suppress(OSError, ValueError), urllib.request.urlopen(self._page, timeout=5) as page:
            return dict(json.load(page))
        return None

    def kill_executor(self) -> bool:
        """SIGKILL to an executor; False when there is none."""
        return any(_kill(pid) for pid in self.executors()[:1])

    def kill_worker(self, pid: int) -> None:
        """SIGKILL to a worker, and wait until it is gone."""
        (process,) = (process for process in self._processes.values() if process.pid == pid)
        process.kill()
        process.wait()

    def restart_workers(self) -> None:
        """Start every worker that has ended anew."""
        for name in self._hosts:
            if self._processes[name].poll() is not None:
                self._start_worker(name)

    def wait_for_workers(self) -> None:
        """Wait until every worker has registered with the master."""
        wanted = len(self._hosts)
        wait_until(f"{wanted} workers are registered", lambda: self._alive() >= wanted, timeout_s=START_S)

    def close(self) -> None:
        """Kill everything, executors included."""
        below = [pid for worker in self.workers for pid in descendants(worker)]
        for process in self._processes.values():
            process.kill()
            process.wait()
        for pid in below:
            _kill(pid)

    def __enter__(self) -> SparkCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _alive(self) -> int:
        workers = (self.state() or {}).get("workers", [])
        return sum(worker["state"] == "ALIVE" for worker in workers)

    def _start_worker(self, name: str) -> None:
        address = ["--host", self._hosts[name], "--webui-port", "0"]
        work = ["--work-dir", str(self.folder / name)]
        self._start(name, "worker.Worker", *address, *work, *self._size, self.master)

    def _start(self, name: str, daemon: str, *arguments: str, settings: Sequence[str] = ()) -> None:
        java = find_java()
        classes = ["-cp", f"{self._home}/jars/*", f"org.apache.spark.deploy.{daemon}"]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = start_for_the_test_run(
                [java, *_DAEMON, *settings, *classes, *arguments],
                env={
                    **os.environ,
                    "SPARK_HOME": str(self._home),
                    "SPARK_LOCAL_IP": self._hosts.get(name, "127.0.0.1"),
                    "SPARK_SCALA_VERSION": "2.13",  # else looked for in the folders of a build
                    "JAVA_HOME": str(Path(java).resolve().parents[1]),
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @staticmethod
    def _below(parents: list[int], word: bytes) -> list[int]:
        found = []
        for pid in dict.fromkeys(pid for parent in parents for pid in descendants(parent)):
            with suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


def _kill(pid: int) -> bool:
    """SIGKILL; False when there is no such process, or one that has ended and was not waited for."""
    try:
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not ended
