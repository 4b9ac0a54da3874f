"""The loads' half of `docs/benchmarks.md` out of a result file: figures from there, words from a template.

`page.md` holds what stays true whatever was measured; `notes.toml` holds the explanations of missed levels
and of peers that are ahead, each shown only when the figures say so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from tests.bench.broker.levels import Level
from tests.bench.broker.report import UNEXPLAINED, levels_table, short_of, table
from tests.bench.load import figures
from tests.bench.load.accounting import GROUPS
from tests.bench.load.figures import Result
from tests.bench.load.messages import HOURS, PARTITIONS
from tests.bench.load.mirroring import TASKS
from tests.bench.machine import in_words

TEMPLATE = Path(__file__).with_name("page.md")
NOTES = Path(__file__).with_name("notes.toml")
FORMS = {"once": "whole command", "warm": "warm session"}
MIRROR_LEVELS = {"mirror": "millrace-mirror", "mirror-kafka": "millrace-mirror-of-kafka"}
AHEAD = 1.05
"""A peer counts as ahead when it is better by more than the noise between two runs."""


def half(result: Result) -> str:
    """The whole half."""
    values = {
        "runs": "\n".join(map(_run, result.get("runs", ()))),
        "machine": in_words(result.get("machine", {})),
        "versions": ", ".join(result.get("versions", ())) or "?",
        "problems": "\n".join(f"- **{problem}**" for problem in problems(result)) or "Nothing.",
        "levels": levels_table(figures.levels(result)),
        "missed": "\n".join(_missed(result)) or "None is missed.",
        "ahead": "\n".join(_ahead(result)) or "No alternative is ahead in any cell.",
        "data": _data(result),
        "once": _loads(result, "once"),
        "warm": _loads(result, "warm"),
        "groups": _groups(result),
        "raw": _raw(result),
        "decoder": _decoder(result),
        "waiting": _waiting(result),
        "partitions": PARTITIONS,
        "tasks": TASKS,
        "mirror": _mirror(result),
    }
    return Template(TEMPLATE.read_text()).substitute(values)


def _run(run: Mapping[str, Any]) -> str:
    return (
        f"- Run: `{run['command']}`, {run['date']}, Millrace {run['version']}; other processes used"
        f" {run['busy']:.0%} of all cores before it"
    )


def problems(result: Result) -> list[str]:
    """List the missing and the failed measurements, one line each."""
    found = []
    for cell in ("load", "decoder", "mirror"):
        if not result.get(cell):
            found.append(f"{cell} was not measured")
        for name, one in result.get(cell, {}).items():
            if one.get("missing"):
                found.append(f"{cell}: {name} is missing: {one['missing']}")
            elif one.get("failed"):
                found.append(f"{cell}: {name} failed: {one['failed']}")
    return found


def _ways(result: Result) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name in result.get("load", {}):
        found = figures.outcome(result, "load", name)
        if found is not None and "once" in found:
            yield name, found


def _cores(result: Result) -> int:
    return int(result.get("machine", {}).get("cores", 2))


def _notes() -> dict[str, dict[str, str]]:
    notes: dict[str, dict[str, str]] = tomllib.loads(NOTES.read_text())
    return notes


def _missed(result: Result) -> Iterator[str]:
    notes = _notes()["level"]
    for level in figures.levels(result):
        if level.met is False:
            pace = _bottleneck_of(result, level)
            yield f"- *{level.what}* is {short_of(level)}.{pace} {notes.get(level.key, UNEXPLAINED)}"


def _bottleneck_of(result: Result, level: Level) -> str:
    if level.key in MIRROR_LEVELS:
        copied = figures.outcome(result, "mirror", MIRROR_LEVELS[level.key])
        return f" Bottleneck: {figures.mirror_bottleneck(copied, _cores(result))}." if copied else ""
    form = {"tasks": "warm", "whole": "once"}.get(level.key)
    way = figures.outcome(result, "load", "millrace")
    if way is None or form is None:
        return ""
    return f" Bottleneck: {figures.bottleneck(figures.middle(way[form]), _cores(result))}."


def _ahead(result: Result) -> Iterator[str]:
    """Others with a higher rate than Millrace or the mirror, and by how much."""
    notes = _notes()["ahead"]
    ways = dict(_ways(result))
    for name, way in ways.items():
        ours = ways.get("millrace-table" if name == "spark-iceberg" else "millrace")
        if ours is None or name.startswith("millrace"):
            continue
        for what, rate in (("per CPU-second", figures.per_cpu), ("per second", figures.per_wall)):
            for form, title in FORMS.items():
                if way[form] and (times := rate(way[form]) / rate(ours[form])) > AHEAD:
                    note = notes.get(name, UNEXPLAINED)
                    yield f"- *{way['title']}*, {title}: {times:.2f} times the records {what}. {note}"
    peer, mirror = (
        figures.outcome(result, "mirror", name) for name in ("mirrormaker", "millrace-mirror-of-kafka")
    )
    if peer is not None and mirror is not None:
        for what, theirs, mine in (
            ("MB/s", figures.mirror_mb_per_s(peer), figures.mirror_mb_per_s(mirror)),
            ("GB per CPU-second", 1 / figures.mirror_cpu_per_gb(peer), 1 / figures.mirror_cpu_per_gb(mirror)),
            ("as little memory", 1 / peer["peak_rss"], 1 / mirror["peak_rss"]),
        ):
            if theirs / mine > AHEAD:
                note = notes.get("mirrormaker", UNEXPLAINED)
                yield f"- *{peer['title']}*: {theirs / mine:.2f} times, {what}. {note}"


def _data(result: Result) -> str:
    data = result.get("load", {}).get("data")
    if not data:
        return "Not measured."
    return (
        f"{data['messages']:,} PageView messages, all different, in {data['batches']:,} batches of zstd"
        f" ({data['bytes'] / 1e6:,.0f} MB, {data['bytes'] / data['messages']:.0f} bytes a message) in"
        f" {PARTITIONS} partitions, their times rising over {HOURS} hours."
    )


def _loads(result: Result, form: str) -> str:
    rows = []
    for _, way in _ways(result):
        if not (runs := way[form]):
            continue
        run = figures.middle(runs)
        rows.append(
            [
                way["title"],
                f"{figures.per_cpu(runs):,.0f}",
                f"{figures.per_wall(runs):,.0f}",
                _median_and_range(runs, "cpu_s"),
                _median_and_range(runs, "wall_s"),
                f"{run['broker_cpu_s']:.2f}",
                f"{run['output_bytes'] / 1e6:,.0f}",
                f"{run['files']:,}",
                f"{run['peak_rss'] / 1e6:,.0f}",
            ]
        )
    head = ["way", "rows/CPU-s", "rows/s", "CPU s", "wall s", "broker CPU s", "written MB", "files"]
    return table([*head, "peak memory MB"], rows)


def _median_and_range(runs: figures.Runs, what: str) -> str:
    """`14.5 (14.1 to 15.2)`."""
    least, most = min(run[what] for run in runs), max(run[what] for run in runs)
    return f"{figures.middle(runs, what)[what]:.1f} ({least:.1f} to {most:.1f})"


def _groups(result: Result) -> str:
    rows = []
    for _, way in _ways(result):
        if not way["warm"]:
            continue
        run = figures.middle(way["warm"])
        used = [f"{run['groups'].get(group, 0):.1f}" for group in GROUPS]
        rows.append([way["title"], *used, figures.bottleneck(run, _cores(result))])
    return table(["way", *GROUPS, "bottleneck (cores used)"], rows)


def _raw(result: Result) -> str:
    found = figures.outcome(result, "load", "raw") or {}
    rows = [
        [
            name,
            f"{limit['rows']:,.0f}",
            f"{limit['rows'] / limit['cpu_s']:,.0f}",
            f"{limit['rows'] / limit['wall_s']:,.0f}",
            f"{limit['broker_cpu_s']:.2f}" if "broker_cpu_s" in limit else "-",
            f"{limit['peak_rss'] / 1e6:,.0f}",
        ]
        for name, limit in found.get("limits", {}).items()
    ]
    return table(["part", "records", "records/CPU-s", "records/s", "broker CPU s", "peak memory MB"], rows)


def _decoder(result: Result) -> str:
    found = figures.outcome(result, "decoder", "bench-decode") or {}
    rows = [
        [schema, what, f"{rate:.2f}"]
        for schema, rates in found.get("rates", {}).items()
        for what, rate in rates.items()
    ]
    return table(["schema", "what", "M records/CPU-s"], rows)


def _waiting(result: Result) -> str:
    for name in result.get("mirror", {}):
        if (found := figures.outcome(result, "mirror", name)) is not None:
            return f"{found['data_bytes'] / 1e9:.2f} GB, {found['records']:,} PageView messages,"
    return "Data,"


def _mirror(result: Result) -> str:
    rows = []
    for name in result.get("mirror", {}):
        found = figures.outcome(result, "mirror", name)
        if found is None:
            continue
        other = found["target_cpu_s"] > 0
        rows.append(
            [
                found["title"],
                f"{figures.mirror_mb_per_s(found):,.0f}",
                f"{found['records'] * found['part'] / found['seconds']:,.0f}",
                f"{figures.mirror_cpu_per_gb(found):.2f}",
                f"{figures.mirror_cpu_per_gb(found, with_target=True):.2f}" if other else "the same process",
                f"{found['life_cpu_s'] / found['data_bytes'] * 1e9:.2f}",
                f"{found['origin_cpu_s'] / (found['data_bytes'] * found['part']) * 1e9:.2f}",
                figures.mirror_bottleneck(found, _cores(result)),
                f"{found['peak_rss'] / 1e6:,.0f}",
            ]
        )
    head = ["mirror", "MB/s", "records/s", "CPU s/GB", "and its target broker", "with start-up"]
    return table([*head, "origin CPU s/GB", "bottleneck (cores used)", "peak memory MB"], rows)
