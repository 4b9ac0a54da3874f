"""One run of the replay client as a process of its own, so that its CPU is not the broker's.

    python -m tests.bench.broker.replay_client produce HOST:PORT TOPIC MESSAGES PER_REQUEST
    python -m tests.bench.broker.replay_client consume HOST:PORT TOPIC MESSAGES

`consume` also follows a log that still grows: it reads batch headers to know the next offset.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable

from millrace.records import BatchHeader
from millrace.wire.client import EARLIEST, ClusterClient
from tests.bench import replay

FETCH_BYTES = 4 << 20
IDLE_TIMEOUT_S = 30


def produce(address: str, topic: str, messages: int, per_request: int) -> tuple[int, float]:
    """(messages sent and acknowledged, seconds)."""
    run = replay.produce(address, topic, per_request=per_request, requests=math.ceil(messages / per_request))
    return run.messages, run.seconds


def consume(address: str, topic: str, messages: int) -> tuple[int, float]:
    """(messages, seconds) until at least so many were read from the start of partition 0."""
    with ClusterClient(address) as client:
        offset = client.list_offsets(topic, EARLIEST, [0])[0]
        read, started = 0, time.monotonic()
        heard = started
        while read < messages:
            records = client.fetch(
                topic, {0: offset}, max_bytes=FETCH_BYTES, partition_max_bytes=FETCH_BYTES, max_wait_ms=100
            )[0].records
            position = 0
            while (header := BatchHeader.parse(records, position)) is not None:
                if position + header.size > len(records):
                    break
                read += 0 if header.is_control else header.records_count
                offset = header.next_offset
                position += header.size
            now = time.monotonic()
            if position:
                heard = now
            elif now - heard > IDLE_TIMEOUT_S:
                raise TimeoutError(f"only {read} of {messages} messages came")
        return read, time.monotonic() - started


def main() -> None:
    """Run what the command line names; print a line of JSON."""
    what, address, topic, *numbers = sys.argv[1:]
    work: dict[str, Callable[..., tuple[int, float]]] = {"produce": produce, "consume": consume}
    done, seconds = work[what](address, topic, *map(int, numbers))
    print(json.dumps({"messages": done, "seconds": seconds}))


if __name__ == "__main__":
    main()
