"""The Java interceptor at a listener with TLS and logins, with and without the right to write `audit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.zookeeper.session import Session
from millrace_broker.coordination.users import Users
from tests.audit_world import audit_of_one_origin
from tests.brokers import free_port
from tests.certificates import Authority
from tests.compat.brokers import login_settings
from tests.compat.evidence import read_evidence, read_outcomes
from tests.compat.java_interceptor import finish, start_service
from tests.compat.judging import load_json
from tests.integration.test_audit import World
from tests.support import Process, run_millrace

PASSWORD = "long enough"
EVENTS = 1000
TOPICS = ["audited-4.1", "audited-3.9", "audited-2.8", "unaudited"]
AUDITED, UNAUDITED = "checkout", "catalogue"
"""Users who may write TOPICS; only the first may write the topic audit."""


@dataclass
class Secured:
    """An audited world whose origin has a listener with TLS and logins."""

    world: World
    logins: str
    ca: str

    def send(self, topic: str, user: str, outcomes: Path, clients: str = "4.1") -> str:
        """Run a service as a user; return its output."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        properties = {
            "bootstrap_servers": self.logins,
            "security_protocol": "SASL_SSL",
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": self.ca,
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_jaas_config": f'{module} required username="{user}" password="{PASSWORD}";',
        }
        return finish(start_service(clients, topic, EVENTS, "past", outcomes, **properties))


@pytest.fixture(scope="module")
def secured(
    needs_maven: None,
    zookeeper: str,
    start_for_module: Callable[..., Process],
    tmp_path_factory: pytest.TempPathFactory,
) -> Secured:
    folder, logins = tmp_path_factory.mktemp("interceptor-secured"), f"localhost:{free_port()}"
    authority = Authority(folder)
    settings = login_settings(authority, logins)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    world = audit_of_one_origin(World, start_for_module, zookeeper, folder, TOPICS, lines)
    dc1 = world.clusters["dc1"]
    with closing(Session.connect(zookeeper)) as session:
        users = Users(session, dc1.name)
        for user in (AUDITED, UNAUDITED):
            users.set_password(user, PASSWORD)
    for user, topic in [
        *((user, topic) for user in (AUDITED, UNAUDITED) for topic in TOPICS),
        (AUDITED, "audit"),
    ]:
        words = ("allow", f"User:{user}", "Write", "--topic", topic, "--bootstrap", dc1.bootstrap)
        done = run_millrace("acls", *words)
        assert done.returncode == 0, done.stderr
    return Secured(world, logins, authority.ca)


@pytest.mark.parametrize("clients", ["4.1", "3.9", "2.8"])
def test_audit_records_are_sent_with_the_producers_tls_and_login(
    secured: Secured, clients: str, tmp_path: Path
) -> None:
    topic = f"audited-{clients}"
    output = secured.send(topic, AUDITED, tmp_path / "outcomes", clients)
    assert PASSWORD not in output
    evidence = read_evidence(secured.world.clusters["dc1"].bootstrap, topic)
    ((instance, told),) = evidence.told.items()
    assert told.acknowledged == set(evidence.log[instance]) == set(range(EVENTS))
    secured.world.await_tier(topic, "offline", EVENTS)
    (window,) = secured.world.ask(topic).windows
    assert (window.acknowledged, window.findings, window.foreign) == (EVENTS, [], {})


def test_without_the_right_to_write_audit_the_events_are_carried_and_the_log_says_why(
    secured: Secured, tmp_path: Path
) -> None:
    output = secured.send("unaudited", UNAUDITED, tmp_path / "outcomes")
    assert read_outcomes(tmp_path / "outcomes") == (set(range(EVENTS)), set())
    (warning,) = [line for line in output.splitlines() if "millrace:" in line]
    assert "events of unaudited are sent without an audit header" in warning
    assert "Not authorized to access topics: [audit]" in warning
    evidence = read_evidence(secured.world.clusters["dc1"].bootstrap, "unaudited")
    assert (evidence.foreign, evidence.told) == (EVENTS, {})
    load_json(secured.world, "unaudited")
    (window,) = secured.world.await_verdict("unaudited", "carried").windows
    assert (window.acknowledged, window.carried) == (0, EVENTS)
