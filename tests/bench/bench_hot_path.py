"""Costs of produce and fetch on one Millrace broker, beside the limits of the machine itself.

    python -m tests.bench.bench_hot_path [--messages 1000000] [--rounds 3] [--case NAME]...

Requests are replayed and the broker's CPU is counted. Each case runs several rounds and the cheapest counts:
on a shared machine others only ever add. The wall rates are of that round, too, and mean nothing while
somebody else is computing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.client.cluster_client import ClusterClient
from tests.bench import replay
from tests.support import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to produce; afterwards what it wrote is consumed."""

    per_request: int
    acks: int = 1
    in_flight: int = 1000
    share: float = 1.0
    """Share of the requested messages that the case sends: single messages take longer."""

    @property
    def name(self) -> str:
        """Topic and label."""
        acks = "all" if self.acks < 0 else self.acks
        return f"{self.per_request}-acks-{acks}-in-flight-{self.in_flight}"


CASES = [
    Case(per_request=4500, in_flight=64, share=2),
    Case(per_request=50),
    Case(per_request=1, share=0.3),
    Case(per_request=1, share=0.3, acks=0),
    Case(per_request=1, share=0.3, acks=-1),
    Case(per_request=1, share=0.05, in_flight=5),
    Case(per_request=1, share=0.02, in_flight=1),
]


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, int]]:
    """(address, process id) of a broker with a ZooKeeper of its own, its data in `folder`."""
    zookeeper = Process(["zookeeper", "--port", "0", "--data-dir", f"{folder}/zookeeper"])
    config = folder / "broker.toml"
    try:
        config.write_text(
            f'broker_id = 1\ncluster = "bench"\nlisten = "127.0.0.1:0"\n'
            f'zookeeper = "{zookeeper.ready()}"\nlog_dir = "{folder}/logs"\n'
        )
        process = Process(["broker", str(config)])
        try:
            yield process.ready(), process.pid
        finally:
            process.kill()
    finally:
        zookeeper.kill()


def measure(address: str, pid: int, case: Case, messages: int, rounds: int) -> None:
    """Produce, then consume what was produced; one line each."""
    best: tuple[float, replay.Run] | None = None
    with ClusterClient(address) as client:
        client.create_topic(case.name, 1)
    for _ in range(rounds):
        before = replay.cpu_seconds(pid)
        run = replay.produce(
            address,
            case.name,
            per_request=case.per_request,
            requests=max(1, int(messages * case.share) // case.per_request),
            acks=case.acks,
            in_flight=case.in_flight,
        )
        time.sleep(0.3)  # the last flush belongs to it
        cpu = replay.cpu_seconds(pid) - before
        best = min(best or (cpu, run), (cpu, run), key=lambda pair: pair[0] / pair[1].messages)
    assert best is not None
    report(f"produce {case.name}", *best)
    plan = replay.fetch_plan(address, case.name)
    fetched = []
    for _ in range(rounds):
        before = replay.cpu_seconds(pid)
        run = replay.consume(address, case.name, plan)
        fetched.append((replay.cpu_seconds(pid) - before, run))
    report("  consume it", *min(fetched, key=lambda pair: pair[0]))


def report(label: str, cpu: float, run: replay.Run) -> None:
    """One line of the table."""
    print(
        f"{label:40} {run.messages_per_s:12,.0f} {run.mb_per_s:7,.0f} {run.requests_per_s:10,.0f} "
        f"{cpu / run.messages * 1e6:9.3f} {cpu / run.requests * 1e6:9.2f} {cpu / run.data_bytes * 1e9:8.3f} "
        f"{run.client_cpu_s / run.messages * 1e6:9.3f}",
        flush=True,
    )


def main() -> None:
    """Start a broker, replay every case, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--case", action="append", help="part of a case's name; default: every case")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as (address, pid):
        print(f"resident after the start: {replay.rss_bytes(pid) / 1e6:.0f} MB")
        replay.warm_up(Path(folder), 4 << 30)
        for name, raw in (
            ("page-cache write", replay.page_cache_write(Path(folder), 512 << 20)),
            ("loopback copy", replay.loopback_copy(1 << 30)),
            ("sendfile", replay.sendfile(Path(folder), 512 << 20)),
        ):
            print(f"raw {name:20} {raw.mb_per_s:7,.0f} MB/s, {raw.cpu_s / raw.data_bytes * 1e9:.3f} CPU s/GB")
        print(
            f"{'':40} {'msgs/s':>12} {'MB/s':>7} {'requests/s':>10} {'CPU s/M':>9} {'us/request':>9} "
            f"{'s/GB':>8} {'client s/M':>9}"
        )
        for case in CASES:
            if not options.case or any(part in case.name for part in options.case):
                measure(address, pid, case, options.messages, options.rounds)
        print(f"resident at the end: {replay.rss_bytes(pid) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
