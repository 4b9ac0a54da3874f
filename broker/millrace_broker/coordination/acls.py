"""The access control lists of one cluster: one node in ZooKeeper, and a snapshot of it in memory.

    /<cluster>/security/acls  persistent  {"version": 1, "rules": [[type, pattern, name, principal, host,
                                           operation, allow], ...]}

Types, patterns and operations are Kafka's numbers. While ZooKeeper does not answer, and while the node is
missing or unreadable, the last snapshot stays in force. A broker with an authorizer does not start without a
snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from millrace.zookeeper.session import Session
from millrace_broker.coordination.watching import WatchedList
from millrace_broker.security.acls import Acls, Pattern, Rule
from millrace_broker.security.rights import Operation, Resource, ResourceType


class AclStore(WatchedList[Acls]):
    """The registry of rules, and the authorizer of clients: `allows` and `version` are for any thread."""

    def __init__(self, session: Session, cluster: str) -> None:
        """Wait for ZooKeeper. Raise MillraceError when the rules cannot be read: then no right could be
        decided.
        """
        super().__init__(session, f"/{cluster}/security/acls", "access control lists", "rules", _acls)

    @property
    def acls(self) -> Acls:
        return self.value

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return self.value.allows(principal, host, operation, resource)

    def change(self, change: Callable[[Collection[Rule]], Iterable[Rule]]) -> None:
        """Write the rules that `change` returns; `change` may be called again. On return the rules are in
        force on this broker.

        Waits for ZooKeeper. Raise PolicyViolation when they become too many.
        """

        def changed(acls: Acls) -> list[Rule] | None:
            rules = sorted(set(change(acls.rules)))
            return rules if rules != acls.rules else None

        self.write(changed, "use prefixes and User:*, or delete some")


def _acls(rules: Any) -> Acls:
    """Return the rules. Raise an error for an unreadable rule: without a rule that denies, the other rules
    allow too much.
    """
    return Acls(_rule(values) for values in rules)


def _rule(values: Any) -> Rule:
    type_, pattern, name, principal, host, operation, allow = values
    if not all(isinstance(text, str) for text in (name, principal, host)) or not isinstance(allow, bool):
        raise TypeError(f"a rule of {name!r} has values of a wrong type")
    return Rule(ResourceType(type_), Pattern(pattern), name, principal, host, Operation(operation), allow)
