"""Figures from the load benchmark's measurements: rates, ratios, the bottleneck, the levels.

Works on the result file's plain values, so that a page can be made again without measuring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.bench.broker.figures import CORES_FULL
from tests.bench.broker.levels import Level
from tests.bench.load.accounting import WORKERS

Result = Mapping[str, Any]
Run = Mapping[str, Any]
Runs = Sequence[Run]


def outcome(result: Result, cell: str, name: str) -> Mapping[str, Any] | None:
    """Return the cell's measurement; None if it was not taken, is missing, or failed."""
    found = result.get(cell, {}).get(name)
    return None if found is None or found.get("missing") or found.get("failed") else found


def middle(runs: Runs, what: str = "cpu_s") -> Run:
    """The run in the middle by CPU, or by another figure: its median, where there are an odd number."""
    return sorted(runs, key=lambda run: float(run[what]))[len(runs) // 2]


def per_cpu(runs: Runs) -> float:
    """Records per CPU-second of everything that loaded, the median; the broker is not in it."""
    return float(runs[0]["rows"] / middle(runs)["cpu_s"])


def per_wall(runs: Runs) -> float:
    """Records per second of the clock, the median."""
    return float(runs[0]["rows"] / middle(runs, "wall_s")["wall_s"])


def per_worker_cpu(run: Run) -> float:
    """Records per CPU-second of Spark's Python workers alone: all that a load's tasks do."""
    return float(run["rows"] / run["groups"][WORKERS])


def bottleneck(run: Run, cores: int) -> str:
    """Name the part that set the pace, and the cores that each part used.

    The broker if its one loop was busy nearly all the time; else whoever used most, if all cores were busy;
    else nobody: the load waited, for the disk, for answers, or for its own single-threaded parts.
    """
    shares = {group: cpu / run["wall_s"] for group, cpu in run["groups"].items()}
    shares["broker"] = run["broker_cpu_s"] / run["wall_s"]
    most = max(shares, key=lambda group: shares[group])
    if shares["broker"] >= CORES_FULL:
        verdict = "broker"
    elif sum(shares.values()) >= CORES_FULL * cores:
        verdict = f"all cores, mostly {most}"
    else:
        verdict = f"not all cores busy, mostly {most}"
    used = ", ".join(
        f"{group} {share:.2f}" for group, share in sorted(shares.items(), key=lambda item: -item[1])[:3]
    )
    return f"{verdict} ({used})"


def mirror_mb_per_s(copied: Run) -> float:
    """10^6 bytes of batches a second, from the first records to the last."""
    return float(copied["data_bytes"] * copied["part"] / copied["seconds"] / 1e6)


def mirror_cpu_per_gb(copied: Run, *, with_target: bool = False) -> float:
    """CPU seconds of the mirroring process for 10^9 bytes, with those of the target broker if asked."""
    cpu = copied["cpu_s"] + (copied["target_cpu_s"] if with_target else 0)
    return float(cpu / (copied["data_bytes"] * copied["part"]) * 1e9)


def mirror_bottleneck(copied: Run, cores: int) -> str:
    """Name the process that set the pace of a copy, and the cores that each process used.

    A broker of Millrace computes on one core at a time, so one that used nearly a whole one is full.
    """
    shares = {
        name: copied[f"{key}cpu_s"] / copied["seconds"]
        for name, key in (("mirror", ""), ("origin", "origin_"), ("target", "target_"))
        if copied[f"{key}cpu_s"]
    }
    most = max(shares, key=lambda name: shares[name])
    if sum(shares.values()) >= CORES_FULL * cores:
        verdict = f"all cores, mostly the {most}"
    elif shares[most] >= CORES_FULL:
        verdict = f"the {most}"
    else:
        verdict = "waiting"
    return f"{verdict} ({', '.join(f'{name} {share:.2f}' for name, share in shares.items())})"


def levels(result: Result) -> Iterator[Level]:
    """Every level to reach, with what was measured."""
    yield from _decoder_levels(result)
    yield from _load_levels(result)
    yield from _mirror_levels(result)


def _decoder_levels(result: Result) -> Iterator[Level]:
    found = outcome(result, "decoder", "bench-decode")
    rates = found["rates"] if found else {}
    for key, schema in (("decoder-flat", "long and string"), ("decoder", "PageView")):
        measured = rates.get(schema, {}).get("by columns, to Arrow")
        what = f"decoder alone, {schema}, records per CPU-second"
        yield Level(key=key, what=what, unit="M", wanted=5.0, measured=measured)
    for key, schema, wanted in (("parquet-flat", "long and string", 1.0), ("parquet", "PageView", 0.8)):
        measured = rates.get(schema, {}).get("the same, to Parquet")
        what = f"unzip, frame, decode, Parquet as a task does, {schema}, records per CPU-second"
        yield Level(key=key, what=what, unit="M", wanted=wanted, measured=measured)


def _load_levels(result: Result) -> Iterator[Level]:
    load, local = outcome(result, "load", "millrace"), outcome(result, "load", "millrace-local")
    for key, what, wanted, measured in (
        (
            "tasks",
            "its tasks in a warm session",
            1.0,
            per_worker_cpu(middle(load["warm"])) / 1e6 if load else None,
        ),
        ("whole", "the whole command with its JVM", 0.4, per_cpu(load["once"]) / 1e6 if load else None),
        ("local", "the whole command, --engine local", 0.4, per_cpu(local["once"]) / 1e6 if local else None),
    ):
        what = f"a load, {what}, records per CPU-second"
        yield Level(key=key, what=what, unit="M", wanted=wanted, measured=measured)
    spark = outcome(result, "load", "spark-kafka")
    yield Level(
        key="local-cpu",
        what="--engine local, compared with Spark's Kafka source: whole command, per CPU-second",
        unit="times",
        wanted=4.0,
        measured=per_cpu(local["once"]) / per_cpu(spark["once"]) if local and spark else None,
    )
    for key, ours, what in (
        ("spark-kafka", "millrace", "a load, compared with Spark's Kafka source, from_avro, Parquet"),
        (
            "spark-iceberg",
            "millrace-table",
            "load and publish, compared with Spark's Kafka source, from_avro, Iceberg",
        ),
    ):
        own, peer = outcome(result, "load", ours), outcome(result, "load", key)
        for suffix, how, rate, form, wanted in (
            ("cpu", "whole command, per CPU-second", per_cpu, "once", 4.0),
            ("wall", "whole command, per second", per_wall, "once", 2.0),
            ("warm", "warm session, per CPU-second", per_cpu, "warm", 2.0),
        ):
            yield Level(
                key=f"{key}-{suffix}",
                what=f"{what}: {how}",
                unit="times",
                wanted=wanted,
                measured=rate(own[form]) / rate(peer[form]) if own and peer else None,
            )


def _mirror_levels(result: Result) -> Iterator[Level]:
    peer = outcome(result, "mirror", "mirrormaker")
    for key, name, what in (
        ("mirror", "millrace-mirror", "mirror of Millrace"),
        ("mirror-kafka", "millrace-mirror-of-kafka", "mirror of Apache Kafka"),
    ):
        ours = outcome(result, "mirror", name)
        rate = mirror_mb_per_s(ours) if ours else None
        yield Level(key=key, what=what, unit="MB/s", wanted=300, measured=rate)
        for more, with_target in (("", False), (" and its target broker", True)):
            times = None
            if ours is not None and peer is not None:
                times = mirror_cpu_per_gb(peer, with_target=with_target) / mirror_cpu_per_gb(ours)
            yield Level(
                key=f"{key}-cpu",
                what=f"{what}, per CPU-second, compared with MirrorMaker 2{more}",
                unit="times",
                wanted=5.0,
                measured=times,
            )
