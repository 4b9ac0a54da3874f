"""`millrace log dump`, `verify` and `repair` on real log directories."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from millrace.config import LogConfig
from millrace.errors import CorruptMessage, MillraceError
from millrace.records import split_batches
from millrace_broker.storage import inspection
from millrace_broker.storage.inspection import Damage, InspectedBatch, inspect_partition
from millrace_broker.storage.log_directory import LogDirectory
from millrace_broker.storage.partition_log import PartitionLog
from millrace_commands.log import log as command
from tests.unit.storage.logs import (
    ORIGIN,
    Clock,
    appended,
    batch,
    consume,
    crowded_batch,
    log_files,
    origin_batches,
    position,
    slice_bytes,
)

TOPIC_ID = UUID(int=5)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def json_lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@dataclass
class Logs:
    path: Path
    bases: list[int]

    def open(self) -> LogDirectory:
        return LogDirectory.open(self.path, LogConfig(segment_bytes=1500), Clock())

    @property
    def partition(self) -> Path:
        return self.path / f"t-0-{TOPIC_ID.hex}"

    def reopen(self) -> tuple[LogDirectory, PartitionLog]:
        logs = self.open()
        return logs, logs.partition("t", 0, TOPIC_ID)

    def damage(self, at: int, count: int = 1) -> Path:
        """Change bytes at a log position; return the file."""
        path = [path for path in log_files(self.partition) if int(path.stem) <= at][-1]
        data = bytearray(path.read_bytes())
        for index in range(at - int(path.stem), at - int(path.stem) + count):
            data[index] ^= 0x55
        path.write_bytes(data)
        return path


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    """A closed log directory: ten batches in t-0, one of them crowded, and a mirrored partition t-1."""
    made = Logs(tmp_path / "data", [])
    opened, log = made.reopen()
    batches = [batch(4, b"x" * 50, producer=3, sequence=4 * index) for index in range(10)]
    batches[3] = crowded_batch(500)
    made.bases += [result.base_offset for result in appended(log, *batches[:3], batches[3])]
    made.bases += [
        appended(log, batch(4, b"x" * 50, producer=4, sequence=4 * index))[0].base_offset
        for index in range(6)
    ]
    mirrored = opened.partition("t", 1, TOPIC_ID)
    mirrored.append_mirrored(ORIGIN, None, origin_batches([2, 3]), position(5, batches=2, records=5))
    opened.close()
    return made


def test_dump_lists_every_batch_of_every_partition(logs: Logs) -> None:
    found = json_lines(run("dump", logs.path, "--json"))
    kinds = [each["kind"] for each in found if each["partition"].startswith("t-0")]
    assert kinds == ["data"] * 4 + ["filler"] + ["data"] * 6
    assert [each["position"] for each in found[:4]] == logs.bases[:4]
    assert found[0]["records"] == 4
    assert found[0]["producer_id"] == 3
    mirror = [each for each in found if each["kind"] == "position"]
    assert [each["mirror"]["next_offset"] for each in mirror] == [0, 5]
    table = run("dump", logs.path)
    assert table.exit_code == 0
    assert "dc1 PageView-3 up to 5" in table.stdout
    assert "producer 3/0 sequence 4" in table.stdout


def test_one_partition_can_be_named_instead(logs: Logs) -> None:
    assert {each["partition"] for each in json_lines(run("dump", logs.partition, "--json"))} == {
        logs.partition.name
    }


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_logs_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    for action in ("dump", "verify", "repair"):
        result = run(action, tmp_path / name)
        assert isinstance(result.exception, MillraceError)
        assert str(tmp_path / name) in str(result.exception)


def test_verify_passes_on_an_intact_directory(logs: Logs) -> None:
    result = run("verify", logs.path)
    assert result.exit_code == 0
    assert "15 batches" in result.stdout
    assert "all intact" in result.stdout
    assert json_lines(run("verify", logs.path, "--json"))[-1]["damaged"] == 0


@pytest.mark.parametrize("offset_in_batch", [0, 7, 9, 16, 18, 22, 40, 61, 200])
def test_verify_names_file_and_position_of_a_damaged_batch(logs: Logs, offset_in_batch: int) -> None:
    path = logs.damage(logs.bases[5] + offset_in_batch)
    result = run("verify", logs.path)
    assert isinstance(result.exception, MillraceError)
    line = result.stdout.splitlines()[0]
    assert f"{path}, position {logs.bases[5]}," in line
    assert len(result.stdout.splitlines()) == 1, "one damage is not reported as several"


def test_verify_uses_the_second_crc_implementation(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.records.header.crc32c", lambda data: 0)
    assert run("verify", logs.path).exit_code == 0
    monkeypatch.setattr(inspection, "crcmod_crc", lambda data: 0)
    assert run("verify", logs.path).exit_code == 1


def test_verify_names_a_missing_segment_and_a_short_one(logs: Logs) -> None:
    files = log_files(logs.partition)
    assert len(files) >= 3
    files[1].unlink()
    result = run("verify", logs.path)
    assert result.exit_code == 1
    assert f"{files[1]}, position {int(files[1].stem)}" in result.stdout
    os.truncate(files[-1], files[-1].stat().st_size - 5)
    result = run("verify", logs.path)
    assert len(result.stdout.splitlines()) == 3  # the missing file, the torn batch, the missing bytes


def test_bytes_above_the_checkpoint_are_named_but_no_failure(logs: Logs) -> None:
    with open(log_files(logs.partition)[-1], "ab") as file:
        file.write(b"unfinished")
    result = run("verify", logs.path)
    assert result.exit_code == 0
    assert "above the checkpoint" in result.stdout


def test_verify_and_dump_work_beside_a_running_broker_and_repair_refuses(logs: Logs) -> None:
    opened, log = logs.reopen()
    appended(log, batch(1))
    assert run("verify", logs.path).exit_code == 0
    assert run("dump", logs.path).exit_code == 0
    for path in (logs.path, logs.partition):
        result = run("repair", path)
        assert isinstance(result.exception, MillraceError)
        assert "in use by another broker" in str(result.exception)
    opened.close()


@pytest.mark.parametrize("deleted", [1, 2, None])
def test_what_retention_or_a_deletion_takes_during_an_inspection_is_no_damage(
    logs: Logs, deleted: int | None
) -> None:
    files = log_files(logs.partition)
    assert len(files) > 2
    found = inspect_partition(logs.partition)
    entries = [next(found)]
    for path in files[:deleted]:
        path.unlink()
    entries += found
    assert all(isinstance(entry, InspectedBatch) for entry in entries)
    read = {entry.path for entry in entries}
    assert read == {files[0], *(files[deleted:] if deleted else ())}, "the open file is read to its end"


@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("offset_in_batch", [9, 65])
def test_repair_replaces_a_damaged_batch_and_every_other_message_stays(
    logs: Logs, index: int, offset_in_batch: int
) -> None:
    opened, log = logs.reopen()
    before = {header.base_offset for header in consume(log, 0)}
    mark = log.high_watermark
    opened.close()
    path = logs.damage(logs.bases[index] + offset_in_batch)
    result = run("repair", logs.path)
    assert result.exit_code == 0, result.output
    assert f"{path}, position {logs.bases[index]}," in result.stdout
    assert f"lost offsets {logs.bases[index]} to " in result.stdout
    assert run("verify", logs.path).exit_code == 0
    assert run("repair", logs.path).stdout == "nothing to repair\n"
    opened, log = logs.reopen()
    assert {header.base_offset for header in consume(log, 0)} == before - {logs.bases[index]}
    assert log.high_watermark >= mark
    appended(log, batch(1))
    log.publish(log.flush())
    assert len(list(consume(log, 0))) == len(before)
    opened.close()


def test_repair_tells_the_exact_offsets_when_only_the_payload_is_damaged(logs: Logs) -> None:
    logs.damage(logs.bases[1] + 70)
    lost = json_lines(run("repair", logs.path, "--json"))[0]["lost_offsets"]
    assert lost == [logs.bases[1], logs.bases[1] + 3]


def test_repair_of_a_damaged_filler_loses_nothing(logs: Logs) -> None:
    logs.damage(logs.bases[3] + len(crowded_batch(500)) + 80)
    result = run("repair", logs.path)
    assert result.exit_code == 0
    assert "lost" not in result.stdout
    assert run("verify", logs.path).exit_code == 0
    opened, log = logs.reopen()
    assert [header.base_offset for header in consume(log, 0)] == logs.bases
    opened.close()


def test_repair_survives_the_loss_of_the_checkpoint(logs: Logs) -> None:
    logs.damage(logs.bases[-1] + 70)
    assert run("repair", logs.path).exit_code == 0
    opened, log = logs.reopen()
    mark = log.high_watermark
    opened.close()
    (logs.partition / "checkpoint").unlink()
    opened, log = logs.reopen()
    assert log.high_watermark == mark
    assert len(list(consume(log, 0))) == len(logs.bases) - 1
    opened.close()


def test_before_the_repair_readers_are_told_and_after_it_they_get_past(logs: Logs) -> None:
    logs.damage(logs.bases[6] + 70)
    opened, log = logs.reopen()
    with pytest.raises(CorruptMessage):
        log.read(logs.bases[6], 100)
    opened.close()
    run("repair", logs.path)
    opened, log = logs.reopen()
    served = [header for header, _ in split_batches(slice_bytes(log.read(logs.bases[6], 1 << 20)))]
    assert served[0].is_control
    assert served[0].next_offset == logs.bases[7] == served[1].base_offset
    opened.close()


def test_a_stretch_too_short_for_a_control_batch_is_refused_with_the_way_out(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "data", [])
    opened, log = logs.reopen()
    tiny = appended(log, batch(3), batch(1, b""), batch(3))[1]
    opened.close()
    logs.damage(tiny.base_offset + 30)
    result = run("repair", logs.path)
    assert isinstance(result.exception, MillraceError)
    assert f"seek consumers to {tiny.end}" in str(result.exception)
    assert "--give-up-neighbours" in str(result.exception)


@pytest.mark.parametrize(
    ("before", "behind", "lost"),
    [
        ([batch(3)], [batch(3), batch(2)], "behind"),
        ([batch(3)], [crowded_batch(500), batch(2)], "behind"),
        ([batch(2), batch(3)], [], "before"),
        ([batch(2), crowded_batch(500)], [], "before"),
    ],
    ids=[
        "the next batch",
        "the next batch and its filler",
        "the last batch",
        "the last batch and its filler",
    ],
)
def test_a_short_stretch_goes_with_the_batch_beside_it_when_the_operator_says_so(
    tmp_path: Path, before: list[bytearray], behind: list[bytearray], lost: str
) -> None:
    logs = Logs(tmp_path / "data", [])
    opened, log = logs.reopen()
    stored = appended(log, *before, batch(1, b""), *behind)
    bases, tiny = [each.base_offset for each in stored], stored[len(before)].base_offset
    log.publish(log.flush())
    end = log.high_watermark
    opened.close()
    logs.damage(tiny + 30)
    result = run("repair", logs.path, "--give-up-neighbours", "--json")
    assert result.exception is None, result.exception
    (repaired,) = json_lines(result)
    given_up = bases[bases.index(tiny) + (1 if lost == "behind" else -1)]
    assert repaired["position"] == min(tiny, given_up)
    assert repaired["lost_offsets"][0] == min(tiny, given_up)
    assert run("verify", logs.path).exception is None
    opened, log = logs.reopen()
    assert log.high_watermark >= end
    served = {header.base_offset for header in consume(log, 0) if not header.is_control}
    assert served == set(bases) - {tiny, given_up}, "every other message is where it was"
    opened.close()


def test_a_mirrored_partition_never_gives_up_a_position(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "data", [])
    opened = logs.open()
    mirrored = opened.partition("t", 0, TOPIC_ID)
    tiny = bytes(batch(1, b""))
    mirrored.append_mirrored(ORIGIN, None, [tiny], position(1, batches=1, records=1))
    opened.close()
    (damaged,) = [
        f for f in inspect_partition(logs.partition) if isinstance(f, InspectedBatch) and f.kind == "data"
    ]
    logs.damage(damaged.position + 30)
    result = run("repair", logs.path, "--give-up-neighbours")
    assert isinstance(result.exception, MillraceError)
    assert "too few" in str(result.exception)


def test_repair_does_not_restore_missing_files(logs: Logs) -> None:
    log_files(logs.partition)[1].unlink()
    result = run("repair", logs.path)
    assert isinstance(result.exception, MillraceError)
    assert "restore the file" in str(result.exception)


def test_retention_still_counts_from_the_last_append_after_a_repair(logs: Logs) -> None:
    path = logs.damage(logs.bases[1] + 70)
    os.utime(path, (1000, 1000))
    run("repair", logs.path)
    assert path.stat().st_mtime == 1000


def entries(directory: Path) -> Iterator[InspectedBatch]:
    for finding in inspect_partition(directory):
        assert not isinstance(finding, Damage)
        yield finding


def test_a_repaired_batch_is_called_so(logs: Logs) -> None:
    logs.damage(logs.bases[1] + 70)
    run("repair", logs.path)
    assert [entry.kind for entry in entries(logs.partition)][:3] == ["data", "repaired", "data"]


def test_help_shows_an_example() -> None:
    for action in ((), ("dump",), ("verify",), ("repair",)):
        assert "Example: millrace log" in run(*action, "--help").stdout
