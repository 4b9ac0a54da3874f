"""What the words of a command line mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.errors import ConfigError, MillraceError
from millrace_warehouse.commands.words import absolute_warehouse, parse_age, parse_bytes, parse_hours


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("500MB", 500_000_000), ("2 GiB", 2 << 30), ("3kib", 3072), ("1T", None)]
)
def test_sizes_are_decimal_unless_they_say_otherwise(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(MillraceError):
            parse_bytes(text, "--max-bytes")
    else:
        assert parse_bytes(text, "--max-bytes") == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30d", 2_592_000), ("12h", 43_200), ("90m", 5_400), ("0s", 0)]
)
def test_an_age_has_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text, "--older-than") == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1w", "1.5d"])
def test_what_is_no_age_is_refused_by_the_options_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--older-than .* is not an age like 30d"):
        parse_age(text, "--older-than")


def test_hours_are_named_one_by_one_or_as_an_interval_in_any_zone() -> None:
    assert parse_hours(["2015-05-17T10:59:00Z", "2015-05-17T10"], "", "") == ["2015-05-17T10"]
    assert parse_hours([], "2015-05-17T10:00:00+02:00", "2015-05-17T10:00:00Z") == [
        "2015-05-17T08",
        "2015-05-17T09",
    ]
    assert parse_hours([], "0001-01-01T00", "0001-01-01T01") == ["0001-01-01T00"]


def test_the_hour_of_rows_without_a_time_is_named_by_its_name() -> None:
    assert parse_hours(["none"], "", "") == ["none"]


@pytest.mark.parametrize(
    ("hours", "start", "end", "words"),
    [
        ([], "", "", "give either --hour"),
        (["2015-05-17"], "", "", "names a day: write an hour like 2015-05-17T10"),
        (["2015-05-17T10"], "2015-05-17T10", "", "give either --hour"),
        ([], "2015-05-17T10", "", "give either --hour"),
        (["noon"], "", "", "is not a time like"),
        ([], "2015-05-17T11", "2015-05-17T10", "is not before"),
        ([], "2015-05-17T10", "2015-05-17T10", "is not before"),
        ([], "2015-05-17T10:30", "2015-05-17T12", "--from 2015-05-17T10:30:00+00:00 is not a whole hour"),
        ([], "2015-05-17T10", "2015-05-17T12:00:01", "--to 2015-05-17T12:00:01+00:00 is not a whole hour"),
        ([], "2015-05-17T10:00:00+05:30", "2015-05-18", "--from 2015-05-17T04:30:00+00:00 is not a whole"),
    ],
)
def test_hours_that_make_no_sense_are_one_clear_line(
    hours: list[str], start: str, end: str, words: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_hours(hours, start, end)
    assert words in str(refused.value)


def test_a_local_warehouse_is_the_same_folder_for_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("w", str(tmp_path / "w"), f"file://{tmp_path}/w"):
        assert absolute_warehouse(text, "--warehouse") == str(tmp_path / "w")
    with pytest.raises(ConfigError):
        absolute_warehouse("ftp://host/w", "--warehouse")
