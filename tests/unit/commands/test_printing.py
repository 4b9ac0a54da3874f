"""Tables of figures in terminals and in pipes."""

from __future__ import annotations

import pytest

from millrace.printing import print_rows

NAMES = ("topic", "partition", "leader", "position", "origin's end", "lag", "latency", "state")
ROW = ("SearchQuery", 0, 1, "1,234,567,890", "1,234,567,890", "0", "0.1 s", "running")


@pytest.mark.parametrize(("columns", "has_lines"), [(80, False), (140, True)])
def test_a_narrow_terminal_loses_the_lines_of_a_table_and_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int, has_lines: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows(NAMES, [ROW])
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1 - has_lines].replace("│", " ").split() == " ".join(map(str, ROW)).split()
    assert ("│" in printed) == has_lines


def test_a_pipe_has_the_lines_and_every_cell_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(NAMES, [[*ROW[:-1], "stuck: " + 300 * "x"]])
    printed = capsys.readouterr().out
    assert 300 * "x" in printed
    assert "│ SearchQuery │" in printed
