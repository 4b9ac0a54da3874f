"""A power cut behind a publication: what the catalog leads to was on disk before the catalog knew it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from millrace_warehouse.publish.catalog import connect
from millrace_warehouse.storage import open_storage
from tests.kill_rounds import ROUND_S
from tests.loaded import load, offsets, read_again
from tests.support import ROUNDS, Process
from tests.unit.warehouse.load.test_power_cut import Disk
from tests.unit.warehouse.publish.publishing import H10, H11, TOPIC, hours_of, publish_in, table_of


def test_a_power_cut_loses_nothing_of_what_was_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, warehouse = Disk(monkeypatch), tmp_path / "w"
    storage = open_storage(str(warehouse))
    try:
        load(storage, TOPIC, {H10: 3, H11: 2})
        with connect(storage) as catalog:
            publish_in(storage, catalog, H10, H11)
            load(storage, TOPIC, {H10: 2})
            read_again(storage, TOPIC, 1, {H10: 5})
            publish_in(storage, catalog)
        restored = disk.restored(warehouse, tmp_path / "restored")
        # SQLite syncs its file by itself, with calls that this disk does not see.
        shutil.copy(warehouse / "catalog.db", restored / "catalog.db")
        shutil.rmtree(warehouse)
        restored.rename(warehouse)
        with connect(storage) as catalog:
            assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4, 5, 6]
            assert sum(added - removed for _, _, added, removed in hours_of(catalog)) == 7
            assert not publish_in(storage, catalog).published
    finally:
        disk.close()


def test_a_power_cut_before_the_commit_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, warehouse = Disk(monkeypatch), tmp_path / "w"
    storage = open_storage(str(warehouse))
    try:
        load(storage, TOPIC, {H10: 3})
        with connect(storage) as catalog:
            publish_in(storage, catalog, H10)
        before = (warehouse / "catalog.db").read_bytes()
        load(storage, TOPIC, {H10: 2})
        with connect(storage) as catalog:
            publish_in(storage, catalog)
        restored = disk.restored(warehouse, tmp_path / "restored")
        (restored / "catalog.db").write_bytes(
            before
        )  # the row was not on disk yet; the ledger's entry neither
        for entry in sorted((restored / TOPIC / "ledger" / "publications").iterdir())[1:]:
            entry.unlink()
        shutil.rmtree(warehouse)
        restored.rename(warehouse)
        with connect(storage) as catalog:
            assert offsets(table_of(catalog)) == [0, 1, 2]
            assert publish_in(storage, catalog).published
            assert offsets(table_of(catalog)) == [0, 1, 2, 3, 4]
    finally:
        disk.close()


@pytest.mark.soak
def test_a_power_cut_of_a_real_file_system_is_all_or_nothing_the_catalog_included(tmp_path: Path) -> None:
    if os.geteuid() or not Path("/dev/loop-control").exists() or shutil.which("mkfs.ext4") is None:
        pytest.skip("only root mounts an ext4 in a loop device")
    process = Process([str(tmp_path), str(ROUNDS)], module="tests.power_cuts")
    assert process.wait(timeout_s=ROUND_S * (1 + ROUNDS)) == 0, process.output
    print(process.output)
