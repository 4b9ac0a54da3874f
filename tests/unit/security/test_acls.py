"""Rules and the decisions they make, against a plain reading of Kafka's rules and by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import InvalidRequest
from millrace_broker.security.acls import OPERATIONS, Acls, Pattern, Rule, RuleFilter, check_rule
from millrace_broker.security.rights import (
    ANY_TOPIC,
    CLUSTER,
    Operation,
    Resource,
    ResourceType,
    group,
    topic,
)

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = Pattern.LITERAL, Pattern.PREFIXED
HERE = "10.0.0.1"


def rule(
    operation: Operation,
    name: str = "t",
    *,
    principal: str = "User:a",
    type_: ResourceType = TOPIC,
    pattern: Pattern = LITERAL,
    host: str = "*",
    allow: bool = True,
) -> Rule:
    return Rule(type_, pattern, name, principal, host, operation, allow)


def may(acls: Sequence[Rule], operation: Operation, resource: Resource, principal: str = "User:a") -> bool:
    return Acls(acls).allows(principal, HERE, operation, resource)


def test_what_no_rule_allows_is_denied() -> None:
    rules = [rule(Operation.WRITE)]
    assert may(rules, Operation.WRITE, topic("t"))
    for other in (topic("u"), topic("tt"), topic(""), group("t"), CLUSTER):
        assert not may(rules, Operation.WRITE, other)
    assert not may(rules, Operation.READ, topic("t"))
    assert not may(rules, Operation.WRITE, topic("t"), "User:b")
    assert not may([], Operation.DESCRIBE, topic("t"))


def test_a_prefix_a_star_and_a_name_stand_for_their_own_names() -> None:
    assert may([rule(Operation.READ, "web-", pattern=PREFIXED)], Operation.READ, topic("web-clicks"))
    assert not may([rule(Operation.READ, "web-", pattern=PREFIXED)], Operation.READ, topic("web"))
    assert may([rule(Operation.READ, "*")], Operation.READ, topic("anything"))
    assert not may([rule(Operation.READ, "*", pattern=PREFIXED)], Operation.READ, topic("anything"))
    assert not may([rule(Operation.READ, "*")], Operation.READ, group("anything"))


@pytest.mark.parametrize("pattern", [(LITERAL, "t"), (LITERAL, "*"), (PREFIXED, "t")])
def test_a_rule_that_denies_counts_before_every_rule_that_allows(pattern: tuple[Pattern, str]) -> None:
    kind, name = pattern
    denied = rule(Operation.WRITE, name, pattern=kind, allow=False)
    rules = [
        denied,
        rule(Operation.ALL),
        rule(Operation.WRITE, "*"),
        rule(Operation.WRITE, principal="User:*"),
    ]
    assert not may(rules, Operation.WRITE, topic("t"))
    assert may(rules, Operation.READ, topic("t"))
    everything = rule(Operation.ALL, name, pattern=kind, allow=False)
    for operation in OPERATIONS[TOPIC] - {Operation.ALL}:
        assert not may([everything, rule(operation)], operation, topic("t"))


@pytest.mark.parametrize("given_right", sorted(OPERATIONS[TOPIC]))
def test_describe_is_part_of_what_needs_it_and_mirror_write_of_nothing(given_right: Operation) -> None:
    allowed = {
        operation
        for operation in set(Operation) - {Operation.ALL}
        if may([rule(given_right)], operation, topic("t"))
    }
    includes = {
        Operation.READ: {Operation.READ, Operation.DESCRIBE},
        Operation.WRITE: {Operation.WRITE, Operation.DESCRIBE},
        Operation.DELETE: {Operation.DELETE, Operation.DESCRIBE},
        Operation.ALTER: {Operation.ALTER, Operation.DESCRIBE},
        Operation.ALTER_CONFIGS: {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS},
        Operation.ALL: set(Operation) - {Operation.ALL, Operation.MIRROR_WRITE},
    }
    assert allowed == includes.get(given_right, {given_right})


def test_hosts_are_addresses_and_an_ipv4_client_of_an_ipv6_listener_has_its_own() -> None:
    acls = Acls([rule(Operation.READ, host=HERE)])
    assert acls.allows("User:a", HERE, Operation.READ, topic("t"))
    assert acls.allows("User:a", f"::ffff:{HERE}", Operation.READ, topic("t"))
    assert not acls.allows("User:a", "10.0.0.2", Operation.READ, topic("t"))


def test_names_that_nothing_can_have_are_decided_and_not_remembered() -> None:
    acls = Acls([rule(Operation.READ, "*")])
    assert acls.allows("User:a", HERE, Operation.READ, topic("x" * 1_000_000))
    assert not acls.allows("User:a", HERE, Operation.WRITE, topic("x" * 1_000_000))
    assert not acls._decisions


@pytest.mark.parametrize(
    ("denied", "allowed", "some"),
    [
        ((LITERAL, "*"), (LITERAL, "t"), False),
        ((LITERAL, "t"), (LITERAL, "*"), True),
        ((LITERAL, "t"), (LITERAL, "t"), False),
        ((LITERAL, "t"), (LITERAL, "u"), True),
        ((LITERAL, "t"), (PREFIXED, "t"), True),
        ((PREFIXED, "t"), (LITERAL, "tu"), False),
        ((PREFIXED, "t"), (PREFIXED, "tu"), False),
        ((PREFIXED, "tu"), (PREFIXED, "t"), True),
        ((PREFIXED, "t"), (LITERAL, "*"), True),
    ],
)
def test_a_right_to_any_topic_is_one_that_no_denial_takes_whole(
    denied: tuple[Pattern, str], allowed: tuple[Pattern, str], some: bool
) -> None:
    no = rule(Operation.WRITE, denied[1], pattern=denied[0], allow=False)
    yes = rule(Operation.WRITE, allowed[1], pattern=allowed[0])
    assert may([no, yes], Operation.WRITE, ANY_TOPIC) is some
    assert not may([no], Operation.WRITE, ANY_TOPIC)
    assert may([yes], Operation.WRITE, ANY_TOPIC)


NAMES = st.sampled_from(["a", "ab", "abc", "b", "*"])
RULES = st.builds(
    Rule,
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(Pattern),
    NAMES,
    st.sampled_from(["User:a", "User:b", "User:*"]),
    st.sampled_from(["*", HERE, "10.0.0.2"]),
    st.sampled_from(sorted(OPERATIONS[TOPIC])),
    st.booleans(),
)


@given(
    st.lists(RULES, max_size=12),
    st.sampled_from(sorted(OPERATIONS[TOPIC] - {Operation.ALL})),
    st.sampled_from([TOPIC, GROUP]),
    st.sampled_from(["a", "ab", "abc", "abcd", "b", "c"]),
)
def test_decisions_are_those_of_reading_every_rule(
    rules: list[Rule], operation: Operation, type_: ResourceType, name: str
) -> None:
    def counts(one: Rule) -> bool:
        named = name.startswith(one.name) if one.pattern is PREFIXED else one.name == "*" or one.name == name
        return (
            one.type is type_ and named and one.principal in ("User:a", "User:*") and one.host in ("*", HERE)
        )

    describing = {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    allowed = denied = False
    for one in rules:
        if counts(one) and not one.allow:
            denied |= one.operation is Operation.ALL or one.operation is operation
        elif counts(one):
            allowed |= one.operation is operation
            allowed |= one.operation is Operation.ALL and operation is not Operation.MIRROR_WRITE
            allowed |= operation is Operation.DESCRIBE and one.operation in describing
            allowed |= operation is Operation.DESCRIBE_CONFIGS and one.operation is Operation.ALTER_CONFIGS
    acls = Acls(rules)
    for _ in range(2):  # the second time from what is kept
        assert acls.allows("User:a", HERE, operation, Resource(type_, name)) is (allowed and not denied)


GOOD = rule(Operation.READ)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"operation": Operation.IDEMPOTENT_WRITE}, "no operation on a topic: use ALL, READ"),
        ({"type": GROUP, "operation": Operation.WRITE}, "no operation on a group"),
        ({"type": ResourceType.CLUSTER, "operation": Operation.ALTER}, "the name kafka-cluster"),
        ({"principal": "alice"}, "not User:NAME"),
        ({"principal": "User:"}, "not User:NAME"),
        ({"principal": "Group:x"}, "not User:NAME"),
        ({"host": "kafka.example.com"}, "names are not looked up"),
        ({"host": "::ffff:10.0.0.5"}, "known here as 10.0.0.5: write that"),
        ({"host": "2001:DB8::1"}, "known here as 2001:db8::1: write that"),
        ({"host": "fe80::1%eth0"}, "known here as fe80::1: write that"),
        ({"name": ""}, "1 to 500 printable characters"),
        ({"name": "x" * 501}, "1 to 500 printable characters"),
        ({"name": "two\nlines"}, "1 to 500 printable characters"),
    ],
)
def test_a_rule_that_could_never_decide_anything_is_refused(bad: dict[str, object], says: str) -> None:
    check_rule(GOOD)
    with pytest.raises(InvalidRequest, match=says):
        check_rule(GOOD._replace(**bad))  # type: ignore[arg-type]


def test_a_filter_takes_rules_by_their_fields_or_those_that_count_for_a_name() -> None:
    rules = {
        "name": rule(Operation.READ, "web-clicks"),
        "prefix": rule(Operation.READ, "web-", pattern=PREFIXED),
        "all": rule(Operation.READ, "*"),
        "other": rule(Operation.READ, "other"),
        "literal prefix": rule(Operation.READ, "web-"),
        "denied": rule(Operation.READ, "web-clicks", allow=False),
    }

    def taken(wanted: RuleFilter) -> set[str]:
        return {key for key, one in rules.items() if wanted.takes(one)}

    assert taken(RuleFilter()) == set(rules)
    assert taken(RuleFilter(name="web-clicks")) == {"name", "denied"}
    assert taken(RuleFilter(name="web-clicks", about=True)) == {"name", "prefix", "all", "denied"}
    assert taken(RuleFilter(name="web-")) == {"prefix", "literal prefix"}
    assert taken(RuleFilter(name="web-", pattern=PREFIXED)) == {"prefix"}
    assert taken(RuleFilter(allow=False)) == {"denied"}
    assert taken(RuleFilter(principal="User:b")) == set()
    assert taken(RuleFilter(type=GROUP, about=True)) == set()
