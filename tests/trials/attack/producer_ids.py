"""New producer ids by the ten thousand, meant to make a broker forget the id of another principal.

Each batch has one record and an id of its own. The other principal's retry must be answered instead of
stored, and its new ids must find places. What a batch costs is counted as in `run`: CPU time and memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from millrace.client.cluster_client import ClusterClient
from millrace.client.connection import Connection as OwnConnection
from millrace.errors import ErrorCode
from millrace.records import Message, build_batch
from millrace.wire.messages import ApiKey
from tests.bench.replay import cpu_seconds, rss_bytes
from tests.trials.attack.requests import frame
from tests.trials.attack.run import Connection, Outcome
from tests.trials.attack.strangers import Guarded, guarded_broker

PARTITIONS, IDS = 15, 6_000
"""More ids in each partition than half of its places, and more in all than half of the broker's."""
CPU_S_PER_BATCH = 0.0002
MORE_MEMORY_BYTES = 120_000_000
_TOPIC, _VERSION = "ids", 7
_RESULT = struct.Struct(">ihqqq")
"""A partition's number, error code, base offset, append time and log start in an answer."""


def attack_producer_ids(folder: Path, ids: int = IDS) -> Outcome:
    """Send so many new ids to each partition of a broker of its own, beside a user who retries."""
    with guarded_broker(folder) as place:
        with ClusterClient(place.plain) as client:
            client.create_topic(_TOPIC, PARTITIONS)
        return _attack(place, ids)


def _attack(place: Guarded, ids: int) -> Outcome:
    outcome, pid = Outcome(requests=ids), place.process.pid
    host, _, port = place.guarded.rpartition(":")
    attacker = Connection(place.plain)
    with OwnConnection(host, int(port), client_id="honest", timeout_s=20, security=place.user) as user:

        def as_user(id_: int) -> list[tuple[int, int]]:
            body = _produce([id_] * PARTITIONS)
            return _results(bytes(user.request(ApiKey.PRODUCE, _VERSION, body, timeout_s=20)))

        first = as_user(1)
        cpu, memory, codes = cpu_seconds(pid), rss_bytes(pid), set[int]()
        for number in range(ids):
            new = range(10**6 + number * PARTITIONS, 10**6 + (number + 1) * PARTITIONS)
            answer = attacker.ask(frame(ApiKey.PRODUCE, _VERSION, _produce(new)))
            codes |= {code for code, _ in _results(answer[4:])}
        cpu, memory = cpu_seconds(pid) - cpu, rss_bytes(pid) - memory
        again, new_id = as_user(1), as_user(2)
    attacker.close()
    failures = outcome.failures
    if any(code for code, _ in first) or again != first:
        failures.append(f"{ids} new ids a partition: a retry of another principal was stored again: {again}")
    if any(code for code, _ in new_id):
        failures.append(f"{ids} new ids a partition: another principal finds no place: {new_id}")
    if codes != {0, ErrorCode.NOT_ENOUGH_REPLICAS}:
        failures.append(f"{ids} new ids a partition were answered with the error codes {sorted(codes)}")
    if cpu > (allowed := ids * PARTITIONS * CPU_S_PER_BATCH):
        failures.append(f"{ids} new ids a partition: {cpu:.1f} s of CPU, {allowed:.1f} s allowed")
    if memory > MORE_MEMORY_BYTES:
        failures.append(f"{ids} new ids a partition: {memory / 1e6:.0f} MB more memory")
    return outcome


def _produce(ids: Iterable[int]) -> bytes:
    """The body of a Produce request with the first batch of each id, for a partition each."""
    body = struct.pack(">hhii", -1, 1, 30_000, 1) + struct.pack(">h", len(_TOPIC)) + _TOPIC.encode()
    body += struct.pack(">i", PARTITIONS)
    for partition, id_ in enumerate(ids):
        batch = build_batch([Message(1, None, b"x")], producer_id=id_, producer_epoch=0, base_sequence=0)
        body += struct.pack(">ii", partition, len(batch)) + batch
    return body


def _results(answer: bytes) -> list[tuple[int, int]]:
    """The error code and base offset of each partition."""
    rows = answer[4 + 2 + len(_TOPIC) + 4 : -4]  # behind the only topic and before the throttle time
    return [(code, base) for _, code, base, _, _ in _RESULT.iter_unpack(rows)]
