"""Command lines of Java clients: the peers' tools from Maven's jars, and the classes in `java/`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from millrace.zookeeper.embedded import find_java
from tests.bench.broker import tool_output
from tests.bench.broker.system import Command, Missing, missing_without_jars
from tests.peers import kafka, maven

SOURCES = Path(__file__).with_name("java")
POM = Path(__file__).with_name("pom.xml")
KAFKA_OPTIONS = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""Options that Kafka's own scripts give its tools and its broker."""


def prepare() -> None:
    """Fetch the jars and compile our classes, if that was not done before; Missing when it is impossible."""
    with missing_without_jars():
        compile_classes()


def compile_classes() -> Path:
    """The folder of our compiled classes, made anew where a source is younger."""
    classes = maven.CACHE / "broker-bench-classes"
    sources = sorted(SOURCES.glob("*.java"))
    newest = max(source.stat().st_mtime for source in [*sources, POM])
    made = classes / "Load.class"
    if not made.exists() or made.stat().st_mtime < newest:
        classes.mkdir(parents=True, exist_ok=True)
        command = ["javac", "-cp", maven.class_path(POM), "-d", str(classes), *map(str, sources)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise Missing("the load classes need javac: install a JDK (default-jdk-headless)") from None
        assert done.returncode == 0, f"javac: {done.stderr[-2000:]}"
        made.touch()
    return classes


def load_class(name: str, heap_mb: int = 512, **options: object) -> Command:
    """Run one of our classes with `--option value` pairs; `sub_entry=1` becomes `--sub-entry 1`."""
    arguments = [find_java(), f"-Xmx{heap_mb}m", "-cp", _class_path(), name]
    for key, value in options.items():
        arguments += [f"--{key.replace('_', '-')}", str(value)]
    return Command(arguments=arguments, parse=tool_output.ours)


def perf_test(arguments: list[str], parse: tool_output.PerfTest) -> Command:
    """Run RabbitMQ's PerfTest."""
    java = [find_java(), "-Xmx512m", "-cp", _class_path(), "com.rabbitmq.perf.PerfTest"]
    return Command(arguments=[*java, *arguments], parse=parse)


def kafka_tool(name: str, *arguments: str) -> list[str]:
    """Run one of Apache Kafka's tools as its own scripts would."""
    return kafka.kafka_tool_command(name, *arguments, heap_mb=512, java_options=KAFKA_OPTIONS)


def run(command: Command) -> None:
    """Run a command for what it does, not for its figures."""
    done = subprocess.run(command.arguments, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command.arguments[-5:]}: {done.stderr[-1000:]}")


def _class_path() -> str:
    return f"{compile_classes()}:{SOURCES}:{maven.class_path(POM)}"
