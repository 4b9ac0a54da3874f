"""Explanations of verdicts: the auditor's answer, and the text of `millrace audit --explain`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from click.testing import CliRunner

from millrace.cli import cli
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.explaining import explanation, facts_read
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.auditor.verdict.evidence import Observed
from millrace_audit.auditor.verdict.facts import Gap, GapKind, WindowFacts
from millrace_audit.auditor.verdict.rules import RULES, SPECIAL_RULES, Case, judge
from millrace_audit.commands.explanation import print_explanation
from millrace_audit.reports.counts import WINDOW_MS
from millrace_audit.reports.messages import OFFLINE, Truncated
from tests.brokers import free_port
from tests.support import wait_until
from tests.unit.audit.story import NOW, OPTIONS, STEP, TOPIC, Story, W, found
from tests.unit.audit.test_app import Client, Worker
from tests.unit.audit.test_rules import EXAMPLES, facts, source


@pytest.fixture(params=["sqlite", "postgresql"])
def story(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore]) -> Story:
    if request.param == "postgresql":
        return Story(stores(request.getfixturevalue("postgres_url")))
    return Story(stores("sqlite://"))


def answer_of(some: WindowFacts) -> dict[str, Any]:
    """Return an answer about a window with given facts, as a client reads it."""
    judged = judge(some)
    head = {
        "topic": some.topic,
        "start": "2015-05-17T10:00:00Z",
        "end": "2015-05-17T10:10:00Z",
        "asked_at": "2015-05-17T12:00:00Z",
        "counted_through": {},
        "verdict": judged.verdict,
        "is_final": judged.is_final,
        "stored": None,
    }
    answer: dict[str, Any] = json.loads(json.dumps({**head, **explanation(some, judged, 100)}))
    return answer


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_rule_that_fires_is_explained_with_its_reason_and_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    some = EXAMPLES[name]
    answer = answer_of(some)
    print_explanation([answer])
    printed = capsys.readouterr().out
    rules = {rule["rule"]: rule for rule in answer["rules"]}
    for cause in judge(some).causes:
        assert rules[cause.rule]["fired"]
        assert {"reason": cause.reason, "command": cause.command} in rules[cause.rule]["causes"]
        assert f"    - {cause.reason}\n" in printed
        assert not cause.command or f"    next: {cause.command}\n" in printed


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_rule_is_explained_whether_it_fires_or_not(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = answer_of(EXAMPLES[name])
    print_explanation([answer])
    printed = capsys.readouterr().out
    asked = RULES if EXAMPLES[name].special is None else SPECIAL_RULES
    assert [rule["rule"] for rule in answer["rules"]] == [rule.name for rule in asked]
    for rule in asked:
        assert f"{rule.name}: {rule.when}" in printed or f"{rule.name} ({rule.when.rstrip('.')})" in printed


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_every_rule_names_facts_that_decide_it(rule: Any) -> None:
    for some in (EXAMPLES[rule.name], facts(sources=[])):
        assert facts_read(rule, Case(some)), "add what the rule reads to explaining._COMPARED"


def test_the_answer_has_every_fact_by_its_name() -> None:
    names = {each.name for each in fields(WindowFacts)} - {"topic", "start"}
    assert {*answer_of(facts())["facts"]} == names


def test_lists_are_bounded_and_the_number_of_the_others_is_given() -> None:
    many = [number for even in range(0, 1000, 2) for number in (even, even)]
    wrong = source(*range(5), at={"dc1": Observed(many, 7)})
    gaps = [Gap(kind=GapKind.COUNTS_LOST, since=W, until=W + 1)] * 200
    sources = [replace(source(0), instance=replace(wrong.instance, instance=100 + n)) for n in range(150)]
    some = facts(sources=[*sources, wrong], gaps=gaps)
    answer = explanation(some, judge(some), 100)
    assert answer["more"] == {"sources": 51, "gaps": 100, "causes of counts-lost": 100}
    first = answer["facts"]["sources"][0]
    assert first["instance"]["instance"] == wrong.instance.instance, "sources with a difference come first"
    held = first["observed"]["dc1"]
    assert (held["sequences"], len(held["ranges"]), held["more_ranges"]) == (500, 100, 400)
    wrong_at_home = next(each for each in answer["differences"] if each["kind"] == "missing")
    assert wrong_at_home["ranges"] == [[1, 1], [3, 3]]


def test_an_explanation_has_the_reported_and_the_observed_events_of_each_source(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats()
    answer = story.apply().explanation()
    assert (answer["verdict"], answer["is_final"]) == ("incomplete", True)
    assert answer["stored"]["verdict"] == "incomplete"
    assert answer["stored"]["note"] == ""
    (only,) = answer["facts"]["sources"]
    assert only["reported"]["acknowledged"] == {"sequences": 10, "ranges": [[0, 9]]}
    assert {*only["observed"]} == {"dc1", "offline", "warehouse"}
    assert all(held["ranges"] == [[0, 8]] for held in only["observed"].values())
    assert answer["counted_through"]["dc1"] == "2015-05-17T11:40:00Z"
    assert answer["facts"]["read_at"]["dc1"] == "2015-05-17T11:39:54Z"
    assert [(leg["origin"], leg["tier"], leg["state"]) for leg in answer["facts"]["legs"]] == [
        ("dc1", "dc1", "read"), ("dc1", "offline", "read"), ("", "warehouse", "read"),
    ]  # fmt: skip
    fired = [rule for rule in answer["rules"] if rule["fired"]]
    assert [rule["rule"] for rule in fired] == ["missing-at-home"]


def test_new_facts_are_judged_in_the_answer_and_the_stored_verdict_stands_beside(story: Story) -> None:
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats()
    story.apply()
    story.carry(found((9, 9)))
    story.beats(NOW)
    story.apply_only()
    answer = story.explanation()
    assert (answer["verdict"], answer["stored"]["verdict"]) == ("complete", "incomplete")
    assert answer["stored"]["note"] == "new facts have arrived and are not judged yet"
    story.settle()
    assert story.explanation()["stored"]["note"] == ""


def test_a_final_verdict_stays_and_the_explanation_says_so(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    story.whole()
    story.apply()
    story.beat("dc1", NOW + 1, truncated=[Truncated(TOPIC, "dc1-PageView", 0, STEP, 1)])
    answer = story.apply().explanation()
    assert (answer["verdict"], answer["stored"]["verdict"]) == ("unknown", "complete")
    print_explanation([answer])
    printed = capsys.readouterr().out
    stands = "10:00 to 10:10: complete, final\n  the stored verdict is complete: it was final before some"
    assert stands in printed
    assert "  by these facts it is unknown:\n  unknown by not-counted-in-full: " in printed


def test_unknown_topics_and_windows_without_events_are_explained_as_they_are_answered(story: Story) -> None:
    assert story.explanation(topic="Other")["facts"]["special"] == "unknown topic"
    story.whole()
    story.apply()
    assert story.window(W + WINDOW_MS)["verdict"] == story.explanation(W + WINDOW_MS)["verdict"] == "complete"
    assert story.explanation(W + WINDOW_MS)["stored"] is None
    late = NOW + 2 * WINDOW_MS
    story.hello(2)
    story.report(0, (0, 9), instance=2, window=late)
    assert story.apply().explanation(late)["facts"]["special"] == "in the future"


# The service and the command.


@pytest.fixture
def served(stores: Callable[[str], AuditStore], tmp_path: Path) -> Iterator[tuple[Story, str]]:
    """A story in a file, and the address of an auditor with this database."""
    story = Story(stores(f"sqlite:///{tmp_path}/audit.db"), replace(OPTIONS, clock_ms=lambda: NOW))
    app = build_app(story.store, story.options, Worker(AuditNumbers(story.store, story.options)))
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until("the auditor", lambda: server.started)
    yield story, f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


def audit(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["audit", TOPIC, *arguments, "--auditor", url])
    return result.output if result.exception is None else str(result.exception)


def test_the_command_prints_the_answer_first_and_equal_windows_together(served: tuple[Story, str]) -> None:
    story, url = served
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats(NOW - 240_000)
    story.apply()
    lines = audit(url, "--explain", "2015-05-17T10").splitlines()
    assert lines[0] == "PageView 2015-05-17 10:00 to 11:00, in UTC: incomplete"
    assert lines[1].startswith(
        "counted at 2015-05-17T11:40:00Z: dc1 through 2015-05-17T11:36:00Z, dc2 through"
    )
    assert lines[3] == "10:00 to 10:10: incomplete, final"
    assert lines[4].startswith("  incomplete by missing-at-home: The home has read the window and lacks")
    assert lines[5] == (
        "    - 1 missing at dc1, where they were acknowledged (instance 1 (shop on web-1), sequences 9)"
    )
    assert lines[6] == "    next: millrace log verify DIR"
    assert lines[7] == "    runbook: MillraceEventsMissing"
    assert (
        "    sources: 1 producer instances: acknowledged 10, failed 0, dc1 9, offline 9, warehouse 9" in lines
    )
    assert "10:10 to 11:00: complete, final" in lines
    readers = next(line for line in lines if line.startswith("  readers: "))
    assert "reader-stale (A reader that the window waits for has counted nothing for a minute)" in readers


def test_the_command_explains_one_window_and_gives_its_facts_to_scripts(served: tuple[Story, str]) -> None:
    story, url = served
    story.hello()
    story.carry(found((0, 8), window=W + WINDOW_MS))
    story.beats(NOW - 240_000)
    story.apply()
    lines = audit(url, "--explain", "2015-05-17T10:10").splitlines()
    assert lines[0] == "PageView 2015-05-17 10:10 to 10:20, in UTC: unknown"
    assert "  unknown by producer-silent: A producer has not closed the window" in "\n".join(lines)
    (only,) = json.loads(audit(url, "--explain", "2015-05-17T10:10Z", "--json"))
    assert only["start"] == "2015-05-17T10:10:00Z"
    assert only["facts"]["debts"][0]["instance"]["name"] == "instance 1 (shop on web-1 in dc1)"
    assert len(json.loads(audit(url, "--explain", "2015-05-17T10+00:00", "--json"))) == 6
    assert "--explain 'noon' is not a time" in audit(url, "--explain", "noon")


def test_a_wrong_window_or_limit_is_refused(story: Story) -> None:
    client = Client(build_app(story.store, story.options, Worker(AuditNumbers(story.store, story.options))))
    for query in ({"topic": TOPIC}, {"topic": TOPIC, "window": "noon"}):
        assert client.get("/v1/facts", params=query).status_code == 400
    query = {"topic": TOPIC, "window": "2015-05-17T10:00Z", "limit": "0"}
    assert client.get("/v1/facts", params=query).status_code == 400


def waited(url: str) -> tuple[int, str]:
    """Return the exit code and the output of a question about an hour that waits for at most a minute."""
    hour = ("--from", "2015-05-17T10", "--to", "2015-05-17T11", "--wait", "60")
    result = CliRunner().invoke(cli, ["audit", TOPIC, *hour, "--auditor", url])
    return result.exit_code, result.output


def test_wait_ends_when_the_hour_is_proven_and_says_why_it_waits(served: tuple[Story, str]) -> None:
    story, url = served
    story.hello()
    story.report(0, (0, 9))
    events = found((0, 9))
    story.count("dc1", events)
    story.count(OFFLINE, events)
    story.beats()
    story.apply()

    def load() -> None:
        story.load(events)
        story.apply()

    threading.Timer(2, load).start()
    code, printed = waited(url)
    assert code == 0, printed
    assert printed.count("step: waiting: ") == 1
    assert f"{TOPIC}: complete" in printed


def test_wait_ends_at_once_when_events_are_missing(served: tuple[Story, str]) -> None:
    story, url = served
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats(NOW - 240_000)
    story.apply()
    code, printed = waited(url)
    assert code == 1
    assert "step: waiting" not in printed
    assert f"{TOPIC}: incomplete" in printed
