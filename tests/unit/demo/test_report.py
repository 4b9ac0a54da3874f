"""The tables of counts that people see, as they stand in a terminal."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from millrace_audit.answer import Completeness, Verdict, Window
from millrace_audit.show import completeness_table
from millrace_demo.report import hours_of, print_hours

START = datetime(2015, 5, 17, 10, tzinfo=UTC)
COUNT = 12_345
WINDOW = Window(
    start=START,
    end=START + timedelta(minutes=10),
    revision=0,
    verdict=Verdict.INCOMPLETE,
    acknowledged=COUNT,
    failed=0,
    carried=0,
    tiers=dict.fromkeys(("dc1", "dc2", "offline", "warehouse", "table"), COUNT),
    findings=[],
    reasons=[],
)


def terminal() -> Console:
    return Console(file=StringIO(), width=80, force_terminal=True, color_system=None)


def text_of(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def answer(topic: str = "SearchQuery", window: Window = WINDOW) -> Completeness:
    end = START + timedelta(hours=1)
    return Completeness(topic, START, end, Verdict.INCOMPLETE, None, [window])


def test_the_counts_of_two_datacenters_stand_whole_in_80_columns() -> None:
    for by_window, time in ((False, "2015-05-17T10"), (True, "2015-05-17T10:00")):
        console = terminal()
        console.print(completeness_table(answer(), by_window=by_window))
        title, head, row = map(str.split, text_of(console).splitlines())
        assert title == ["Events", "of", "SearchQuery,", "times", "in", "UTC"]
        assert head[1:] == ["acknowledged", "dc1", "dc2", "offline", "warehouse", "table", "verdict"]
        assert row == [time, *["12,345"] * 6, "incomplete"]


def test_a_count_that_is_seldom_there_has_a_column_where_it_is() -> None:
    window = replace(WINDOW, failed=3, revision=2, foreign={"dc1": 5}, rejected=4)
    table = completeness_table(replace(answer(window=window), foreign={"dc1": 5, "dc2": 0}), by_window=True)
    names = [str(column.header) for column in table.columns]
    assert names == [
        *("window", "acknowledged", "failed", "dc1", "dc2", "offline", "warehouse", "table"),
        *("no header: dc1", "rejected", "revision", "verdict"),
    ]


def test_counts_without_a_header_stand_in_the_order_of_the_tiers() -> None:
    counts = {"warehouse": 5, "dc1": 5, "offline": 5}
    window = replace(WINDOW, foreign=counts)
    table = completeness_table(replace(answer(window=window), foreign=counts), by_window=True)
    names = [str(column.header) for column in table.columns if str(column.header).startswith("no header")]
    assert names == ["no header: dc1", "no header: offline", "no header: warehouse"]


def test_the_demos_hours_stand_under_their_topics_in_80_columns() -> None:
    console = terminal()
    rows = {topic: {"2015-05-17T10": COUNT} for topic in ("PageView", "SearchQuery")}
    print_hours(hours_of([answer("PageView"), answer("SearchQuery")], rows), console)
    _, head, *lines = map(str.split, text_of(console).splitlines())
    counted = ["2015-05-17T10", *["12,345"] * 6, "incomplete"]
    assert head == [
        *("hour", "(UTC)", "acknowledged", "dc1", "dc2", "offline", "warehouse", "published", "verdict")
    ]
    assert lines == [["PageView"], counted, ["SearchQuery"], counted]
