"""Figures from one cell's measurements: rates, broker CPU per million, which side was the bottleneck.

Works on the result file's plain values, so that a page can be made again without measuring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.bench.broker.system import MESSAGE_BYTES

CORES_FULL = 0.9
"""A thread, or all cores together, that is busy for more of the time than this sets the pace."""

Outcome = Mapping[str, Any]
Result = Mapping[str, Any]


def outcome(result: Result, system: str, client: str, cell: str) -> Outcome | None:
    """A cell that was measured; None when it was not, or failed."""
    found = result.get("systems", {}).get(system, {}).get("cells", {}).get(client, {}).get(cell)
    return None if found is None or "failed" in found else found


def rate(outcome: Outcome, role: str) -> float:
    """Messages a second of one role."""
    figures = outcome["roles"][role]
    return float(figures["messages"] / figures["seconds"])


def slowest_role(outcome: Outcome) -> str:
    """Return the role that the cell is about: consuming if it is one of two, else the only role."""
    return "consume" if "consume" in outcome["roles"] else next(iter(outcome["roles"]))


def megabytes(messages_per_s: float) -> float:
    """10^6 bytes of payload a second."""
    return messages_per_s * MESSAGE_BYTES / 1e6


def broker_cpu_per_million(outcome: Outcome) -> float:
    """CPU seconds of the broker's processes for a million messages; one produced and consumed counts once."""
    most = max(figures["messages"] for figures in outcome["roles"].values())
    return float(outcome["usage"]["broker_cpu_s"] / most * 1e6)


def seconds(outcome: Outcome) -> float:
    """The clock while the load ran, without the start of the client."""
    return float(max(figures["seconds"] for figures in outcome["roles"].values()))


def bottleneck(outcome: Outcome, cores: int) -> str:
    """`broker`, `client`, `both cores` or `waiting`, with the share of a core each side used.

    A side whose busiest thread was busy nearly all the time sets the pace; else all cores together may; else
    both waited: for the disk, for a flush, or for each other's answers.
    """
    usage, wall = outcome["usage"], seconds(outcome)
    threads = {"broker": usage["broker_thread_s"] / wall, "client": usage["client_thread_s"] / wall}
    shares = {"broker": usage["broker_cpu_s"] / wall, "client": usage["client_cpu_s"] / wall}
    busiest = max(threads, key=lambda side: threads[side])
    if threads[busiest] >= CORES_FULL:
        verdict = busiest
    elif sum(shares.values()) >= CORES_FULL * cores:
        verdict = f"all cores, mostly {max(shares, key=lambda side: shares[side])}"
    else:
        verdict = "waiting"
    return f"{verdict} (broker {shares['broker']:.2f}, client {shares['client']:.2f})"
