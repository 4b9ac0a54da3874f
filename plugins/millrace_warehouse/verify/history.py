"""Proof of history: an unbroken chain of loads and editions, each in the ledger and within the two laws.

Reads manifests, the ledger, schemas and plans, and no data file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from millrace.errors import MillraceError
from millrace_warehouse.history import layout, schemas
from millrace_warehouse.history.erasures import read_done, recorded, stale_reason
from millrace_warehouse.history.ledger import read_entry
from millrace_warehouse.history.manifest import LoadManifest, check_erased, check_follows, check_law, decode
from millrace_warehouse.history.plan import Plan
from millrace_warehouse.load.reload import check_same_offsets
from millrace_warehouse.verify.check import Check

_LOAD = r"\d{10}\.json|" + layout.HEAD


@dataclass(slots=True)
class History:
    """A topic's loads and editions, as far as they can be read."""

    manifests: dict[tuple[int, int], LoadManifest] = field(default_factory=dict)
    """Manifests by load and edition."""
    editions: dict[int, list[int]] = field(default_factory=dict)
    """Load -> its editions, the first included, ascending."""

    def newest_of(self, load: int) -> LoadManifest | None:
        """Return the newest edition of a load, or None when it cannot be read."""
        return self.manifests.get((load, self.editions[load][-1]))


def check_history(check: Check) -> History:
    """Check the loads of a topic, then their editions, schemas and plans."""
    history = History()
    _check_loads(check, history)
    _check_editions(check, history)
    check.report.loads = len(history.manifests)
    newest = [manifest for manifest in map(history.newest_of, history.editions) if manifest is not None]
    check.report.rows = sum(manifest.rows for manifest in newest)
    _check_schemas(check, history)
    _check_erasures(check, history)
    _note_unfinished(check, newest[-1] if newest else None)
    _check_strays(check)
    return history


def _check_strays(check: Check) -> None:
    """Report foreign files in the topic's folder, among the loads or among the editions."""
    topic = check.topic.name
    loads, editions = layout.Folder.LOADS.path(topic), layout.Folder.EDITIONS.path(topic)
    ours: dict[str, str | re.Pattern[str]] = {
        topic: "|".join(layout.Folder),
        loads: _LOAD,
        editions: layout.EDITION,
    }
    for folder, pattern in ours.items():
        for name in check.storage.names(folder):
            if not re.fullmatch(pattern, name):
                check.problem(f"{folder}/{name} is not a file of Millrace: move it away")


def _check_loads(check: Check, history: History) -> None:
    topic = check.topic.name
    # In this order: a manifest exists before its entry in the ledger.
    recorded = check.recorded(layout.Folder.LOADS)
    numbers = layout.load_numbers(check.topic)
    before: LoadManifest | None = None
    count = check.count("loads", len(numbers), "read")
    for number in numbers:
        history.editions[number] = [1]
        path = layout.load_path(topic, number)
        if path not in recorded:
            check.unrecorded(path, newest=number == numbers[-1])
        manifest = check.read(LoadManifest, path)
        if manifest is not None:
            history.manifests[number, 1] = manifest
            problems = _law(check, manifest, number, 1)
            if before is not None or number == 1:
                problems += check_follows(manifest, before)
            check.problem(*(f"{path}: {problem}" for problem in problems))
            count.add(records=manifest.rows)
        before = manifest
    missing = {layout.load_path(topic, number): number for number in range(1, max(numbers, default=0) + 1)}
    missing |= {path: int(path[-15:-5]) for path in recorded if path[-15:-5].isdigit()}
    for path, number in sorted(missing.items()):
        if number not in history.editions:
            check.problem(f"{path} is missing{_describe_missing(check, history, path, number)}")


def _law(check: Check, manifest: LoadManifest, load: int, edition: int) -> list[str]:
    problems = check_law(manifest)
    if (manifest.topic, manifest.load, manifest.edition) != (check.topic.name, load, edition):
        problems.insert(
            0, f"it is the manifest of {manifest.topic}, load {manifest.load}, edition {manifest.edition}"
        )
    return problems


def _describe_missing(check: Check, history: History, path: str, number: int) -> str:
    """Describe a missing load's rows and offsets, from its ledger entry or else the neighbouring loads."""
    try:
        entry = read_entry(check.storage, path)
    except MillraceError:
        entry = None
    if entry is not None:
        ranges = [f"{check.topic}-{part.partition} [{part.start}, {part.end})" for part in entry.offsets]
        return f" with {entry.rows} rows: offsets {', '.join(ranges)}"
    after = history.manifests.get((number + 1, 1))
    before = history.manifests.get((number - 1, 1))
    ends = before.ends if before is not None else {}
    ranges = [
        f"{check.topic}-{part.partition} [{ends.get(part.partition, 0)}, {part.start})"
        for part in (after.partitions if after is not None else ())
        if part.start > ends.get(part.partition, 0)
    ]
    return f": offsets {', '.join(ranges) or 'unknown'}"


def _check_editions(check: Check, history: History) -> None:
    """Check that every later edition names its predecessor, has the same offsets and keeps the laws."""
    folder = layout.Folder.EDITIONS.path(check.topic.name)
    recorded = check.recorded(layout.Folder.EDITIONS)
    found = {f"{folder}/{name}": _edition(name) for name in check.storage.names(folder)}
    for path in sorted(recorded - found.keys()):
        check.problem(f"{path} is missing: an edition that was committed is gone")
    numbers = sorted((*pair, path) for path, pair in found.items() if pair is not None)
    newest = {load: path for load, _, path in numbers}
    for load, edition, path in numbers:
        if load not in history.editions:
            check.problem(f"{path} is an edition of a load that is not there")
            continue
        history.editions[load].append(edition)
        if path not in recorded:
            check.unrecorded(path, newest=newest[load] == path)
        manifest = check.read(LoadManifest, path)
        if manifest is not None:
            history.manifests[load, edition] = manifest
            problems = _law(check, manifest, load, edition)
            problems += _replaces(manifest, history.manifests.get((load, edition - 1)))
            check.problem(*(f"{path}: {problem}" for problem in problems))


def _edition(name: str) -> tuple[int, int] | None:
    match = layout.EDITION.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def _replaces(manifest: LoadManifest, before: LoadManifest | None) -> list[str]:
    if before is None:
        return ["the edition that it replaces is not there"]
    problems = []
    if manifest.previous != before.sha256:
        problems.append("it replaces another edition than the one that is there")
    if manifest.erases:
        problems += check_erased(manifest, before)
    try:
        check_same_offsets(manifest, before)
    except (MillraceError, KeyError) as error:
        problems.append(f"it does not hold the offsets of the edition before: {error}")
    return problems


def _check_schemas(check: Check, history: History) -> None:
    """Report schemas that are missing or broken, and loads with an older schema than the load before."""
    used = {manifest.schema for manifest in history.manifests.values()}
    there = schemas.schema_numbers(check.topic)
    before = None
    for number in range(1, max([*used, *there], default=0) + 1):
        try:
            table_schema = schemas.read_schema(check.topic, number)
        except MillraceError as error:
            check.problem(str(error))
            break
        path = layout.schema_path(check.topic.name, number)
        for problem in schemas.check_follows(table_schema, before):
            check.problem(f"{path}: {problem}; restore it from a copy")
        before = table_schema
    newest = 0
    for (load, edition), manifest in sorted(history.manifests.items()):
        if edition == 1 and manifest.schema < newest:
            path = layout.load_path(check.topic.name, load)
            check.problem(
                f"{path}: its columns are those of schema {manifest.schema}, before it was {newest}"
            )
        newest = max(newest, manifest.schema)


def _check_erasures(check: Check, history: History) -> None:
    """Report erased rows without an erasure, and editions that an erasure missed; note unfinished ones."""
    topic = check.topic
    try:
        known = {erasure.id: erasure for erasure in recorded(topic)}
        for manifest in history.manifests.values():
            named = {manifest.erases, *(rows.erasure for rows in manifest.erased)} - {None}
            if unknown := sorted(str(name) for name in named - known.keys()):
                path = layout.manifest_path(manifest)
                check.problem(f"{path}: erasure {unknown[0]} took rows out, but is not recorded")
        for load in history.editions:
            newest = history.newest_of(load)
            if newest is not None and (why := stale_reason(topic, newest)):
                check.problem(why)
        for id_ in known:
            if read_done(topic, id_) is None:
                check.note(f"{topic}: erasure {id_} is not finished: run `millrace erase {topic} --id {id_}`")
    except MillraceError as error:
        check.problem(str(error))


def _note_unfinished(check: Check, newest: LoadManifest | None) -> None:
    folder = layout.Folder.PLANS.path(check.topic.name)
    for name in check.storage.names(folder):
        try:
            plan = decode(Plan, check.storage.read(f"{folder}/{name}"), f"{folder}/{name}")
        except MillraceError as error:
            check.problem(str(error))
            continue
        covered = newest is not None and newest.covers(plan.topic_id, plan.end_offsets)
        if any(plan.end_offsets.values()) and not covered:
            check.note(f"run {plan.run_id} is unfinished: no load reaches the end it planned")
