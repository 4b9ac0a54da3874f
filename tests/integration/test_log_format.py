"""`millrace --log-format json`: what a server says on standard error is JSON, a line for each event."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from pathlib import Path

import pytest

from millrace.logs import JsonLines
from tests.brokers import free_port
from tests.conftest import Start
from tests.support import Process, run_python, wait_until


def test_a_line_holds_the_message_and_the_traceback() -> None:
    try:
        raise ValueError("not so")
    except ValueError:
        record = logging.LogRecord("millrace.x", logging.ERROR, "f", 1, "a \n %s", ("b",), sys.exc_info())
    line = JsonLines().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("error", "millrace.x", "a \n b")
    assert said["exception"].endswith("ValueError: not so")
    assert datetime.fromisoformat(said["time"]).utcoffset() is not None


def logged(process: Process) -> list[dict[str, str]]:
    return [json.loads(line) for line in process.lines if not line.startswith("ready: ")]


@pytest.mark.parametrize("how", ["option", "variable"])
def test_a_broker_and_a_reader_of_its_cluster_log_in_json(
    how: str, start: Start, zookeeper: str, tmp_path: Path
) -> None:
    before = ("--log-format", "json") if how == "option" else ()
    variables = {"MILLRACE_LOG_FORMAT": "json"} if how == "variable" else {}
    file = tmp_path / "broker.toml"
    name = f"logs-{how}"
    file.write_text(
        f'broker_id = 1\ncluster = "{name}"\nzookeeper = "{zookeeper}"\nlog_dir = "{tmp_path}/log"\n'
        f'listen = "127.0.0.1:{free_port()}"\n'
    )
    broker = start(*before, "broker", str(file), env=variables)
    address = broker.ready()
    assert any("listener default" in line["message"] for line in logged(broker))
    assert {line["level"] for line in logged(broker)} == {"info"}
    options = ("--cluster", name, "--bootstrap", address, "--zookeeper", zookeeper)
    away = ("--registry", "http://127.0.0.1:1", "--metrics-listen", "127.0.0.1:0")
    reader = start(*before, "audit-reader", *options, *away, env=variables)
    wait_until("the reader's first line", lambda: logged(reader))
    assert logged(reader)[0]["message"].startswith("metrics on ")


def test_a_process_without_a_command_line_logs_in_the_format_of_its_environment() -> None:
    code = "import logging, millrace.logs\nmillrace.logs.start_logging()\nlogging.info('a line')"
    done = run_python("-c", code, env={"MILLRACE_LOG_FORMAT": "json"})
    assert json.loads(done.stderr)["message"] == "a line"
    assert run_python("-c", code).stderr.endswith("root a line\n")


def test_an_unknown_format_is_refused(start: Start) -> None:
    process = start("--log-format", "xml", "registry")
    assert process.wait() == 2
    assert "'text', 'json'" in process.output
