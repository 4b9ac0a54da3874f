"""The hours that a command line names."""

from __future__ import annotations

import pytest

from millrace.errors import ConfigError
from millrace_warehouse.commands.hours import parse_hours


def test_hours_are_named_one_by_one_or_as_an_interval_in_any_zone() -> None:
    assert parse_hours(["2015-05-17T12:00:00+02:00", "2015-05-17T10"], "", "") == ["2015-05-17T10"]
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
        (["2015-05-17T10:30"], "", "", "--hour 2015-05-17T10:30:00+00:00 is not a whole hour"),
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
