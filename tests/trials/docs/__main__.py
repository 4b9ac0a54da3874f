"""Types every code block of pages as a reader does: `python -m tests.trials.docs PAGE...`, `make docs-test`.

A page's blocks run in order, in one shell that begins in an empty folder. A block says behind its fence what
it is; one that says nothing, or anything else, fails the page:

    sh              typed; it must end with 0
    sh service      typed in a second terminal, in the same folder; it must print a line with `ready:`,
                    or as Airflow does `Airflow is ready`
    output          what the block before it printed: these lines in this order, `...` stands for any
    python NAME, toml NAME, json NAME, java NAME      the content of a file; the text before it has `NAME`

A page about clusters that somebody has already says so in a line of its own, and Apache Kafka runs there:

    <!-- docs-test: kafka 127.0.0.1:9092 127.0.0.1:9094 -->

The variable KAFKA_HOME then names a folder with Kafka's jars in `libs`, and CLONE this checkout, in which
`make jar` was run. DuckDB finds its extensions as if it had fetched them.

Pages name fixed ports, so root runs them in a network of their own, where nobody else has them.
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb

from millrace.process import start_child
from millrace_demo.table import extension_of
from tests.peers.kafka import POM, KafkaBroker
from tests.peers.maven import jars
from tests.support import REPOSITORY

BLOCK_S = 300.0
"""Limit of a block's time; only to end a block that hangs."""
FENCE = re.compile(r"^```(?P<kind>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = ("python", "toml", "json", "java")
"""Languages of the blocks that are a file's content."""
KIND = re.compile(rf"sh( service)?|output|({'|'.join(FILES)}) \S+")
"""Kinds of a block, as they stand behind its fence."""
_END = "end-of-block"
_OWN_NETWORK = "MILLRACE_DOCS_NETWORK"


class PageFailed(Exception):
    """A block did not do what the page says."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, and the line it begins at."""

    line: int
    kind: str
    text: str


def blocks_of(page: str) -> Iterator[Block]:
    for match in FENCE.finditer(page):
        yield Block(page.count("\n", 0, match.start()) + 1, match["kind"].strip(), match["text"])


def clusters_of(page: str) -> list[str]:
    """Addresses of the Apache Kafka clusters that a page's reader has."""
    match = re.search(r"^<!-- docs-test: kafka (.*) -->$", page, re.MULTILINE)
    return match[1].split() if match else []


def check_output(printed: str, wanted: str) -> None:
    """PageFailed naming the first wanted line that was not printed where it should be."""
    lines = iter(_words(printed))
    skip = False
    for line in _words(wanted):
        if line == "...":
            skip = True
            continue
        pattern = re.escape(line).replace(re.escape("..."), ".*")
        for found in lines:
            if re.fullmatch(pattern, found):
                break
            if not skip:
                raise PageFailed(f"printed {found!r} where the page says {line!r}")
        else:
            raise PageFailed(f"never printed {line!r}, but:\n{printed}")
        skip = False
    if not skip and (left := next(lines, None)) is not None:
        raise PageFailed(f"printed {left!r} behind what the page says")


def _words(text: str) -> list[str]:
    """The lines that are not empty, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


class Reader:
    """One who types a page: a shell, and a second terminal for each service."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        environment = {
            **os.environ,
            **variables,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        environment["HOME"] = str(folder)
        self._folder = folder
        self._services: list[subprocess.Popen[str]] = []
        self._drains: list[threading.Thread] = []
        self._environment = environment
        self._printed = ""
        self._shell = start_child(
            ["bash", "-u"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            death_signal=signal.SIGKILL,
        )

    def read(self, block: Block) -> None:
        if not KIND.fullmatch(block.kind):
            raise PageFailed(f"{block.kind!r} does not say what the block is: see tests/trials/docs")
        if block.kind == "sh":
            self._type(block.text)
        elif block.kind == "sh service":
            self._serve(block.text)
        elif block.kind == "output":
            check_output(self._printed, block.text)
        else:
            (self._where() / block.kind.partition(" ")[2]).write_text(block.text)

    def _type(self, text: str) -> None:
        self._printed, code = self._ask(text)
        if code:
            raise PageFailed(f"ended with {code}:\n{self._printed}")

    def _ask(self, text: str) -> tuple[str, int]:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        guard = threading.Timer(BLOCK_S, self._shell.kill)
        guard.start()
        try:
            # One group with its own standard input; `set -e` would end the shell instead of the block.
            self._shell.stdin.write(f"{{ :\n{text}\n}} </dev/null\ncode=$?; echo; echo {_END} $code\n")
            self._shell.stdin.flush()
            printed = ""
            for line in self._shell.stdout:
                if line.startswith(_END):
                    return printed, int(line.split()[1])
                printed += line
            raise PageFailed(f"ended the shell, or took longer than {BLOCK_S:.0f} s:\n{printed}")
        finally:
            guard.cancel()

    def _where(self) -> Path:
        return Path(self._ask("pwd")[0].strip())

    def _serve(self, text: str) -> None:
        service = start_child(
            ["bash", "-c", f"exec {text}"],
            cwd=self._where(),
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._services.append(service)
        assert service.stdout is not None
        self._printed = ""
        guard = threading.Timer(BLOCK_S, service.kill)
        guard.start()
        try:
            for line in service.stdout:
                self._printed += line
                if line.startswith("ready:") or "Airflow is ready" in line:
                    break
            else:
                raise PageFailed(f"ended without a ready line:\n{self._printed}")
        finally:
            guard.cancel()
        drain = threading.Thread(target=service.stdout.read)  # a full pipe would stop the service
        drain.start()
        self._drains.append(drain)

    def close(self) -> None:
        for service in reversed(self._services):
            _signal_group(service, signal.SIGTERM)  # to all of its processes, as Ctrl-C in a terminal
            service.wait(60)
            _signal_group(service, signal.SIGKILL)
        for drain in self._drains:
            drain.join()
        self._shell.kill()
        for process in (self._shell, *self._services):
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with suppress(BrokenPipeError):
                    pipe.close()


def _signal_group(service: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(service.pid, number)


def run_page(page: Path) -> int:
    """Run the blocks of a page; how many there are."""
    text = page.read_text()
    blocks = list(blocks_of(text))
    if len(blocks) * 2 != len(re.findall(r"^```", text, re.MULTILINE)):
        raise PageFailed("a fence is not closed, or not at the beginning of its line")
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="docs-"))
        servers = stack.enter_context(tempfile.TemporaryDirectory(prefix="docs-kafka-"))
        variables = {}
        if addresses := clusters_of(text):
            variables = install_kafka(Path(servers), Path(folder))
        for number, address in enumerate(addresses):
            stack.enter_context(KafkaBroker(Path(servers) / str(number), address=address))
        reader = Reader(Path(folder), variables)
        try:
            for block in blocks:
                began = time.monotonic()
                try:
                    reader.read(block)
                except PageFailed as failed:
                    raise PageFailed(f"line {block.line}: {failed}") from None
                took = time.monotonic() - began
                print(f"{page.name}:{block.line} {block.kind}: {took:.1f} s", flush=True)
        finally:
            reader.close()
    return len(blocks)


def install_kafka(servers: Path, home: Path) -> dict[str, str]:
    """Install what the reader of a page about Kafka has or fetches; return the variables that name it."""
    (servers / "libs").symlink_to(jars(POM))
    with duckdb.connect(config={"extension_directory": str(home / ".duckdb" / "extensions")}) as connection:
        for name in ("avro", "iceberg"):
            connection.execute(f"INSTALL '{extension_of(name, duckdb.__version__)}'")
    return {"KAFKA_HOME": str(servers), "CLONE": str(REPOSITORY)}


def enter_own_network() -> None:
    """Begin again where nobody else listens: in a new network namespace with nothing but loopback."""
    if os.environ.get(_OWN_NETWORK) is None:
        again = ["unshare", "--net", sys.executable, "-m", "tests.trials.docs", *sys.argv[1:]]
        os.execvpe("unshare", again, {**os.environ, _OWN_NETWORK: "1"})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: UP, RUNNING


def main(pages: Sequence[str]) -> None:
    if any(clusters_of((REPOSITORY / name).read_text()) for name in pages):
        # What Maven needs is fetched while there is a network.
        jars(POM)
        subprocess.run(["make", "jar"], cwd=REPOSITORY, check=True)
    if os.geteuid() == 0:
        enter_own_network()
    for name in pages:
        page = (REPOSITORY / name).resolve()
        began = time.monotonic()
        try:
            count = run_page(page)
        except PageFailed as failed:
            sys.exit(f"{name}, {failed}")
        print(f"{name}: {count} blocks in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
