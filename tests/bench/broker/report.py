"""The broker's half of `docs/benchmarks.md` out of a result file: figures from there, words from a template.

`page.md` holds what stays true whatever was measured; `notes.toml` holds the explanations of missed levels
and of peers that are ahead, each shown only when the figures say so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from tests.bench.broker import figures
from tests.bench.broker.figures import Outcome, Result
from tests.bench.broker.levels import Level, levels
from tests.bench.machine import in_words

TEMPLATE = Path(__file__).with_name("page.md")
NOTES = Path(__file__).with_name("notes.toml")
TITLES = {
    "produce-1": "One producer, 1 message per request",
    "produce-50": "One producer, 50 messages per request",
    "produce-large": "One producer, large batches",
    "consume": "One consumer",
    "both": "One producer and one consumer at once",
}
COMPARED = TITLES | {"cold": "A consumer that starts cold"}
UNEXPLAINED = "The reason is not known yet."
KAFKA_PROTOCOL = ("kafka", "kafka-flushed", "kafka-tls")
_AHEAD = 1.05
"""A peer counts as ahead when it is faster by more than the noise between two runs."""


def _run(run: Mapping[str, Any]) -> str:
    quiet = f"other processes used {run['busy']:.0%} of all cores before it"
    return f"- Run: `{run['command']}`, {run['date']}; {quiet}"


def page(result: Result) -> str:
    """The whole half."""
    values = {
        "runs": "\n".join(map(_run, result.get("runs", ()))),
        "machine": in_words(result.get("machine", {})),
        "problems": "\n".join(f"- **{problem}**" for problem in problems(result)) or "Nothing.",
        "levels": levels_table(levels(result)),
        "missed": "\n".join(_missed(result)) or "None is missed.",
        "ahead": "\n".join(_ahead(result)) or "No peer is ahead in any cell.",
        "raw": _raw(result),
        "systems": _systems(result),
        "throughput": "\n\n".join(f"### {title}\n\n{_cell(result, cell)}" for cell, title in TITLES.items()),
        "latency": _latency(result),
        "cold": _cold(result),
    }
    return Template(TEMPLATE.read_text()).substitute(values)


def problems(result: Result) -> list[str]:
    """Systems that could not be started and cells that failed, one line each."""
    found = []
    for name, system in result.get("systems", {}).items():
        if system["missing"]:
            found.append(f"{name} is missing: {system['missing']}")
        for client, cell, outcome in _all_cells(result, name):
            if "failed" in outcome:
                found.append(f"{name}, {client}, {cell} failed: {outcome['failed']}")
    return found


def one_line(outcome: Outcome) -> str:
    """A cell's figures for the progress on the terminal."""
    if "failed" in outcome:
        return f"FAILED: {outcome['failed']}"
    parts = []
    for role, values in outcome["roles"].items():
        parts.append(f"{role} {figures.rate(outcome, role):>11,.0f} msgs/s")
        if values["p99_ms"] is not None:
            parts.append(f"p99 {values['p99_ms']:.1f} ms")
    return f"{', '.join(parts)}, broker {figures.broker_cpu_per_million(outcome):.3f} s/M"


def _all_cells(result: Result, system: str) -> Iterator[tuple[str, str, Outcome]]:
    for client, measured in result["systems"][system].get("cells", {}).items():
        for cell, outcome in measured.items():
            yield client, cell, outcome


def _rows_of(result: Result, cell: str) -> Iterator[tuple[str, str, Outcome]]:
    """(system, client, outcome) of every row that has figures for the cell."""
    for system in result.get("systems", {}):
        for client, found, outcome in _all_cells(result, system):
            if found == cell and "failed" not in outcome:
                yield system, client, outcome


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns after the first two are figures, so they stand right."""
    line = ["---" if index < 2 else "---:" for index in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, line, *rows])


def _cores(result: Result) -> int:
    return int(result.get("machine", {}).get("cores", 2))


def _title(result: Result, system: str) -> str:
    return str(result["systems"][system]["title"])


def levels_table(levels: Iterable[Level]) -> str:
    """Levels and what was measured, as Markdown: the missed ones first."""
    rows = []
    for level in sorted(levels, key=lambda level: level.met is not False):
        sign = "≥" if level.at_least else "≤"
        measured = "not measured" if level.measured is None else f"{number(level.measured)} {level.unit}"
        met = {True: "yes", False: "**no**", None: "?"}[level.met]
        rows.append([level.what, f"{sign} {number(level.wanted)} {level.unit}", measured, met])
    return table(["level", "required", "measured", "reached"], rows)


def number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _notes() -> dict[str, dict[str, str]]:
    notes: dict[str, dict[str, str]] = tomllib.loads(NOTES.read_text())
    return notes


def _missed(result: Result) -> Iterator[str]:
    notes = _notes().get("level", {})
    for level in levels(result):
        if level.met is False:
            where = level.cell and figures.outcome(result, level.system, level.client, level.cell)
            pace = f" Bottleneck: {figures.bottleneck(where, _cores(result))}." if where else ""
            yield f"- *{level.what}* is {short_of(level)}.{pace} {notes.get(level.key, UNEXPLAINED)}"


def short_of(level: Level) -> str:
    """By how much a level is missed."""
    assert level.measured is not None
    difference = abs(level.measured - level.wanted) / level.wanted
    return f"{difference:.0%} {'below' if level.at_least else 'above'} its level"


def _ahead(result: Result) -> Iterator[str]:
    """Peers with a higher rate than Millrace: the same client on Kafka, any real client on the others."""
    for cell, title in COMPARED.items():
        rows = list(_rows_of(result, cell))
        for system, client, outcome in rows:
            like_it = "millrace-tls" if system == "kafka-tls" else "millrace"
            ours = [
                own
                for name, used, own in rows
                if name == like_it and (used == client if system in KAFKA_PROTOCOL else used != "replay")
            ]
            if system.startswith("millrace") or not ours:
                continue
            best = max(ours, key=_main_rate)
            times = _main_rate(outcome) / _main_rate(best)
            if times > _AHEAD:
                yield (
                    f"- *{title}*: {_title(result, system)} ({client}), {times:.2f} times as fast; "
                    f"broker CPU {figures.broker_cpu_per_million(outcome):.2f} s/M there, "
                    f"{figures.broker_cpu_per_million(best):.2f} s/M in Millrace. "
                    f"{_why_ahead(result, cell, system, best, outcome)}"
                )


def _main_rate(outcome: Outcome) -> float:
    return figures.rate(outcome, figures.slowest_role(outcome))


def _why_ahead(result: Result, cell: str, system: str, ours: Outcome, theirs: Outcome) -> str:
    """The note about this cell and system; else what the figures alone say."""
    notes = _notes().get("ahead", {})
    verdicts = [figures.bottleneck(outcome, _cores(result)) for outcome in (ours, theirs)]
    if all("client" in verdict.partition("(")[0] for verdict in verdicts):
        return notes.get(f"{cell}.{system}", notes["client"])
    return notes.get(
        f"{cell}.{system}", f"{UNEXPLAINED} Bottleneck there: {verdicts[1]}; here: {verdicts[0]}."
    )


def _raw(result: Result) -> str:
    rows = [
        [limit["name"], f"{limit['mb_per_s']:,.0f} MB/s", f"{limit['cpu_s_per_gb']:.2f} s/GB"]
        for limit in result.get("raw", ())
    ]
    return table(["limit", "rate", "CPU, all sides"], rows)


def _systems(result: Result) -> str:
    rows = []
    for system in result.get("systems", {}).values():
        idle = system.get("idle_rss")
        memory = "missing" if idle is None else f"{idle / 1e6:,.0f} MB"
        rows.append([system["title"], system.get("version", "?"), system["flush"], memory])
    return table(["system", "version", "flush", "memory, idle"], rows)


def _cell(result: Result, cell: str) -> str:
    cores = _cores(result)
    head = ["system", "client", "messages", "msgs/s", "MB/s", "broker CPU s/M", "memory MB"]
    stored = cell.startswith("produce")
    rows = []
    for system, client, outcome in _rows_of(result, cell):
        rates = [figures.rate(outcome, role) for role in ("produce", "consume") if role in outcome["roles"]]
        row = [
            _title(result, system),
            client,
            f"{outcome['messages']:,}",
            " in, ".join(f"{one:,.0f}" for one in rates) + (" out" if len(rates) > 1 else ""),
            " / ".join(f"{figures.megabytes(one):,.0f}" for one in rates),
            f"{figures.broker_cpu_per_million(outcome):.2f}",
            f"{outcome['usage']['broker_rss'] / 1e6:,.0f}",
        ]
        if stored:
            overhead = outcome["overhead_bytes"]
            # Less than nothing: files of earlier cells were removed meanwhile, this one's share is unknown.
            row.append("-" if overhead is None or overhead < 0 else f"{overhead:.1f}")
        rows.append([*row, figures.bottleneck(outcome, cores)])
    overhead_head = ["overhead B/msg"] if stored else []
    return table([*head, *overhead_head, "bottleneck (cores used)"], rows)


def _latency(result: Result) -> str:
    rows = []
    for system, client, outcome in _rows_of(result, "latency"):
        values = outcome["roles"]["latency"]
        percentiles = [f"{values[key]:,.1f}" for key in ("p50_ms", "p99_ms", "max_ms")]
        sent = outcome["messages"]
        cpu = figures.broker_cpu_per_million(outcome)
        rows.append([_title(result, system), client, f"{sent:,}", *percentiles, f"{cpu:.1f}"])
    return table(["system", "client", "messages", "p50 ms", "p99 ms", "max ms", "broker CPU s/M"], rows)


def _cold(result: Result) -> str:
    head = ["system", "reader", "messages behind", "GB behind", "read msgs/s", "read MB/s"]
    rows = []
    for system, client, outcome in _rows_of(result, "cold"):
        read = figures.rate(outcome, "consume")
        written = outcome["roles"]["produce"]
        p99 = "-" if written["p99_ms"] is None else f"{written['p99_ms']:,.0f}"
        rows.append(
            [
                _title(result, system),
                client,
                f"{outcome['messages']:,}",
                f"{outcome['messages'] * 200 / 1e9:.1f}",
                f"{read:,.0f}",
                f"{figures.megabytes(read):,.0f}",
                f"{figures.rate(outcome, 'produce'):,.0f}",
                p99,
                f"{figures.broker_cpu_per_million(outcome):.2f}",
                f"{outcome['usage']['broker_rss'] / 1e6:,.0f}",
            ]
        )
    return table([*head, "written msgs/s meanwhile", "ack p99 ms", "broker CPU s/M", "memory MB"], rows)
