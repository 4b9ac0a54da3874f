"""`millrace expire` and `verify`: what they take, what they print, how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from millrace.errors import MillraceError
from millrace_warehouse.commands.publishing import compact, publish, tables
from millrace_warehouse.commands.upkeep import erase, expire, promote, verify
from millrace_warehouse.load.load import load_topic
from tests.unit.warehouse.memory_log import TOPIC, filled_log, load_run

EVERYTHING = ["--from", "2015-05-17T10", "--to", "2015-05-17T13"]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """One load of three hours."""
    load_topic(load_run(filled_log(), tmp_path), TOPIC)
    return tmp_path


def publish_all(warehouse: Path) -> None:
    words = [TOPIC, "--unasked", *EVERYTHING, "--warehouse", str(warehouse)]
    assert CliRunner().invoke(publish, words).exit_code == 0


def test_expiry_keeps_what_is_not_published_and_says_why(warehouse: Path) -> None:
    ages = ["--older-than", "0s", "--reader-grace", "0s"]
    words = [TOPIC, "--unasked", "--hour", "2015-05-17T11", "--warehouse", str(warehouse)]
    assert CliRunner().invoke(publish, words).exit_code == 0
    done = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(warehouse), *ages])
    assert done.exit_code == 0, done.exception
    assert "kept: PageView/loads/0000000001.json: 2015-05-17T1" in done.stderr
    assert f"run `millrace publish {TOPIC} --hour 2015-05-17T1" in done.stderr
    publish_all(warehouse)
    tried = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(warehouse), *ages, "--dry-run"])
    assert "would delete" in tried.stdout
    said = CliRunner().invoke(expire, [TOPIC, "--warehouse", str(warehouse), *ages, "--json"])
    # The table names the very files that the load wrote: they are the table's now.
    assert json.loads(said.stdout)["data_files"] == 0


def test_verify_ends_with_a_table_or_with_the_problem(warehouse: Path) -> None:
    publish_all(warehouse)
    good = CliRunner().invoke(verify, ["--warehouse", str(warehouse)])
    assert good.exit_code == 0, (good.output, good.exception)
    assert "180" in good.stdout
    answer = json.loads(
        CliRunner().invoke(verify, ["--warehouse", str(warehouse), "--rows", "--json"]).stdout
    )
    assert answer["ok"] is True
    (topic,) = answer["topics"]
    assert (topic["topic"], topic["rows"], topic["published"]) == (TOPIC, 180, 180)
    gone = next((warehouse / TOPIC / "rows").glob("*/2015-05-17T10-*.parquet"))
    gone.unlink()
    bad = CliRunner().invoke(verify, ["--warehouse", str(warehouse), "--json"])
    assert isinstance(bad.exception, MillraceError)
    assert gone.name in str(bad.exception)
    answer = json.loads(bad.stdout)
    assert answer["ok"] is False
    assert gone.name in answer["topics"][0]["problems"][0]


def test_verify_without_a_catalog_proves_the_loads_alone(warehouse: Path) -> None:
    publish_all(warehouse)
    (warehouse / "catalog.db").unlink()
    done = CliRunner().invoke(verify, ["--warehouse", str(warehouse), "--no-catalog", "--json"])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["topics"][0]["published"] is None


@pytest.mark.parametrize("command", [verify, tables, expire, compact])
def test_what_only_looks_leaves_no_catalog_behind(warehouse: Path, command: Any) -> None:
    words = [TOPIC, "--warehouse", str(warehouse)]
    words += ["--older-than", "0s"] if command is expire else []
    assert CliRunner().invoke(command, words).exit_code < 2
    assert not (warehouse / "catalog.db").exists()


@pytest.mark.parametrize("file_is_gone", [True, False])
def test_a_warehouse_that_is_not_mounted_is_not_taken_for_one_without_loads(
    tmp_path: Path, warehouse: Path, monkeypatch: pytest.MonkeyPatch, file_is_gone: bool
) -> None:
    """Also where the catalog itself has the table's metadata, as a server may."""
    monkeypatch.setattr("millrace_warehouse.publish.catalog.TRIES", 1)
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    there = ["--catalog", "lake", "--warehouse", str(warehouse)]
    assert CliRunner().invoke(publish, [TOPIC, "--unasked", *EVERYTHING, *there]).exit_code == 0
    (warehouse / TOPIC).rename(tmp_path / "elsewhere")
    if not file_is_gone:
        (warehouse / TOPIC).mkdir()
        (tmp_path / "elsewhere" / "table").rename(warehouse / TOPIC / "table")
    for command, words in ((publish, ["--unasked", *EVERYTHING]), (expire, ["--older-than", "0s"])):
        refused = CliRunner().invoke(command, [TOPIC, *words, *there])
        assert isinstance(refused.exception, MillraceError)
        assert "mount the warehouse" in str(refused.exception)


@pytest.mark.parametrize("name", ["owner.json", "00000000000000000000.log"])
def test_a_brokers_folder_is_not_told_to_move_its_logs_away(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    (tmp_path / "PageView-0-abc").mkdir()
    refused = CliRunner().invoke(verify, ["--warehouse", str(tmp_path)])
    assert isinstance(refused.exception, MillraceError)
    assert "is a broker's log directory, not a warehouse: check it with `millrace log verify`" in str(
        refused.exception
    )


@pytest.mark.parametrize("command", [expire, promote, verify])
def test_every_command_s_help_has_an_example(command: Any) -> None:
    assert "Example: millrace" in CliRunner().invoke(command, ["--help"]).stdout


def test_long_upkeep_counts_what_is_done_in_the_log_and_prints_only_json(
    warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_all(warehouse)
    for name in ("EVERY_S", "SHORT_S", "OFTEN_S"):
        monkeypatch.setattr(f"millrace.steps.{name}", 0.0)

    def counted(command: click.Command, *words: str) -> dict[str, str]:
        """Run a command. Return what its last counts name -> their figures."""
        done = CliRunner().invoke(command, [*words, "--warehouse", str(warehouse), "--json"])
        assert done.exit_code == 0, done.exception
        assert json.loads(done.stdout)
        line = r"step: [^:]+: (\d+) of (\1 .+) \(100%\), (?:(.*), )?\d+ s"
        return {each[2]: each[3] for text in done.stderr.splitlines() if (each := re.fullmatch(line, text))}

    proof = counted(verify, "--rows")
    hashed, read = f"8 files of {TOPIC} hashed", (f"1 loads of {TOPIC} read", f"7 files of {TOPIC} read")
    assert proof.keys() == {hashed, *read, f"7 files of {TOPIC} compared with the table"}
    assert all(figures.startswith("180 rows") for figures in proof.values())
    erased = counted(erase, TOPIC, "--where", "url IS NOT NULL", "--all-rows", "--reason", "a test")
    assert erased["1 loads searched"].startswith("180 rows, ")
    assert "1 loads rewritten" in erased
    (files,) = (what for what in erased if what.endswith(" files deleted"))
    assert erased[files].endswith("kB")
