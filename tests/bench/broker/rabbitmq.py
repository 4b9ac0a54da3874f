"""RabbitMQ of Debian's package: classic queues over AMQP 0-9-1, and streams over their own protocol.

One node of our own as a child process, with its own epmd, everything on 127.0.0.1 and in a scratch folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.bench.broker import java, meter
from tests.bench.broker.server import ServerProcess, apt_install, package_version
from tests.bench.broker.system import LARGE, MESSAGE_BYTES, Client, Command
from tests.bench.broker.tool_output import PerfTest
from tests.brokers import free_port

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
PREFETCH = 1000
"""The prefetch of the paper's test."""


class RabbitMq:
    """A node; `streams` says which of the two it is loaded through."""

    def __init__(self, *, streams: bool) -> None:
        self.name = "rabbitmq-streams" if streams else "rabbitmq-classic"
        self.title = "RabbitMQ streams" if streams else "RabbitMQ classic queues"
        self.flush = (
            "never flushed by the broker, visible at once"
            if streams
            else "persistent messages, unconfirmed: no client waits for the disk; visible at once"
        )
        self.version = "?"
        self.clients: Sequence[Client] = ()
        self._streams = streams
        self._folder = Path()
        self._processes: list[ServerProcess] = []

    def install(self) -> None:
        """Debian's package."""
        java.prepare()
        apt_install("rabbitmq-server", SERVER)
        self.version = package_version("rabbitmq-server")

    def start(self, folder: Path) -> None:
        """epmd, then the node."""
        self._folder = folder
        amqp, stream, epmd = free_port(), free_port(), free_port()
        (folder / "home").mkdir()
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{amqp}\nstream.listeners.tcp.1 = 127.0.0.1:{stream}\n"
            f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {stream}\n"
            "vm_memory_high_watermark.relative = 0.5\ndisk_free_limit.absolute = 1GB\n"
        )
        (folder / "enabled_plugins").write_text("[rabbitmq_stream].\n" if self._streams else "[].\n")
        self._run("epmd", [str(_epmd()), "-address", "127.0.0.1", "-port", str(epmd)], epmd)
        environment = {
            "HOME": str(folder / "home"),  # the cookie
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",  # Debian's would run it as another user
            "RABBITMQ_ALLOW_INPUT": "1",  # the Erlang process itself, without a shell around it
        }
        port = stream if self._streams else amqp
        self._run("rabbitmq-server", [str(SERVER), "-noinput"], port, environment)
        self.clients = [StreamClient(port) if self._streams else AmqpClient(port)]

    def pids(self) -> list[int]:
        """The node and its children; not epmd."""
        return meter.tree(self._processes[-1].pid)

    def create(self, place: str) -> None:
        """A durable queue, or a stream."""
        self._do("create", place)

    def delete(self, place: str) -> None:
        """The queue or stream and its data."""
        self._do("delete", place)

    def files(self, place: str) -> list[Path]:
        """A stream's own directory; classic queues share one message store."""
        data = self._folder / "data" / "bench@localhost"
        return list((data / "stream").glob(f"__{place}_*")) if self._streams else [data / "msg_stores"]

    def stop(self) -> None:
        """End the node, then epmd."""
        for process in reversed(self._processes):
            process.stop()
        self._processes.clear()

    def _do(self, what: str, place: str) -> None:
        client = self.clients[0]
        assert isinstance(client, StreamClient | AmqpClient)
        java.run(client.administer(what, place))

    def _run(
        self, name: str, arguments: list[str], port: int, environment: dict[str, str] | None = None
    ) -> None:
        process = ServerProcess(name, arguments, self._folder / f"{name}.log", environment)
        self._processes.append(process)
        process.wait_for_port(port)


class AmqpClient:
    """PerfTest, RabbitMQ's own load tool. AMQP publishes one message at a time: there are no batches."""

    name = "PerfTest"
    holds_rate = True

    def __init__(self, port: int) -> None:
        self._uri = f"amqp://127.0.0.1:{port}"

    def administer(self, what: str, queue: str) -> Command:
        """Create or delete a queue."""
        return java.load_class("AmqpLatency", do=what, uri=self._uri, queue=queue)

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command | None:
        """Persistent; not confirmed, for a confirm waits for the disk: the producer waits for nothing."""
        if per_request != 1:
            return None
        arguments = [
            *self._common(place),
            "-x",
            "1",
            "-y",
            "0",
            "-C",
            str(messages),
            "-e",
            "",
            "-k",
            place,
            "-s",
            str(MESSAGE_BYTES),
            "-f",
            "persistent",
        ]
        if rate:
            arguments += ["-r", str(rate)]
        return java.perf_test(arguments, PerfTest("sending", messages))

    def consume(self, place: str, messages: int) -> Command:
        """Acknowledged by the delivery itself, as in the paper."""
        arguments = [
            *self._common(place),
            "-x",
            "0",
            "-y",
            "1",
            "-D",
            str(messages),
            "-q",
            str(PREFETCH),
            "-a",
        ]
        return java.perf_test(arguments, PerfTest("receiving", messages))

    def latency(self, place: str, rate: int, seconds: int) -> Command:
        """Persistent, without confirms; two connections."""
        return java.load_class(
            "AmqpLatency", do="latency", uri=self._uri, queue=place, rate=rate, seconds=seconds
        )

    def _common(self, queue: str) -> list[str]:
        return ["-h", self._uri, "-p", "-u", queue, "-i", "5"]


class StreamClient:
    """RabbitMQ's Java client of the stream protocol in a load class of ours; every publish is confirmed."""

    name = "stream-client"
    holds_rate = True

    def __init__(self, port: int) -> None:
        self._port = port

    def administer(self, what: str, stream: str) -> Command:
        """Create or delete a stream."""
        return self._load(what, stream)

    def produce(self, place: str, per_request: int, messages: int, *, rate: int = 0) -> Command:
        """Frames of 1 or 50 messages; large: 100 entries of 100 messages each."""
        options = {1: {"batch": 1}, 50: {"batch": 50}, LARGE: {"batch": 100, "sub_entry": 100}}[per_request]
        return self._load("produce", place, messages=messages, rate=rate, **options)

    def consume(self, place: str, messages: int) -> Command:
        """From the first message on, 20 chunks of credit."""
        return self._load("consume", place, messages=messages)

    def latency(self, place: str, rate: int, seconds: int) -> Command:
        """The client sizes its batches by the rate."""
        return self._load("latency", place, rate=rate, seconds=seconds)

    def _load(self, what: str, stream: str, **options: object) -> Command:
        return java.load_class("StreamLoad", 1024, do=what, port=self._port, stream=stream, **options)


def _epmd() -> Path:
    """Erlang's port mapper; it comes with the emulator."""
    found = sorted(Path("/usr/lib/erlang").glob("erts-*/bin/epmd"))
    return found[-1] if found else Path("epmd")
