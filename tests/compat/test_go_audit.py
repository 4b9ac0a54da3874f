"""A Go service whose client has the audit's hooks: its reports are its promises, and agree with the log."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.zookeeper.session import Session
from millrace_audit.reports.messages import FOR_EVER
from millrace_broker.coordination.users import Users
from millrace_broker.security.scram import make_credential
from tests.audit_world import audit_of_one_origin
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import Home, RunningBroker, address, create, login_settings, start_broker
from tests.compat.evidence import check_exact, check_fingerprint, check_killed, read_evidence, read_outcomes
from tests.compat.judging import EVENTS, check_broken_is_named, check_complete
from tests.compat.programs import GO_AUDIT, Program, audited_go, run_go
from tests.integration.test_audit import World
from tests.peers.kafka import KafkaBroker
from tests.support import REPOSITORY, WAIT_S, Process, run_millrace, wait_until

USER, PASSWORD = "checkout", "long enough"
Start = Callable[..., Process]


@pytest.fixture(scope="module")
def service() -> Program:
    return audited_go()


def finish(service: Process) -> None:
    """Wait for the service's end; its reporting goroutine must have ended before."""
    assert service.wait(timeout_s=6 * WAIT_S) == 0, service.output
    assert "reporting goroutines left: 0" in service.lines, service.output


def wait_for_line(service: Process, line: str) -> None:
    wait_until(f"line {line!r}", lambda: line in service.lines or not service.running)
    assert line in service.lines, service.output


def check_protocol(bootstrap: str, topic: str) -> None:
    """Check that the service keeps all rules of the audit's protocol, with the command for such checks."""
    done = run_millrace("audit-check", topic, "--bootstrap", bootstrap)
    assert done.returncode == 0, done.stdout + done.stderr


def kill(home: Home) -> None:
    (home if isinstance(home, KafkaBroker) else home.process).kill()


def restart(home: Home) -> None:
    if isinstance(home, KafkaBroker):
        home.start()
    else:
        home.restart()


def test_the_package_passes_its_own_tests() -> None:
    run_go("vet", ".", cwd=GO_AUDIT)
    run_go("test", ".", cwd=GO_AUDIT)


def test_the_page_s_example_compiles(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "go.md").read_text()
    (example,) = re.findall(r"```go\n(.*?)```", page, re.DOTALL)
    (commands,) = re.findall(r"```\n(go mod .*?)```", page, re.DOTALL)
    (tmp_path / "main.go").write_text(example)
    run_go("mod", "init", "example", cwd=tmp_path)
    for command in commands.replace("PATH", str(REPOSITORY)).splitlines():
        run_go(*command.split()[1:], cwd=tmp_path)
    run_go("build", "-o", str(tmp_path / "example"), ".", cwd=tmp_path)


@pytest.mark.parametrize("case", ["plain", "forward", "shared"])
def test_every_event_is_reported_with_the_content_of_its_value(
    home: Home, service: Program, start: Start, case: str, tmp_path: Path
) -> None:
    topic, outcomes = create(home, f"go-{case}"), tmp_path / "outcomes"
    job = {"topic": topic, "events": EVENTS, "case": case, "outcomes": str(outcomes)}
    finish(service.start(start, bootstrap=address(home), **job))
    evidence = read_evidence(address(home), topic)
    check_exact(evidence, outcomes)
    (instance,) = evidence.told
    assert len(evidence.told[instance].acknowledged) == EVENTS
    check_fingerprint(evidence, instance)
    check_protocol(address(home), topic)


@pytest.fixture(scope="module")
def world(zookeeper: str, start_for_module: Start, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("go-audit")
    return audit_of_one_origin(World, start_for_module, zookeeper, folder, ["past", "broken"])


@pytest.mark.parametrize(("case", "check"), [("past", check_complete), ("broken", check_broken_is_named)])
def test_the_auditor_judges_json_of_a_go_service_up_to_the_table(
    world: World,
    service: Program,
    start: Start,
    case: str,
    check: Callable[[World, str], None],
    tmp_path: Path,
) -> None:
    job = {"topic": case, "events": EVENTS, "case": case, "outcomes": str(tmp_path / "outcomes")}
    finish(service.start(start, bootstrap=world.clusters["dc1"].bootstrap, **job))
    check(world, case)


def test_events_are_acknowledged_when_a_killed_broker_is_back(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes = create(home, "go-killed-broker"), tmp_path / "outcomes"
    job = {"topic": topic, "events": EVENTS, "case": "slow", "outcomes": str(outcomes)}
    running = service.start(start, bootstrap=address(home), **job)
    wait_for_line(running, "half is sent")
    kill(home)
    wait_until("a report without an answer", lambda: "reports are not acknowledged" in running.output)
    restart(home)
    finish(running)
    check_exact(read_evidence(address(home), topic), outcomes)
    assert read_outcomes(outcomes) == (set(range(EVENTS)), set())


def test_events_that_the_service_gives_up_while_a_broker_is_killed_are_reported_as_failed(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes, go_on = create(home, "go-gives-up"), tmp_path / "outcomes", tmp_path / "go-on"
    job = {"topic": topic, "events": 4000, "case": "give up", "outcomes": str(outcomes), "goOn": str(go_on)}
    running = service.start(start, bootstrap=address(home), **job)
    wait_for_line(running, "half is sent")
    kill(home)
    wait_for_line(running, "gave up")
    restart(home)
    go_on.touch()
    finish(running)
    check_exact(read_evidence(address(home), topic), outcomes)
    assert all(read_outcomes(outcomes)), "events were acknowledged, and events failed"


def test_a_client_closed_while_its_broker_is_killed_ends_and_leaves_its_instance_open(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes, go_on = create(home, "go-open"), tmp_path / "outcomes", tmp_path / "go-on"
    job = {"topic": topic, "events": 4000, "case": "give up", "outcomes": str(outcomes), "goOn": str(go_on)}
    running = service.start(start, bootstrap=address(home), **job)
    wait_for_line(running, "half is sent")
    kill(home)
    go_on.touch()
    finish(running)
    assert "the last report is missing. Accept the instance" in running.output
    restart(home)
    ((instance, told),) = read_evidence(address(home), topic).told.items()
    assert str(instance) in running.output
    assert told.closed_through != FOR_EVER


def test_events_that_close_gives_up_are_reported_as_failed(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes = create(home, "go-close"), tmp_path / "outcomes"
    job = {"topic": topic, "events": EVENTS, "case": "close", "outcomes": str(outcomes)}
    finish(service.start(start, bootstrap=address(home), **job))
    check_exact(read_evidence(address(home), topic), outcomes)
    half = EVENTS // 2
    assert read_outcomes(outcomes) == (set(range(half)), set(range(half, EVENTS)))


def test_events_that_are_too_large_fail_and_leave_no_hole(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes = create(home, "go-large"), tmp_path / "outcomes"
    job = {"topic": topic, "events": 1000, "case": "large", "outcomes": str(outcomes)}
    finish(service.start(start, bootstrap=address(home), **job))
    check_exact(read_evidence(address(home), topic), outcomes)
    assert len(read_outcomes(outcomes)[1]) == 10


def test_events_of_aborted_transactions_are_acknowledged(
    apache: KafkaBroker, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes = create(apache, "go-transactions"), tmp_path / "outcomes"
    job = {"topic": topic, "events": 6000, "case": "transactions", "outcomes": str(outcomes)}
    finish(service.start(start, bootstrap=apache.address, **job))
    check_exact(read_evidence(apache.address, topic), outcomes)
    assert read_outcomes(outcomes) == (set(range(6000)), set())
    check_protocol(apache.address, topic)
    committed = read_evidence(apache.address, topic, committed=True)
    assert sum(map(len, committed.log.values())) == 4000


def test_events_of_an_unknown_topic_are_reported_as_failed(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic, outcomes = "go-unknown", tmp_path / "outcomes"
    job = {"topic": topic, "events": 3, "case": "plain", "outcomes": str(outcomes)}
    finish(service.start(start, bootstrap=address(home), **job))
    create(home, topic)  # now there is a log to read
    check_exact(read_evidence(address(home), topic), outcomes)
    assert read_outcomes(outcomes) == (set(), {0, 1, 2})


def test_a_killed_producer_has_reported_only_events_of_the_log(
    home: Home, service: Program, start: Start, tmp_path: Path
) -> None:
    topic = create(home, "go-killed-producer")
    job = {"topic": topic, "events": EVENTS, "case": "wait", "outcomes": str(tmp_path / "unused")}
    running = service.start(start, bootstrap=address(home), **job)
    wait_for_line(running, "flushed")

    def has_reported() -> bool:
        return any(told.acknowledged for told in read_evidence(address(home), topic).told.values())

    wait_until("a report", has_reported)
    running.kill()
    check_killed(read_evidence(address(home), topic), EVENTS)


def test_without_the_topic_audit_the_events_are_sent_unaudited(
    zookeeper: str, service: Program, start: Start, tmp_path: Path
) -> None:
    broker = start_broker(start, zookeeper, tmp_path, f"go-without-audit-{secrets.token_hex(3)}")
    topic, outcomes = create(broker, "unaudited"), tmp_path / "outcomes"
    job = {"topic": topic, "events": 100, "case": "forward", "outcomes": str(outcomes)}
    running = service.start(start, bootstrap=broker.bootstrap, **job)
    finish(running)
    assert "without an audit header until a record in the topic audit is acknowledged" in running.output
    assert read_outcomes(outcomes) == (set(range(100)), set())
    broker.create_topic("audit")
    evidence = read_evidence(broker.bootstrap, topic)
    assert (evidence.foreign, evidence.told) == (100, {})


def test_events_are_audited_as_soon_as_the_login_may_write_audit(
    zookeeper: str, service: Program, start: Start, tmp_path: Path
) -> None:
    broker, job = start_guarded_broker(zookeeper, start, tmp_path)
    topic, outcomes, go_on = create(broker, "guarded"), tmp_path / "outcomes", tmp_path / "go-on"
    broker.create_topic("audit")
    allow_to_write(broker, topic)
    job |= {"topic": topic, "events": 200, "case": "half", "outcomes": str(outcomes), "goOn": str(go_on)}
    running = service.start(start, **job)
    wait_for_line(running, "half is sent")
    allow_to_write(broker, "audit")
    wait_until("a hello", lambda: read_evidence(broker.bootstrap, topic).told)
    go_on.touch()
    finish(running)
    evidence = read_evidence(broker.bootstrap, topic)
    ((instance, told),) = evidence.told.items()
    assert read_outcomes(outcomes) == (set(range(200)), set())
    assert evidence.foreign == 100
    assert told.acknowledged == set(range(100))
    assert evidence.numbers(instance, told.acknowledged) == set(range(100, 200))
    assert told.closed_through == FOR_EVER


def start_guarded_broker(zookeeper: str, start: Start, folder: Path) -> tuple[RunningBroker, dict[str, Any]]:
    """Start a broker with TLS, logins and rights; return it with the fields of a job for its login."""
    cluster = f"go-guarded-{secrets.token_hex(3)}"
    session = Session.connect(zookeeper)
    Users(session, cluster).put(USER, "SCRAM-SHA-512", make_credential("SCRAM-SHA-512", PASSWORD, 4096))
    session.close()
    authority = Authority(folder)
    plain, logins = (f"localhost:{free_port()}" for _ in range(2))
    settings = {"listen": None, "listeners.plain.listen": plain, **login_settings(authority, logins)}
    broker = start_broker(start, zookeeper, folder, cluster, **settings)
    job: dict[str, Any] = {"bootstrap": logins, "ca": str(authority.ca), "user": USER, "password": PASSWORD}
    return broker, job


def allow_to_write(broker: RunningBroker, topic: str) -> None:
    rule = ("allow", f"User:{USER}", "write", "--topic", topic)
    done = run_millrace("acls", *rule, "--bootstrap", broker.bootstrap)
    assert done.returncode == 0, done.stderr
