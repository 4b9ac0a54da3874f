"""Tables of figures in terminals and in pipes."""

from __future__ import annotations

import pytest

from millrace.printing import print_rows

NAMES = ("topic", "partition", "leader", "position", "origin's end", "lag", "latency", "state")
ROW = ("SearchQuery", 0, 1, "1,234,567,890", "1,234,567,890", "0", "0.1 s", "running")


def test_a_table_of_eight_columns_stands_whole_in_a_terminal_of_80(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows(NAMES, [ROW])
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].split() == " ".join(map(str, ROW)).split()


def test_a_pipe_has_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(NAMES, [[*ROW[:-1], "stuck: " + 300 * "x"]])
    printed = capsys.readouterr().out
    assert 300 * "x" in printed


def test_numbers_have_commas_and_end_under_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(("topic", "bytes", "id"), [("a", 5, "17"), ("b", 1_234_567, "x"), ("c", None, "y")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "topic     bytes id",
        "a             5 17",
        "b     1,234,567 x",
        "c               y",
    ]
