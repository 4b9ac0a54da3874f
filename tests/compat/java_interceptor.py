"""The jar that audits Java producers, built by Maven, and a service that runs it."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from millrace.zookeeper.embedded import find_java
from tests.peers import maven
from tests.support import REPOSITORY, WAIT_S, start_for_the_test_run

PROJECT = REPOSITORY / "plugins" / "java"
SOURCES = Path(__file__).with_name("java")
BUILD_S = 300
INTERCEPTOR = "io.millrace.audit.AuditInterceptor"


def package_jar(folder: Path) -> Path:
    """Build the jar in a copy of its project, and return its path."""
    project = folder / "java"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("demo", "target"))
    command = ["mvn", "-q", "-B", "-ntp", "-f", str(project), "package"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    (jar,) = (project / "target").glob("millrace-audit-*.jar")
    return jar


@cache
def jar() -> Path:
    """The jar's path: one build of these sources, which no other test run and no `make` writes again."""
    sources = hashlib.sha256((PROJECT / "pom.xml").read_bytes())
    for file in sorted((PROJECT / "src").rglob("*.java")):
        sources.update(file.read_bytes())
    folder = maven.CACHE / f"millrace-audit-{sources.hexdigest()[:12]}"
    maven.CACHE.mkdir(parents=True, exist_ok=True)
    with open(maven.CACHE / "millrace-audit.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=maven.CACHE) as unfinished:
                package_jar(Path(unfinished)).parent.rename(folder)
    (built,) = folder.glob("millrace-audit-*.jar")
    return built


def class_path(clients: str) -> str:
    """Return the class path of a service with the jar and a version of kafka-clients, such as 4.1."""
    pom = Path(maven.__file__).with_name(f"kafka-clients-{clients.replace('.', '-')}.pom.xml")
    return f"{jar()}:{maven.class_path(pom)}"


def compile_programs(classes: Path, clients: str = "4.1", sources: Path = SOURCES) -> str:
    """Compile the programs that call the jar's own classes into a folder; return their class path."""
    path = class_path(clients)
    compiler = Path(find_java()).with_name("javac")
    files = [str(file) for file in (sources / "io" / "millrace" / "audit").glob("*.java")]
    subprocess.run([str(compiler), "-cp", path, "-d", str(classes), *files], check=True)
    return f"{classes}:{path}"


def start_service(
    clients: str, topic: str, events: int, case: str, outcomes: Path, **properties: object
) -> subprocess.Popen[str]:
    """Start InterceptedProducer; underscores of property names stand for dots, and None omits a property."""
    settings = {
        "interceptor_classes": INTERCEPTOR,
        "millrace_service": "checkout",
        "acks": "all",
        "enable_idempotence": "true",
        **properties,
    }
    words = [f"{name.replace('_', '.')}={value}" for name, value in settings.items() if value is not None]
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    java = [find_java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", log]
    return start_for_the_test_run(
        [
            *java,
            "-cp",
            class_path(clients),
            str(SOURCES / "InterceptedProducer.java"),
            topic,
            str(events),
            case,
            str(outcomes),
            *words,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(service: subprocess.Popen[str]) -> str:
    """Wait for the service's end; its reporting thread must have ended before. Return its output."""
    with service:
        try:
            output, _ = service.communicate(timeout=6 * WAIT_S)
        finally:
            service.kill()
    assert service.returncode == 0, output
    assert "reporting threads left: 0\n" in output
    return output
