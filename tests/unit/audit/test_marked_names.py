"""A marked name wherever producers and operators can put one, in all that shows what the audit knows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from click.testing import CliRunner

from millrace.cli import cli
from millrace.topics_file import TopicPolicy
from millrace_airflow.waiting import describe
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from tests.brokers import free_port
from tests.marks import MARK, check_escaped, check_json
from tests.support import wait_until
from tests.unit.audit.story import NOW, OPTIONS, TOPIC, Story, found
from tests.unit.audit.test_app import Worker

HOUR = ("--from", "2015-05-17T10:00Z", "--to", "2015-05-17T11:00Z")
MARKED: dict[str, Any] = {"server": MARK, "service": MARK}


@pytest.fixture
def story(stores: Callable[[str], AuditStore], tmp_path: Path) -> Story:
    """An instance that has lost an event, one that is silent, and records, loads and topics of strangers."""
    options = replace(OPTIONS, clock_ms=lambda: NOW, policies={TOPIC: TopicPolicy(owner=f"team {MARK}")})
    story = Story(stores(f"sqlite:///{tmp_path}/audit.db"), options)
    story.hello(**MARKED)
    story.report(0, (0, 9), **MARKED)
    story.hello(2, **MARKED)
    story.hello(3, topic=MARK, **MARKED)
    story.carry(found((0, 8), server=MARK))
    story.report(0, (0, 9), instance=7, key=b"x", **MARKED)
    story.verified((None, MARK))
    story.state(1, trouble=MARK)
    story.beats()
    return story.apply()


@pytest.fixture
def auditor(story: Story) -> Iterator[str]:
    worker = Worker(AuditNumbers(story.store, story.options), trouble=MARK, story=story)
    port = free_port()
    app = build_app(story.store, story.options, worker)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until("the auditor", lambda: server.started)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def audit(auditor: str) -> Callable[..., str]:
    """Runs `millrace audit`; its output and, for people, its error."""

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["audit", *arguments, "--auditor", auditor])
        return result.output + (str(result.exception) if isinstance(result.exception, ValueError) else "")

    return run


@pytest.mark.parametrize(
    "arguments",
    [
        (TOPIC, *HOUR),
        (TOPIC, *HOUR, "--windows"),
        ("--bad",),
        (MARK, *HOUR),
        (TOPIC, "--explain", "2015-05-17T10"),
    ],
)
def test_a_marked_name_never_runs_in_the_terminal_of_who_audits(
    audit: Callable[..., str], arguments: tuple[str, ...]
) -> None:
    check_escaped(audit(*arguments))
    check_json(audit(*arguments, "--json"))


def test_the_command_names_the_owner_of_the_topic(audit: Callable[..., str]) -> None:
    assert "\nowner: team web\\x1b" in audit(TOPIC, *HOUR)
    assert '"owner": "team web\\u001b' in audit(TOPIC, *HOUR, "--json")
    assert "owner:" not in audit(MARK, *HOUR)


def test_what_operators_say_does_not_run_either(audit: Callable[..., str]) -> None:
    check_escaped(audit("--accept-service", MARK, "--server", MARK, "--reason", MARK))
    history = audit(TOPIC, *HOUR, "--history")
    assert "web" in history
    check_escaped(history)
    check_json(audit(TOPIC, *HOUR, "--history", "--json"))


def test_answers_metrics_and_the_page_show_a_marked_name_escaped(auditor: str) -> None:
    hour = {"from": HOUR[1], "to": HOUR[3]}
    for path, query in (
        ("/v1/topics", {}),
        ("/v1/bad", {}),
        ("/v1/facts", {"topic": TOPIC, "window": HOUR[1]}),
        ("/v1/health", {}),
        (f"/v1/topics/{TOPIC}/completeness", hour),
    ):
        check_json(httpx.get(auditor + path, params=query).text)
    assert httpx.get(f"{auditor}/v1/rejected-records").text.isascii()
    for page, query in (
        ("console", {}),
        ("console", {"until": MARK, "q": MARK}),
        ("topic", {"topic": TOPIC}),
        ("topic", {"topic": MARK}),
        ("hour", {"topic": TOPIC, "at": "2015-05-17T10"}),
        ("hour", {"topic": MARK, "at": "2015-05-17T10"}),
    ):
        check_escaped(httpx.get(f"{auditor}/{page}", params=query).text)
    metrics = httpx.get(f"{auditor}/metrics").text
    assert not [line for line in metrics.splitlines() if not line.isprintable()]


def test_a_sensor_says_a_marked_name_escaped(story: Story) -> None:
    check_escaped(describe(story.completeness()))
