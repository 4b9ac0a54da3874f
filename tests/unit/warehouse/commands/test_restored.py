"""A topic's folder that was put back from an older copy is refused by whoever asks the auditor."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.errors import MillraceError
from millrace_audit.answer import Completeness, NewestLoad
from millrace_warehouse.commands import auditor
from millrace_warehouse.commands.upkeep import verify
from millrace_warehouse.history.layout import read_load
from millrace_warehouse.history.restored import check_not_restored
from tests.published import TOPIC, Warehouse, warehouse

TEN = "2015-05-17T10"
AUDITOR = "http://127.0.0.1:1"


@pytest.fixture
def w(tmp_path: Path) -> Iterator[Warehouse]:
    with warehouse(tmp_path / "w") as made:
        made.load({TEN: 20})
        shutil.copytree(made.topic, tmp_path / "copy")
        made.load({TEN: 40})
        yield made


def put_back(w: Warehouse) -> None:
    shutil.rmtree(w.topic)
    shutil.copytree(w.folder.parent / "copy", w.topic)


def counted(w: Warehouse) -> NewestLoad:
    """Newest load as an auditor names it that has counted all."""
    newest = read_load(w.stored, 2)
    return NewestLoad(newest.load, newest.sha256)


def test_a_folder_that_is_as_new_as_what_was_counted_or_newer_passes(w: Warehouse) -> None:
    check_not_restored(w.stored, None)
    check_not_restored(w.stored, counted(w))
    newest = counted(w)
    w.load({TEN: 1})
    check_not_restored(w.stored, newest)


def test_a_folder_without_the_newest_counted_load_is_refused_with_the_command_that_goes_on(
    w: Warehouse,
) -> None:
    newest = counted(w)
    put_back(w)
    with pytest.raises(MillraceError, match=r"was counted by the auditor and is gone: was .* older copy"):
        check_not_restored(w.stored, newest)


def test_a_load_that_was_made_again_under_the_same_number_is_refused(w: Warehouse) -> None:
    newest = counted(w)
    put_back(w)
    w.load({TEN: 30})
    with pytest.raises(MillraceError, match=f"is not the load .*`millrace audit {TOPIC} --replace-loads"):
        check_not_restored(w.stored, newest)


def test_verify_with_an_auditor_names_the_folder_that_was_put_back(
    w: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = counted(w)

    def completeness(url: str, topic: str, start: datetime, end: datetime) -> Completeness:
        return Completeness(
            topic, start, end, "unknown", None, [], applied_at=datetime.now(UTC), newest_load=newest, hours=[]
        )

    monkeypatch.setattr(auditor, "completeness", completeness)
    words = ["--warehouse", str(w.folder), "--auditor", AUDITOR]
    assert CliRunner().invoke(verify, words).exit_code == 0
    put_back(w)
    refused = CliRunner().invoke(verify, words)
    assert isinstance(refused.exception, MillraceError)
    assert "loads/0000000002.json was counted by the auditor and is gone" in str(refused.exception)
    assert CliRunner().invoke(verify, ["--warehouse", str(w.folder)]).exit_code == 0, "alone it cannot know"


def test_verify_with_an_auditor_that_does_not_answer_says_so(w: Warehouse) -> None:
    refused = CliRunner().invoke(verify, ["--warehouse", str(w.folder), "--auditor", AUDITOR])
    assert isinstance(refused.exception, MillraceError)
    assert "no auditor" in str(refused.exception)
