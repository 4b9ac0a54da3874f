"""One Kubernetes control plane for the whole run, with Helm; and the run's last line.

KUBERNETES OK: ran=N skipped=0        KUBERNETES PARTIAL names what was left out
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.last_line import LastLine
from tests.peers.kubelet import Kubelet
from tests.peers.kubernetes import PROGRAMS, Kubernetes

_last_line = LastLine("KUBERNETES")
pytest_runtest_logreport = _last_line.pytest_runtest_logreport
pytest_sessionfinish = _last_line.pytest_sessionfinish
pytest_unconfigure = _last_line.pytest_unconfigure


def pytest_sessionstart() -> None:
    """End a run that could only fail."""
    if missing := [name for name in ("kube", "helm") if not (PROGRAMS / name).is_file()]:
        pytest.exit(
            f"{PROGRAMS} lacks {', '.join(missing)}: run `make test-kubernetes`, which builds them", 1
        )


@pytest.fixture(scope="session")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with Kubernetes(tmp_path_factory.mktemp("kubernetes")) as running:
        yield running


@pytest.fixture(scope="session")
def kubelet(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    with Kubelet(kubernetes, tmp_path_factory.mktemp("kubelet")) as running:
        yield running
        assert running.failure is None, running.failure


@dataclass(frozen=True)
class Helm:
    """Helm as the administrator of the cluster, with folders of its own."""

    kubeconfig: Path
    home: Path

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run Helm to its end; nothing is checked."""
        places = {"HOME": str(self.home), "KUBECONFIG": str(self.kubeconfig), "PATH": os.environ["PATH"]}
        command = [PROGRAMS / "helm", *words]
        return subprocess.run(
            command, env=places, cwd=self.home, capture_output=True, text=True, timeout=300, check=False
        )

    def __call__(self, *words: str | Path) -> str:
        """Run Helm; it must succeed without a warning of the API server. Return its standard output."""
        done = self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), f"helm {words}: {done.stderr}{done.stdout}"
        return done.stdout


@pytest.fixture(scope="session")
def helm(kubernetes: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(kubernetes.kubeconfig, tmp_path_factory.mktemp("helm"))


@pytest.fixture
def namespace(kubernetes: Kubernetes) -> str:
    """A namespace of the test's own that admits only pods of the level `restricted`."""
    return kubernetes.namespace(f"test-{uuid4().hex[:6]}")
