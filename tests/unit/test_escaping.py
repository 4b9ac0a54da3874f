"""The border for foreign text, and that everything which is printed or logged crosses it."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

from millrace.escaping import escaped, escaped_lines
from millrace.logs import JsonLines, TextLines
from millrace.printing import print_records, print_rows, say
from millrace.service.exposition import EscapingRegistry
from tests.marks import MARK, check_escaped, check_json

_ROOT = Path(__file__).parents[2]


def test_text_is_one_line_in_which_nothing_is_hidden() -> None:
    assert escaped("a\tb\x1b[2J\n") == r"a\tb\x1b[2J\n"
    assert escaped("\u202eabc\u2066\ufeff\udc80\U000e0001") == r"\u202eabc\u2066\ufeff\udc80\U000e0001"
    check_escaped(escaped(MARK))


@pytest.mark.parametrize("text", ["", "web-1", "größe", "東京\u3000支店", "a\\x1b", "שלום", "é", "🙂"])
def test_text_that_people_can_read_stays_as_it_is(text: str) -> None:
    assert escaped(text) == text


def test_lines_stay_lines() -> None:
    assert escaped_lines("a\n\tb\x1b\r\n") == "a\n\\tb\\x1b\\r\n"


def test_a_printed_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"{MARK}: lost")
    say("PageView-0", MARK)
    out = capsys.readouterr().out
    assert out.count("\n") == 2
    check_escaped(out.splitlines()[0])
    assert out.splitlines()[1].startswith("PageView-0\tweb\\x1b")


def test_tables_show_names_as_they_are_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    print_records([{"group": MARK, "members": 1}], as_json=False, none="")
    print_rows([f"cluster {MARK}"], [["[/] is no markup"]])
    out = capsys.readouterr().out
    assert out.count("[red]") == 2
    assert "[/] is no markup" in out
    check_escaped(out)


def test_json_for_scripts_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_records([{"group": MARK}], as_json=True, none="")
    out = capsys.readouterr().out
    check_json(out)
    assert json.loads(out) == [{"group": MARK}]


def test_a_log_line_is_one_line_and_a_traceback_begins_none() -> None:
    try:
        raise ValueError(MARK)
    except ValueError:
        record = logging.LogRecord("millrace", logging.ERROR, "", 0, "of %s", (MARK,), sys.exc_info())
    text = TextLines("%(message)s").format(record)
    first, *rest = text.split("\n")
    check_escaped(first)
    assert rest
    for line in rest:
        assert line.startswith("  ")
    check_escaped(text)
    line = JsonLines().format(record)
    check_json(line)
    assert json.loads(line)["message"] == f"of {MARK}"


def test_labels_of_metrics_are_escaped_and_can_be_read_back() -> None:
    class Numbers:
        def collect(self) -> list[Metric]:
            lag = GaugeMetricFamily("lag", "Lag.", labels=["group"])
            lag.add_metric([MARK], 1)
            lag.add_metric(["plain"], 2)
            return [lag]

    registry = EscapingRegistry()
    registry.register(Numbers())
    text = generate_latest(registry).decode()
    check_escaped(text)
    (family,) = text_string_to_metric_families(text)
    assert [sample.labels["group"] for sample in family.samples] == [escaped(MARK), "plain"]


_PRINTS_OWN_TEXT = {
    "broker/millrace/printing.py",  # the border itself
    "broker/millrace/service/web.py",  # its ready line
    "broker/millrace_commands/broker.py",  # its ready line
    "broker/millrace/process.py",  # the command that cannot start
    "broker/millrace_demo/run.py",  # steps of the demonstration
    "broker/millrace_demo/report.py",  # its table, whose cells are escaped
}


def test_commands_print_by_the_border_alone() -> None:
    """Whoever prints in another way prints names as strangers chose them."""
    found = []
    for folder in ("broker", "plugins"):
        for path in (_ROOT / folder).glob("millrace*/**/*.py"):
            name = str(path.relative_to(_ROOT))
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and name not in _PRINTS_OWN_TEXT:
                    called = ast.unparse(node.func)
                    if called in ("print", "click.echo", "click.secho", "console.print", "sys.stdout.write"):
                        found.append(f"{name}:{node.lineno}: {called}")
    assert not found


def test_numbers_are_told_by_a_registry_that_escapes_labels() -> None:
    found = [
        str(path.relative_to(_ROOT))
        for folder in ("broker", "plugins")
        for path in (_ROOT / folder).glob("millrace*/**/*.py")
        if "CollectorRegistry" in path.read_text()
    ]
    assert found == ["broker/millrace/service/exposition.py"]
