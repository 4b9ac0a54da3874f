"""ZooKeeper is put back from an older copy while brokers follow its access rules, quotas and users."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from millrace.zookeeper.session import Session
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.quotas import QuotaStore
from millrace_broker.security.acls import Pattern, Rule
from millrace_broker.security.rights import Operation, Resource, ResourceType
from tests.brokers import free_port
from tests.support import Process, wait_until

TOPIC = Resource(ResourceType.TOPIC, "orders")


def rule(user: str, *, allow: bool = True) -> Rule:
    return Rule(ResourceType.TOPIC, Pattern.LITERAL, "orders", f"User:{user}", "*", Operation.WRITE, allow)


def test_a_rule_that_denies_is_in_force_after_zookeeper_was_put_back_from_an_older_copy(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    data, backup, port = tmp_path / "zookeeper", tmp_path / "backup", str(free_port())
    server = start("zookeeper", "--port", port, "--data-dir", str(data))
    session = Session.connect(server.ready(), timeout_ms=2000)
    acls, quotas = AclStore(session, "main"), QuotaStore(session, "main")
    acls.change(lambda _: [rule("web")])
    shutil.copytree(data, backup)
    for number in range(20):  # the copy lacks these transactions, so its next ones have smaller numbers
        acls.change(lambda there, name=f"user-{number}": [*there, rule(name)])  # type: ignore[misc]
    quotas.change(lambda _: {"web": {"producer_byte_rate": 1e6}})
    acls.watch()
    quotas.watch()
    known = acls.version
    server.stop()
    shutil.rmtree(data)
    shutil.copytree(backup, data)
    start("zookeeper", "--port", port, "--data-dir", str(data)).ready()
    wait_until("the rules are those of the copy", lambda: list(acls.acls.rules) == [rule("web")])
    wait_until("the quotas are those of the copy", lambda: not quotas.limits)
    assert acls.version > known
    acls.change(lambda there: [*there, rule("web", allow=False)])
    assert not acls.allows("User:web", "10.0.0.1", Operation.WRITE, TOPIC)
    quotas.change(lambda _: {"web": {"producer_byte_rate": 1e3}})
    assert quotas.limits == {"web": {"producer_byte_rate": 1e3}}
    session.close()
