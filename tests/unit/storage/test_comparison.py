"""Replicas' directories compared from outside: every byte that differs is found, and where it stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.config import LogConfig
from millrace.errors import MillraceError
from millrace_broker.storage.comparison import Comparison, compare
from millrace_broker.storage.partition_log import PartitionLog
from millrace_commands.log import log
from tests.unit.storage.logs import Clock, appended, batch, log_files

NAME = "clicks-0-" + "0" * 32


@pytest.fixture
def brokers(tmp_path: Path) -> list[Path]:
    """Three log directories with the same partition of several files."""
    for number in (1, 2, 3):
        directory = tmp_path / f"broker-{number}" / NAME
        directory.mkdir(parents=True)
        written = PartitionLog(directory, LogConfig(segment_bytes=4096), Clock())
        for text in range(60):
            appended(written, batch(value=b"%d" % text * 50))
        written.publish(written.flush())
        written.close()
    return [tmp_path / f"broker-{number}" for number in (1, 2, 3)]


def only(brokers: list[Path]) -> Comparison:
    (found,) = compare(brokers)
    return found


def files(broker: Path) -> list[Path]:
    return log_files(broker / NAME)


def test_replicas_that_are_the_same_are_compared_to_their_committed_end(brokers: list[Path]) -> None:
    found = only(brokers)
    assert len(files(brokers[0])) > 2
    assert (found.partition, found.difference, found.start) == (NAME, None, 0)
    assert found.end == sum(path.stat().st_size for path in files(brokers[0])) > 0
    with files(brokers[2])[-1].open("ab") as behind:
        behind.write(b"not committed yet")
    assert only(brokers) == found


@pytest.mark.parametrize("at", [0, 1, 4000, 5000, -1])
def test_the_first_byte_that_differs_is_found_with_its_file(brokers: list[Path], at: int) -> None:
    position = only(brokers).end + at if at < 0 else at
    path = [path for path in files(brokers[2]) if int(path.stem) <= position][-1]
    in_file = position - int(path.stem)
    content = bytearray(path.read_bytes())
    content[in_file] ^= 1
    path.write_bytes(content)
    first = only(brokers).difference
    assert first is not None
    assert (first.position, first.reason) == (position, "the bytes differ")
    assert first.files == ((brokers[0] / NAME / path.name, in_file), (path, in_file))


def test_a_missing_end_and_a_missing_file_are_differences(brokers: list[Path]) -> None:
    last, middle = files(brokers[1])[-1], files(brokers[1])[1]
    size = last.stat().st_size
    last.write_bytes(last.read_bytes()[:-1])
    first = only(brokers).difference
    assert first is not None
    assert (first.position, first.reason) == (int(last.stem) + size - 1, "bytes are missing")
    middle.unlink()
    first = only(brokers).difference
    assert first is not None
    assert first.position == int(middle.stem)


def test_what_one_replica_has_dropped_is_not_compared(brokers: list[Path]) -> None:
    oldest, second, *_ = files(brokers[1])
    oldest.unlink()
    found = only(brokers)
    assert (found.difference, found.start) == (None, int(second.stem))


def test_directories_without_a_common_partition_and_one_without_a_checkpoint_are_refused(
    brokers: list[Path],
) -> None:
    with pytest.raises(MillraceError, match="no two of these directories hold the same partition"):
        list(compare([brokers[0], brokers[0]]))
    (brokers[0] / NAME / "checkpoint").unlink()
    with pytest.raises(MillraceError, match="no readable checkpoint"):
        list(compare(brokers))


def test_the_command_says_where_and_exits_with_1(brokers: list[Path]) -> None:
    arguments = ["compare", *map(str, brokers)]
    same = CliRunner().invoke(log, arguments)
    assert (same.exit_code, "all the same" in same.output) == (0, True)
    path = files(brokers[1])[1]
    path.write_bytes(b"x" + path.read_bytes()[1:])
    differs = CliRunner().invoke(log, arguments)
    assert isinstance(differs.exception, MillraceError)
    assert f"position {int(path.stem)}: the bytes differ" in differs.output
    assert f"{path}, byte 0" in differs.output
    (line,) = CliRunner().invoke(log, [*arguments, "--json"]).output.splitlines()
    told = json.loads(line)
    assert (told["partition"], told["difference"]["position"]) == (NAME, int(path.stem))
    assert told["difference"]["files"][1] == {"file": str(path), "byte": 0}
