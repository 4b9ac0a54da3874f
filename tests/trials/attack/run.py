"""One attack: each request is sent through one connection and its cost counted, then all through 200 at once.

What counts is the broker's CPU time and resident memory from /proc, never the clock. Who shares the cores,
or the host, makes CPU time dearer, too: a request that seems too dear is sent again, each try is put into the
CPU time of the machine that the limit is for, and the cheapest counts.
"""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from millrace.client.cluster_client import LATEST, ClusterClient
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from tests.bench.replay import cpu_seconds, fetch_request, produce_request, rss_bytes
from tests.support import wait_until
from tests.trials.attack.requests import FORGED, TOPIC, Sent, forged_batches, frame, requests_for

CPU_S = 0.020
CPU_S_PER_BYTE = 20e-9
CPU_S_PER_ITEM = 8e-6
"""Allowance for each item of a refused list: it is read and has an answer."""
COUNTING_S = 0.012
"""CPU time that the machine which the limits are for takes to add the numbers up to 200,000."""
MORE_MEMORY_BYTES = 20_000_000
CONNECTIONS = 200
TRIES = 12
OPEN_APIS = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
"""Requests that are answered before a login."""
OTHER = "untouched"
UNANSWERED_S = 20.0
"""A broker that does not answer a usual request for so long serves nobody: the attack ends there."""
_ANSWER_S = 0.2
_QUIET_S, _QUIET_CPU_S = 0.05, 0.005
_PING = frame(18, 0, b"")


class Connection:
    """A socket that sends whole requests and reads whole answers, by TLS if it has a context for it."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=UNANSWERED_S)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self.file = self.socket.makefile("rb")

    def ask(self, data: bytes) -> bytes:
        """The answer; OSError when the broker closes the connection instead."""
        self.socket.sendall(data)
        size = self.file.read(4)
        answer = self.file.read(struct.unpack(">i", size)[0]) if len(size) == 4 else b""
        if not answer:
            raise ConnectionError("the broker closed the connection")
        return answer

    def close(self) -> None:
        """Close it, and do not wait for anything."""
        self.file.close()
        self.socket.close()


class OtherClient(threading.Thread):
    """A client that only wants to produce and consume, all the time; `failures` says what it met instead."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._connection = Connection(address)
        self._ended = threading.Event()
        self.answers, self.failures = 0, list[str]()

    def run(self) -> None:
        """Ask until `end`, not often: what it costs is counted as the request's that is looked at."""
        batch = build_batch([Message(1, None, b"x")])
        requests = [produce_request(OTHER, {0: batch}, 1), fetch_request(OTHER, {0: 0}, 1000, max_wait_ms=0)]
        try:
            while not self._ended.wait(0.05):
                for request in requests:
                    answer = self._connection.ask(request)
                    at = answer.find(OTHER.encode()) + len(OTHER) + 8  # behind a count and the partition
                    (code,) = struct.unpack_from(">h", answer, at)
                    if code:
                        self.failures.append(f"error {code}")
                    self.answers += 1
        except (OSError, struct.error) as error:
            self.failures.append(str(error))

    def end(self) -> None:
        """Stop asking."""
        self._ended.set()
        self.join(60)
        self._connection.close()


@dataclass
class Outcome:
    """Outcome of the attack so far."""

    requests: int = 0
    apis: int = 0
    worst_cpu_s: float = 0.0
    worst: str = ""
    failures: list[str] = field(default_factory=list)

    def __add__(self, other: Outcome) -> Outcome:
        dearer = max(self, other, key=lambda outcome: outcome.worst_cpu_s)
        return Outcome(
            self.requests + other.requests,
            max(self.apis, other.apis),
            dearer.worst_cpu_s,
            dearer.worst,
            self.failures + other.failures,
        )


class Attack:
    """Attacks one broker process; others reach it by `address`, where nobody has to log in."""

    def __init__(
        self, address: str, pid: int, seed: int, stranger: Callable[[], Connection] | None = None
    ) -> None:
        """The requests go through connections to `address`, or a `stranger`'s, who has not logged in."""
        self._address, self._pid = address, pid
        self._connect = stranger or partial(Connection, address)
        self._served = set(ApiKey) if stranger is None else OPEN_APIS
        self._rng = random.Random(seed)
        self._control = Connection(address)
        self._last: Sent | None = None
        self._resident = list[int]()
        self.outcome = Outcome()

    def run(self, chosen: Sequence[tuple[int, int]], rounds: int, *, long_lists: bool = True) -> Outcome:
        """Ask these APIs and versions so many times; lists of thousands only where they are offered."""
        with ClusterClient(self._address) as client:
            for topic in (TOPIC, FORGED, OTHER):
                client.create_topic(topic, 1)
        self.outcome.apis = len({api_key for api_key, _ in chosen})
        try:
            self._ask_all(chosen, rounds, long_lists)
        except OSError as error:
            what = _named(self._last) if self._last is not None else "nothing"
            self.outcome.failures.append(f"no answer to a usual request ({error}); sent last: {what}")
        return self.outcome

    def _ask_all(self, chosen: Sequence[tuple[int, int]], rounds: int, long_lists: bool) -> None:
        offered = self._highest_offered()
        for api_key, version in chosen:  # what is loaded with the first use of an API stays, and is no leak
            self._cost(next(iter(requests_for(api_key, version, self._rng))))
        other = OtherClient(self._address)
        other.start()
        self._resident = [rss_bytes(self._pid)]
        for number in range(rounds):
            sent = [
                each
                for api_key, version in chosen
                for each in requests_for(
                    api_key, version, self._rng, long_lists=long_lists and (api_key, version) in offered
                )
            ]
            sent += forged_batches(self._rng)
            self._one_by_one(sent)
            self._all_at_once(sent)
            if number in (0, rounds - 1):
                self._settle()
        self._end(other)

    def _log_end(self) -> int:
        with ClusterClient(self._address) as client:
            return client.list_offsets(FORGED, LATEST, [0])[0]

    def _highest_offered(self) -> set[tuple[int, int]]:
        rows = self._control.ask(_PING)[10:]
        return {(api_key, highest) for api_key, _, highest in struct.iter_unpack(">hhh", rows)}

    def _one_by_one(self, requests: Iterable[Sent]) -> None:
        outcome = self.outcome
        for sent in requests:
            allowed = CPU_S + CPU_S_PER_BYTE * len(sent.data) + CPU_S_PER_ITEM * sent.items
            end = 0 if sent.log_bytes is None else self._log_end()
            cost = self._cost(sent)
            if sent.log_bytes is not None and (grown := self._log_end() - end) > sent.log_bytes:
                outcome.failures.append(f"{_named(sent)}: {grown} bytes in the log")
            for _ in range(TRIES - 1):
                if cost > allowed:
                    cost = min(cost, self._cost(sent) / _slowness())
            what = _named(sent)
            outcome.requests += 1
            if cost > outcome.worst_cpu_s:
                outcome.worst_cpu_s, outcome.worst = cost, what
            if cost > allowed:
                outcome.failures.append(f"{what}: {cost * 1e3:.1f} ms of CPU")

    def _cost(self, sent: Sent) -> float:
        """CPU seconds of the broker from before a request to after its answer, or to where it waits."""
        self._last = sent
        connection = self._connect()
        connection.socket.settimeout(_ANSWER_S)
        try:
            self._control.ask(_PING)
            before = cpu_seconds(self._pid)
            try:
                connection.ask(sent.data)
                if sent.api_key not in self._served:
                    self.outcome.failures.append(f"{_named(sent)}: answered before a login")
            except TimeoutError:
                self._wait_until_quiet()  # what it still does must not count as the next one's
            except OSError:
                pass  # refused
            self._control.ask(_PING)  # the turn that served the request is over
            return cpu_seconds(self._pid) - before
        finally:
            connection.close()

    def _wait_until_quiet(self) -> None:
        def is_quiet() -> bool:
            before = cpu_seconds(self._pid)
            time.sleep(_QUIET_S)
            return cpu_seconds(self._pid) - before < _QUIET_CPU_S

        with contextlib.suppress(AssertionError):  # then it is dear, and what follows says so
            wait_until("quiet", is_quiet, timeout_s=UNANSWERED_S)

    def _all_at_once(self, requests: Sequence[Sent]) -> None:
        """A share of the requests through each of many connections; nobody reads before all are sent."""
        connections = [self._connect() for _ in range(CONNECTIONS)]
        for number, sent in enumerate(requests):
            connection, self._last = connections[number % CONNECTIONS], sent
            connection.socket.settimeout(_ANSWER_S)
            with contextlib.suppress(OSError):
                connection.socket.sendall(sent.data)
            self.outcome.requests += 1
        self._control.ask(_PING)
        for connection in connections:
            connection.close()

    def _settle(self) -> None:
        """Kept buffers and the high-water mark of the heap come with the first round, a leak with each."""
        before = self._resident[-1]
        with contextlib.suppress(AssertionError):  # then it has more, and that is said
            wait_until("memory", lambda: rss_bytes(self._pid) < before + MORE_MEMORY_BYTES, timeout_s=60)
        self._resident.append(rss_bytes(self._pid))
        if (more := self._resident[-1] - before) >= MORE_MEMORY_BYTES:
            when = "the first round" if len(self._resident) == 2 else "the rounds behind the first"
            self.outcome.failures.append(f"{more / 1e6:.0f} MB more memory than before {when}")

    def _end(self, other: OtherClient) -> None:
        failures = self.outcome.failures
        other.end()
        self._control.close()
        failures += [f"another client's request: {failure}" for failure in other.failures]
        if not other.answers:
            failures.append("another client was never answered")


def _slowness() -> float:
    """Return the factor by which this machine is slower than the machine that the limits are for; >= 1."""
    before, total = time.process_time(), 0
    for number in range(200_000):
        total += number
    return max((time.process_time() - before) / COUNTING_S, 1.0)


def _named(sent: Sent) -> str:
    return f"API {sent.api_key} v{sent.version}, {sent.kind}, {len(sent.data)} bytes"
