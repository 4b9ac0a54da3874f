"""Kafka's access control lists: rules that allow or deny principals operations on resources, and the decision
by these rules.

A rule allows or denies one operation, or ALL, to a principal (`User:NAME`, or `User:*` for every user) from a
host (or `*`), on resources of a type by their name, by a prefix of it, or by `*`. A rule that denies has
precedence over all rules that allow, and a right that no rule allows is denied. Values in, values out: no
ZooKeeper is used.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from millrace.errors import InvalidRequest
from millrace_broker.security.rights import CLUSTER, Access, Need, Operation, Resource, ResourceType

EVERYONE, EVERYWHERE, ANY_NAME = "User:*", "*", "*"
MAX_TEXT_CHARACTERS = 500
"""Longest name, principal or host of a rule."""
_DECISIONS = 16_384
"""Most decisions that are cached until a rule changes."""


class Pattern(IntEnum):
    """Ways in which a rule's name matches resources, by Kafka's numbers."""

    LITERAL = 3
    PREFIXED = 4


class Rule(NamedTuple):
    """One right, allowed or denied."""

    type: ResourceType
    pattern: Pattern
    name: str
    principal: str
    host: str
    operation: Operation
    allow: bool

    @property
    def is_for_any_name(self) -> bool:
        return self.pattern is Pattern.LITERAL and self.name == ANY_NAME

    def __str__(self) -> str:
        verb = "allow" if self.allow else "deny"
        what = f"{self.type.name.lower()} {self.name}{'*' if self.pattern is Pattern.PREFIXED else ''}"
        return f"{verb} {self.operation.name} on {what} to {self.principal} from {self.host}"


OPERATIONS: Mapping[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.MIRROR_WRITE,
            Operation.ALL,
        }
    ),
    ResourceType.GROUP: frozenset({Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.ALL}),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALL,
        }
    ),
}
"""Operations that a rule may name for each type."""
_OWN = 100
"""Lowest number of Millrace's own operations."""
_IMPLIED_BY = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}
_GIVEN_BY = {
    # Millrace's own operations are allowed by their own names only: ALL keeps Kafka's meaning.
    operation: {operation, *_IMPLIED_BY.get(operation, ())} | ({Operation.ALL} if operation < _OWN else set())
    for operation in Operation
}
"""Operation -> the operations of rules that allow it."""


def authorized_operations(access: Access, resource: Resource) -> int:
    """Return Kafka's operations that a client may do to a resource, a bit for each (KIP-430).

    Return 0 for the cluster if the client may not describe it, as Kafka does.
    """
    if resource == CLUSTER and not access.allows(Need(Operation.DESCRIBE, CLUSTER)):
        return 0
    known = (one for one in OPERATIONS[resource.type] if one is not Operation.ALL and one < _OWN)
    return sum(1 << one for one in known if access.allows(Need(one, resource)))


def check_rule(rule: Rule) -> None:
    """Raise InvalidRequest, with the correct form, unless the rule can decide something."""
    texts = (rule.name, rule.principal, rule.host)
    if not all(0 < len(text) <= MAX_TEXT_CHARACTERS and text.isprintable() for text in texts):
        raise InvalidRequest(
            f"name, principal and host have 1 to {MAX_TEXT_CHARACTERS} printable characters each"
        )
    if rule.operation not in OPERATIONS[rule.type]:
        possible = ", ".join(operation.name for operation in sorted(OPERATIONS[rule.type]))
        raise InvalidRequest(
            f"{rule.operation.name} is no operation on a {rule.type.name.lower()}: use {possible}"
        )
    if rule.type is ResourceType.CLUSTER and (rule.name, rule.pattern) != (CLUSTER.name, Pattern.LITERAL):
        raise InvalidRequest(f"a rule on the cluster must have the name {CLUSTER.name} and a literal pattern")
    if not rule.principal.startswith("User:") or rule.principal == "User:":
        raise InvalidRequest(f"principal {rule.principal!r} is not User:NAME")
    if rule.host != EVERYWHERE:
        try:
            address = ipaddress.ip_address(rule.host.partition("%")[0])
        except ValueError:
            raise InvalidRequest(
                f"host {rule.host!r} is no IP address and not *: names are not looked up"
            ) from None
        # Hosts are compared as text: a rule with another spelling would never apply, not even a rule that
        # denies.
        if (known := str(getattr(address, "ipv4_mapped", None) or address)) != rule.host:
            raise InvalidRequest(f"host {rule.host!r} is known here as {known}: write that")


class Acls:
    """The decisions by one fixed set of rules. From any thread."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules: Sequence[Rule] = sorted(set(rules))
        self._named: dict[tuple[ResourceType, Pattern, str], list[Rule]] = defaultdict(list)
        self._prefix_lengths: dict[ResourceType, set[int]] = defaultdict(set)
        for rule in self.rules:
            self._named[rule.type, rule.pattern, rule.name].append(rule)
            if rule.pattern is Pattern.PREFIXED:
                self._prefix_lengths[rule.type].add(len(rule.name))
        self._decisions: dict[tuple[str, str, Operation, Resource], bool] = {}

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        """Return True if the rules give the right.

        Without a name it is the right to any resource of the type.
        """
        if resource.name is not None and len(resource.name) > MAX_TEXT_CHARACTERS:  # no such resource
            return self._decide(principal, host.removeprefix("::ffff:"), operation, resource)
        key = (principal, host, operation, resource)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(principal, host.removeprefix("::ffff:"), operation, resource)
            if len(self._decisions) >= _DECISIONS:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def _decide(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        about = self.rules if resource.name is None else self._about(resource.type, resource.name)
        mine = [
            rule
            for rule in about
            if rule.type is resource.type
            and rule.principal in (principal, EVERYONE)
            and rule.host in (host, EVERYWHERE)
        ]
        given = [rule for rule in mine if rule.allow and rule.operation in _GIVEN_BY[operation]]
        taken = [rule for rule in mine if not rule.allow and rule.operation in (operation, Operation.ALL)]
        if resource.name is not None:
            return bool(given) and not taken
        return any(not any(_takes_all(other, rule) for other in taken) for rule in given)

    def _about(self, type_: ResourceType, name: str) -> Iterator[Rule]:
        yield from self._named.get((type_, Pattern.LITERAL, name), ())
        if name != ANY_NAME:
            yield from self._named.get((type_, Pattern.LITERAL, ANY_NAME), ())
        for length in self._prefix_lengths.get(type_, ()):
            if length <= len(name):
                yield from self._named.get((type_, Pattern.PREFIXED, name[:length]), ())


def _takes_all(denied: Rule, allowed: Rule) -> bool:
    """Return True if the rule `denied` denies every name that the rule `allowed` allows."""
    if denied.is_for_any_name:
        return True
    if allowed.is_for_any_name:
        return False
    if denied.pattern is Pattern.PREFIXED:
        return allowed.name.startswith(denied.name)
    return allowed.pattern is Pattern.LITERAL and allowed.name == denied.name


class RuleFilter(NamedTuple):
    """Conditions of a search for rules. None matches any value."""

    type: ResourceType | None = None
    pattern: Pattern | None = None
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation | None = None
    allow: bool | None = None
    about: bool = False
    """True: find all rules that apply to a resource of that name, with any pattern."""

    def takes(self, rule: Rule) -> bool:
        if not self.about:
            wanted = self[:7]
            return all(want is None or want == have for want, have in zip(wanted, rule, strict=True))
        if self.name is not None and not rule.is_for_any_name:
            named = rule.name == self.name
            prefixed = rule.pattern is Pattern.PREFIXED and self.name.startswith(rule.name)
            if not (prefixed or (named and rule.pattern is Pattern.LITERAL)):
                return False
        return self._replace(name=None, pattern=None, about=False).takes(rule)
