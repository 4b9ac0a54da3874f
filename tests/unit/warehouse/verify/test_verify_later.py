"""Verification of what loads and hours became later: promotions, bases, and what is said to have expired."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from millrace_warehouse.history.editions import ExpiredEntry, expired_path
from millrace_warehouse.table.publish import publish_hours

from millrace_warehouse.history.manifest import HourManifest, decode, encode, sealed
from millrace_warehouse.history.schemas import PinnedId, promote
from millrace_warehouse.load.load import load_topic
from millrace_warehouse.load.task import Source
from millrace_warehouse.load.writing import Pinned
from millrace_warehouse.storage.filesystem import LocalFilesystem
from tests.unit.warehouse.interleaved import DECODERS, HOURS, Scenario
from tests.unit.warehouse.memory_log import SCHEMA, START, TOPIC, load_run

WIDER = {
    **SCHEMA,
    "fields": [*SCHEMA["fields"], {"name": "status", "type": ["null", "int"], "default": None}],
}
WIDER_ID = 20
REVISION = "date=2015-05-17/hour=10/rev=2"


@pytest.fixture
def scene(tmp_path: Path) -> Scenario:
    """One hour in two revisions, the second one made from the first and a late load."""
    scene = Scenario(tmp_path, random.Random(1))
    for _ in range(2):
        scene.log.append_events(0, [START, START + 1])
        scene._load(scene.filesystem())
        publish_hours(scene.hourly_run(scene.filesystem()), TOPIC, HOURS)
    assert scene.problems() == []
    return scene


def rewritten(scene: Scenario, **changes: object) -> None:
    """Revision 2 with other words in its manifest, its hash and its ledger entry made to fit."""
    path = scene.folder / f"{TOPIC}.hourly" / REVISION / "_manifest.json"
    old = decode(HourManifest, path.read_bytes(), "rev=2")
    new = sealed(dataclasses.replace(old, **changes))  # type: ignore[arg-type]
    path.write_bytes(encode(new))
    entry = scene.folder / f"{TOPIC}.hourly" / "_ledger" / f"{REVISION.replace('/', ',')}.json"
    entry.write_text(entry.read_text().replace(old.sha256, new.sha256))


def test_a_revision_without_a_load_that_its_base_had_is_named(scene: Scenario) -> None:
    path = scene.folder / f"{TOPIC}.hourly" / REVISION / "_manifest.json"
    parts = decode(HourManifest, path.read_bytes(), "rev=2").loads
    rewritten(scene, loads=[dataclasses.replace(parts[1], rows=4)])
    assert any(
        "load=0000000001 was in its base, rev=1, and is not in it" in each for each in scene.problems()
    )


def test_a_base_that_is_no_earlier_revision_is_named(scene: Scenario) -> None:
    rewritten(scene, base=2)
    assert any("rev=2 as its base, which is not an earlier one" in each for each in scene.problems())


def test_a_newest_revision_that_is_said_to_have_expired_is_named(scene: Scenario) -> None:
    fs = LocalFilesystem(str(scene.folder))
    table = f"{TOPIC}.hourly"
    manifest = decode(HourManifest, fs.read(f"{table}/{REVISION}/_manifest.json"), "rev=2")
    entry = ExpiredEntry(
        folder=REVISION,
        sha256=manifest.sha256,
        expired="2026-01-01T00:00:00Z",
        rows=4,
        files=1,
        bytes=1,
        revisions={},
    )
    fs.create(expired_path(table, REVISION), encode(entry))
    assert any("has expired and is the newest revision: its rows are gone" in p for p in scene.problems())


def test_a_record_of_expiry_that_is_about_nothing_or_another_folder_is_named(scene: Scenario) -> None:
    fs = LocalFilesystem(str(scene.folder))
    entry = ExpiredEntry(
        folder="load=0000000009",
        sha256="x",
        expired="2026-01-01T00:00:00Z",
        rows=4,
        files=1,
        bytes=1,
        revisions={},
    )
    fs.create(expired_path(TOPIC, "load=0000000009"), encode(entry))
    assert any("has expired, but its manifest should be there" in each for each in scene.problems())
    fs.create(expired_path(TOPIC, "load=0000000001"), encode(entry))
    found = scene.problems()
    assert any("_expired/load=0000000001.json is about" in each for each in found), found


def test_a_record_of_expiry_that_cannot_be_read_is_named(scene: Scenario) -> None:
    fs = LocalFilesystem(str(scene.folder))
    for table, folder in ((TOPIC, "load=0000000001"), (f"{TOPIC}.hourly", REVISION)):
        fs.create(expired_path(table, folder), b"{")
    for path in ("PageView/_expired/load=0000000001.json", "PageView.hourly/_expired/date="):
        assert any(path in problem and "is not JSON" in problem for problem in scene.problems())


def test_a_promotion_that_is_missing_is_named(scene: Scenario) -> None:
    fs = scene.filesystem()
    promotion = promote(fs, TOPIC, WIDER_ID, "a column", {7: SCHEMA, WIDER_ID: WIDER}.get).promotion
    assert promotion is not None
    scene.log.append_events(0, [START])

    def pin(_: str, pinned: PinnedId | None) -> Pinned:
        assert pinned == PinnedId(WIDER_ID, 1)
        return Pinned(Source(lambda: scene.log, DECODERS[0].get, WIDER), WIDER_ID, 1)

    load_topic(load_run(scene.log, scene.folder, "promoted", pin=pin), TOPIC)
    publish_hours(scene.hourly_run(fs), TOPIC, HOURS)
    assert scene.problems() == []
    assert (
        decode(
            HourManifest, fs.read(f"{TOPIC}.hourly/date=2015-05-17/hour=10/rev=3/_manifest.json"), "rev=3"
        ).promotion
        == 1
    )
    (scene.folder / TOPIC / "_promotions" / "0001.json").unlink()
    assert any("promotion 1 of the table's schema is missing" in each for each in scene.problems())
