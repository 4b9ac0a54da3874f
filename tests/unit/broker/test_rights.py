"""Rights: every API and version by every kind of client, expected outcomes written by hand.

What is refused has had no effect, and a name that a client may not know is answered as one that is not there.
"""

from __future__ import annotations

import json
import logging
import re
import struct
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.config import LogConfig
from millrace.errors import ErrorCode
from millrace.records.mirror_position import Origin
from millrace.wire.codec import decode
from millrace.wire.framing import FrameBuffers, RequestFramer
from millrace.wire.group_messages import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millrace.wire.messages import ApiKey
from millrace.wire.mirror_append import MirrorAppend, MirrorMode, decode_response, encode_request
from millrace.wire.replica import decode_answer
from millrace.wire.unclean_election import ElectUncleanResponse
from millrace_broker.coordination.acls import AclStore
from millrace_broker.coordination.groups import CommittedOffset
from millrace_broker.groups import Groups
from millrace_broker.handlers import Handlers, Services
from millrace_broker.handlers.table import Call, serves
from millrace_broker.security.acls import Acls, Pattern, Rule
from millrace_broker.security.journal import Journal
from millrace_broker.security.login import Login
from millrace_broker.security.quotas import Meters
from millrace_broker.security.rights import UNAUTHENTICATED, Access, Guard, Operation, Resource
from millrace_broker.server.request import Request
from millrace_mirror.translation import TranslateOffsetsResponse
from tests.unit.broker.asking import (
    EVERYTHING,
    AskingClient,
    ChangingCluster,
    Values,
    ask,
    error_codes,
    every_api,
    request_body,
)
from tests.unit.broker.examples import (
    ALTER,
    ALTER_CONFIGS,
    BATCH,
    CLUSTER,
    CLUSTER_ACTION,
    CODES,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    EXAMPLES,
    MIRROR_WRITE,
    NUMBER,
    READ,
    RIGHTS,
    SET_FLUSH,
    TOPIC,
    WRITE,
    Example,
    Right,
    T,
    resource,
)
from tests.unit.broker.running import ORIGIN, Running, topic


class Granted:
    """The authorizer, with rules that tests give clients; `names` None grants rights for any name."""

    def __init__(self) -> None:
        self.version, self._acls = 1, Acls()

    def grant(self, principal: str, rights: Iterable[Right], names: Iterable[str] | None = None) -> Access:
        others = [rule for rule in self._acls.rules if rule.principal != principal]
        own = [
            Rule(type_, Pattern.LITERAL, name, principal, "*", operation, True)
            for operation, type_ in rights
            for name in (["*"] if names is None else names)
        ]
        self.version, self._acls = self.version + 1, Acls([*others, *own])
        return Access(self, principal, "127.0.0.1")

    def set(self, rules: Iterable[Rule]) -> None:
        self.version, self._acls = self.version + 1, Acls(rules)

    def allows(self, principal: str, host: str, operation: Operation, resource: Resource) -> bool:
        return self._acls.allows(principal, host, operation, resource)


def with_implied(rights: set[Right]) -> set[Right]:
    """The rights, and those that Kafka says they include."""
    describing = {READ, WRITE, DELETE, ALTER}
    implied = {(DESCRIBE, type_) for operation, type_ in rights if operation in describing}
    implied |= {(DESCRIBE_CONFIGS, type_) for operation, type_ in rights if operation is ALTER_CONFIGS}
    for operation, type_ in rights:
        if operation is Operation.ALL:
            implied |= {(each, type_) for each in Operation if each is not MIRROR_WRITE}
    return rights | implied


class FakeGroups:
    """Answers at once, and knows what it was asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def find(self, names: Any, done: Callable[[Any], None]) -> None:
        self.asked += names
        done(dict.fromkeys(names, 1))

    def use(self, name: str, use: Any, failed: Callable[[ErrorCode], None]) -> None:
        self.asked.append(name)
        failed(ErrorCode.NOT_COORDINATOR)

    def held(self, name: str) -> None:
        self.asked.append(name)

    def commit(self, request: Any, answer: Callable[[Any], None]) -> None:
        self.asked.append([topic.name for topic in request.topics])
        answer({(t.name, p.partition_index): ErrorCode.NONE for t in request.topics for p in t.partitions})

    def offsets(self, asked: Any, done: Callable[[Any], None]) -> None:
        offset = CommittedOffset(offset=7, time_ms=0, topic_id=uuid.UUID(int=1))
        found = {}
        for name, partitions in asked.items():
            self.asked += ["all"] if partitions is None else partitions
            found[name] = dict.fromkeys([("t", 0), ("u", 0)] if partitions is None else partitions, offset)
        done(found)

    def delete_offsets(self, name: str, partitions: Any, done: Callable[[Any], None], failed: Any) -> None:
        self.asked += partitions
        done(dict.fromkeys(partitions, ErrorCode.NONE))

    def describe_groups(self, names: Any, answer: Callable[[Any], None]) -> None:
        self.asked += names
        answer(dict.fromkeys(names, ErrorCode.NOT_COORDINATOR))

    def list_groups(self, done: Callable[[Any], None], failed: Any) -> None:
        done({name: ListedGroup(group_id=name, protocol_type="consumer") for name in ("g", "h")})

    def delete_groups(self, names: Any, answer: Callable[[Any], None]) -> None:
        self.asked += names
        answer(dict.fromkeys(names, ErrorCode.NONE))


class FakeAcls:
    """Rules in memory."""

    def __init__(self) -> None:
        self.acls = Acls([Rule(TOPIC, Pattern.LITERAL, "u", "User:y", "*", READ, True)])

    def change(self, change: Callable[[Sequence[Rule]], Iterable[Rule]]) -> None:
        self.acls = Acls(change(self.acls.rules))


ANSWERED_ALIKE = (ApiKey.API_VERSIONS, ApiKey.FETCH)
SERVED = {
    api.key: sorted({*api.versions, *(() if api.key in ANSWERED_ALIKE else api.private_versions)})
    for api in every_api()
}
"""API -> versions; but those that kio does not know, which are answered as the one before."""


class Secured(Running):
    """A broker with two topics of one message and one that mirrors; clients have what they are granted."""

    def __init__(self, folder: Path) -> None:
        cluster = ChangingCluster(T, topic("u", 1), topic("copy", 1, origin=ORIGIN))
        super().__init__(folder, cluster, LogConfig(flush_ms=1))
        self.granted, self.groups = Granted(), FakeGroups()
        self.book = SimpleNamespace(limits={})
        self.acls = FakeAcls()
        groups, acls = typing.cast(Groups, self.groups), typing.cast(AclStore, self.acls)
        services = Services(self.broker, groups, acls)
        self.handlers = Handlers(services, every_api())
        for name in ("t", "u"):
            self.produce(topic=name)
        self.turn()
        self.until("both are visible", lambda: self.high_watermark("t") and self.high_watermark("u"))

    def ask(self, access: Access, api: int, version: int, body: Values | bytes) -> Any:
        return ask(self, api, version, body, access, self.handlers)

    def codes(self, access: Access, api: int, version: int, body: Values | bytes) -> set[int]:
        if api == ApiKey.REPLICA_ACK and isinstance(body, bytes):  # it has no answer
            client = AskingClient(access)
            frame = struct.pack(">hhih", api, version, 7, -1) + body
            self.handlers.handle(client, memoryview(bytearray(frame)))
            return {code for _, code in client.errors}
        answer = self.ask(access, api, version, body)
        if api == ApiKey.MIRROR_APPEND:
            return {decode_response(answer).error}
        if api == ApiKey.TRANSLATE_OFFSETS:
            return {decode(TranslateOffsetsResponse, api, version, answer).error_code}
        if api == ApiKey.ELECT_UNCLEAN:
            return {decode(ElectUncleanResponse, api, version, answer).error_code}
        if api == ApiKey.REPLICA_FETCH:
            return {decode_answer(memoryview(answer))[0]}
        return set(error_codes(answer))

    def effects(self) -> object:
        """Return everything that a request could have changed."""
        logs = {name: self.broker.partition(name, 0).log for name in self.cluster.topics}
        ends = {name: (log.log_start_offset, log.end) for name, log in logs.items()}
        return dict(self.cluster.topics), ends, list(self.groups.asked), self.acls.acls.rules


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    yield made
    made.stop()


def test_every_api_has_its_row() -> None:
    assert {example.api for example in EXAMPLES} == set(SERVED)


@pytest.mark.parametrize(
    ("example", "version"),
    [
        (example, version)
        for example in EXAMPLES
        for version in SERVED[example.api]
        if version >= example.since
    ],
    ids=lambda part: str(part) if isinstance(part, Example) else f"v{part}",
)
def test_only_who_has_the_right_is_served_and_the_others_change_nothing(
    secured: Secured, example: Example, version: int
) -> None:
    body = example.encoded(version)
    clients: dict[str, set[Right]] = {"nothing": set(), **{str(right): {right} for right in RIGHTS}}
    before = secured.effects()
    for name, rights in clients.items():
        has = with_implied(rights)
        if not example.is_allowed(has):
            access = secured.granted.grant(name, rights)
            codes = secured.codes(access, example.api, version, body)
            assert codes - {ErrorCode.NONE} == {example.refusal(has)}, name
            assert secured.effects() == before, name
    for number, needed in enumerate(example.takes):
        access = secured.granted.grant(f"enough {number}", needed)
        codes = secured.codes(access, example.api, version, body)
        assert not codes & {ErrorCode.UNKNOWN_SERVER_ERROR, *CODES.values()}


def rules(
    needed: Iterable[Right],
    principal: str = "User:x",
    *,
    names: Sequence[str] = ("*",),
    pattern: Pattern = Pattern.LITERAL,
    host: str = "*",
    operation: Operation | None = None,
    allow: bool = True,
) -> list[Rule]:
    """A rule for each right and name; the cluster has one name only."""
    return [
        Rule(
            type_,
            pattern if type_ is not CLUSTER else Pattern.LITERAL,
            name if type_ is not CLUSTER else "kafka-cluster",
            principal,
            host,
            operation or op,
            allow,
        )
        for op, type_ in needed
        for name in names
    ]


BEGINNINGS: dict[str, Any] = {"names": ("t", "g", "n", "c"), "pattern": Pattern.PREFIXED}
"""First letters of all names in `EXAMPLES`, for rules by prefix."""
RULES: dict[str, tuple[bool, Callable[[Sequence[Right]], list[Rule]]]] = {
    "one for everybody": (True, lambda needed: rules(needed, "User:*")),
    "one for the beginning of the name": (True, lambda needed: rules(needed, **BEGINNINGS)),
    "one for this host": (True, lambda needed: rules(needed, host="127.0.0.1")),
    "one, and one that denies it from elsewhere": (
        True,
        lambda needed: [*rules(needed), *rules(needed, host="10.0.0.1", allow=False)],
    ),
    "one, and one that denies it to another": (
        True,
        lambda needed: [*rules(needed), *rules(needed, "User:y", allow=False)],
    ),
    "none": (False, lambda needed: []),
    "one for another": (False, lambda needed: rules(needed, "User:y")),
    "one for a name in other letters": (False, lambda needed: rules(needed, "User:X")),
    "one for ANONYMOUS": (False, lambda needed: rules(needed, "User:ANONYMOUS")),
    "one for another host": (False, lambda needed: rules(needed, host="10.0.0.1")),
    "one, and one that denies it": (False, lambda needed: [*rules(needed), *rules(needed, allow=False)]),
    "one, and one that denies it to everybody": (
        False,
        lambda needed: [*rules(needed), *rules(needed, "User:*", allow=False)],
    ),
    "one, and one that denies it from here": (
        False,
        lambda needed: [*rules(needed), *rules(needed, host="127.0.0.1", allow=False)],
    ),
    "one, and one that denies the beginning of the name": (
        False,
        lambda needed: [*rules(needed), *rules(needed, allow=False, **BEGINNINGS)],
    ),
    "one, and one that denies everything": (
        False,
        lambda needed: [*rules(needed), *rules(needed, operation=Operation.ALL, allow=False)],
    ),
}
"""Forms of rules that user x finds, made of the rights a request takes, and whether it is served."""


@pytest.mark.parametrize("example", [example for example in EXAMPLES if example.takes[0]], ids=str)
def test_rules_of_every_form_count_for_every_api(secured: Secured, example: Example) -> None:
    version = SERVED[example.api][-1]
    body = example.encoded(version)
    before = secured.effects()

    def codes(made: Iterable[Rule], principal: str, super_users: Sequence[str] = ()) -> set[int]:
        secured.granted.set(made)
        access = Guard(secured.granted, super_users, Journal(), Meters(secured.book)).access(
            principal, "127.0.0.1"
        )
        return secured.codes(access, example.api, version, body)

    for what, (served, make) in RULES.items():
        if not served:
            assert codes(make(example.takes[0]), "User:x") & {*CODES.values()}, what
            assert secured.effects() == before, what
    for what, (served, make) in RULES.items():
        if served:
            assert not codes(make(example.takes[0]), "User:x") & {*CODES.values()}, what
    everything_denied = rules(RIGHTS, "User:*", operation=Operation.ALL, allow=False)
    assert not codes(everything_denied, "User:admin", ["User:admin"]) & {*CODES.values()}


def without_names(answer: Any) -> str:
    """The answer as text, where the names of topics that were asked for would be."""
    return re.sub(r"((?<=')|(?<=topic ))(t|absent)\b|copy|nope", "", repr(answer))


@pytest.mark.parametrize(
    ("example", "version"),
    [
        (example, version)
        for example in EXAMPLES
        for version in SERVED[example.api]
        if version >= example.since
        and any(type_ is TOPIC for _, type_ in example.takes[0])
        # Whoever knows the id of a topic has been told it; a fetch by id is answered as Kafka does.
        and not (example.api == ApiKey.FETCH and version >= 13)
    ],
    ids=lambda part: str(part) if isinstance(part, Example) else f"v{part}",
)
def test_who_may_not_describe_a_topic_gets_the_same_answer_whether_it_is_there_or_not(
    secured: Secured, example: Example, version: int
) -> None:
    def body(there: bool) -> bytes:
        if isinstance(example.body, bytes):
            return example.body if there else example.body.replace(b"copy", b"nope")
        names = {"new": "t"} if there else {"t": "absent", "new": "absent"}
        return example.encoded(version, names)

    bodies = [body(there) for there in (True, False)]
    assert bodies[0] != bodies[1]
    newest = version == SERVED[example.api][-1]  # of the others a client without any right is enough
    for right in [None, *(RIGHTS if newest else ())]:
        has = with_implied({right} if right is not None else set())
        if (DESCRIBE, TOPIC) not in has and not example.is_allowed(has):
            access = secured.granted.grant(str(right), [right] if right is not None else [])
            there, missing = (secured.ask(access, example.api, version, body) for body in bodies)
            assert without_names(there) == without_names(missing), right


@pytest.mark.parametrize("api", [ApiKey.REPLICA_FETCH, ApiKey.REPLICA_ACK])
def test_nothing_is_read_of_a_replicas_request_before_it_is_known_to_be_a_brokers(
    secured: Secured, api: ApiKey
) -> None:
    malformed = bytes(3)
    stranger, broker = (
        secured.granted.grant("x", set()),
        secured.granted.grant("b", {(CLUSTER_ACTION, CLUSTER)}),
    )
    assert secured.codes(stranger, api, 0, malformed) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert secured.codes(broker, api, 0, malformed) == {ErrorCode.INVALID_REQUEST}


def test_who_may_only_look_at_a_mirror_gives_no_partition_to_a_new_origin(secured: Secured) -> None:
    access = secured.granted.grant("looks", {(DESCRIBE, TOPIC)})
    other = Origin("dc9", "t", uuid.UUID(int=9), 0)
    body = b"".join(encode_request("copy", MirrorAppend(mode=MirrorMode.DESCRIBE, origin=other)))
    before = secured.effects()
    assert secured.codes(access, ApiKey.MIRROR_APPEND, 1, body) == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    assert secured.effects() == before


EVERY_RIGHT = set(RIGHTS)


@pytest.fixture
def limited(secured: Secured) -> Access:
    """A client with every right to topic t and group g, and none to others."""
    return secured.granted.grant("limited", EVERY_RIGHT, ["t", "g"])


def test_refused_topics_and_partitions_are_answered_beside_the_others_in_the_order_of_the_request(
    secured: Secured, limited: Access
) -> None:
    def order(api: ApiKey, version: int, body: Values) -> list[int]:
        return list(error_codes(secured.ask(limited, api, version, body)))

    refused, fine = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.NONE
    batch = {"index": 0, "records": BATCH}
    produce = [{"name": name, "partition_data": [batch]} for name in ("u", "t", "nope")]
    assert order(ApiKey.PRODUCE, 8, {"acks": -1, "topic_data": produce}) == [refused, fine, refused]
    part = {"partition": 0, "partition_max_bytes": 1 << 20}
    fetch = [{"topic": name, "partitions": [part]} for name in ("u", "t", "nope", "t")]
    body = {"max_wait": 60_000, "min_bytes": 1 << 20, "max_bytes": 1 << 20, "topics": fetch}
    answer = secured.ask(limited, ApiKey.FETCH, 11, body)
    told = [
        (one.topic, one.partitions[0].error_code, bool(one.partitions[0].records)) for one in answer.responses
    ]
    assert told == [("u", refused, False), ("t", fine, True), ("nope", refused, False), ("t", fine, False)]
    named = [{"name": name, "partitions": [NUMBER]} for name in ("u", "t", "nope")]
    assert order(ApiKey.LIST_OFFSETS, 5, {"topics": named}) == [refused, fine, refused]
    timed = [{"name": n, "partitions": [{**NUMBER, "timestamp": 1}]} for n in ("u", "t")]
    assert order(ApiKey.LIST_OFFSETS, 5, {"topics": timed}) == [refused, fine]
    commit = {"group_id": "g", "topics": named}
    assert order(ApiKey.OFFSET_COMMIT, 7, commit) == [refused, fine, refused]
    assert secured.groups.asked[-1] == ["t"]
    offsets = [{"name": name, "partition_indexes": [0]} for name in ("u", "t")]
    answer = secured.ask(limited, ApiKey.OFFSET_FETCH, 5, {"group_id": "g", "topics": offsets})
    told = [
        (one.name, one.partitions[0].error_code, one.partitions[0].committed_offset) for one in answer.topics
    ]
    assert told == [("u", refused, -1), ("t", fine, 7)]
    assert order(ApiKey.OFFSET_DELETE, 0, commit) == [fine, refused, fine, refused]  # the group's is first
    alter = [resource(2, name, configs=SET_FLUSH) for name in ("u", "t")]
    assert order(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, {"resources": alter}) == [refused, fine]
    added = [{"name": name, "count": 2, "assignments": None} for name in ("u", "t")]
    assert order(ApiKey.CREATE_PARTITIONS, 1, {"topics": added, "timeout": 9000}) == [refused, fine]
    deleted = {"topic_names": ["u", "t"], "timeout": 9000}
    assert order(ApiKey.DELETE_TOPICS, 3, deleted) == [refused, fine]
    again = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("u", "t")]
    assert order(ApiKey.CREATE_TOPICS, 4, {"topics": again, "timeout": 9000}) == [refused, fine]


def test_refused_groups_are_answered_beside_the_others(secured: Secured, limited: Access) -> None:
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    described = secured.ask(limited, ApiKey.DESCRIBE_GROUPS, 4, {"groups": ["h", "g"]}).groups
    assert [(one.group_id, one.error_code) for one in described] == [
        ("h", refused),
        ("g", ErrorCode.NOT_COORDINATOR),
    ]
    deleted = secured.ask(limited, ApiKey.DELETE_GROUPS, 1, {"groups_names": ["h", "g"]}).results
    assert [(one.group_id, one.error_code) for one in deleted] == [("h", refused), ("g", 0)]
    assert secured.groups.asked == ["g", "g"]


def test_nobody_hears_of_topics_groups_and_offsets_that_it_may_not_describe(
    secured: Secured, limited: Access
) -> None:
    for version in SERVED[ApiKey.METADATA]:
        every: Values = {"topics": None if version else ()}
        answers = [secured.ask(access, ApiKey.METADATA, version, every) for access in (EVERYTHING, limited)]
        assert [{topic.name for topic in answer.topics} for answer in answers] == [{"t", "u", "copy"}, {"t"}]
    described = secured.ask(limited, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []}).topics
    assert [topic.name for topic in described] == ["t"]
    groups = secured.ask(limited, ApiKey.LIST_GROUPS, 4, {}).groups
    assert [group.group_id for group in groups] == ["g"]
    of_cluster = secured.granted.grant("operator", {(DESCRIBE, CLUSTER)})
    groups = secured.ask(of_cluster, ApiKey.LIST_GROUPS, 4, {}).groups
    assert [group.group_id for group in groups] == ["g", "h"]
    committed = {"group_id": "g", "topics": None}
    for version in range(2, 8):
        topics = secured.ask(limited, ApiKey.OFFSET_FETCH, version, committed).topics
        assert [topic.name for topic in topics] == ["t"]
    for version in range(8, 10):
        (group,) = secured.ask(limited, ApiKey.OFFSET_FETCH, version, {"groups": [committed]}).groups
        assert [topic.name for topic in group.topics] == ["t"]


def test_a_topic_is_deleted_by_its_id_by_who_may_and_an_id_tells_no_name(
    secured: Secured, limited: Access
) -> None:
    ids = {name: secured.cluster.topics[name].topic_id for name in ("t", "u")}
    ids["v"] = uuid.uuid4()
    asked = {"topics": [{"name": None, "topic_id": id_} for id_ in ids.values()], "timeout": 1000}
    describer = secured.granted.grant("describer", {(DESCRIBE, TOPIC)})
    told = secured.ask(describer, ApiKey.DELETE_TOPICS, 6, asked).responses
    forbidden, unknown = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID
    assert [(one.name, one.error_code) for one in told] == [
        ("t", forbidden),
        ("u", forbidden),
        (None, unknown),
    ]
    told = secured.ask(limited, ApiKey.DELETE_TOPICS, 6, asked).responses
    assert [(one.name, one.error_code) for one in told] == [("t", 0), (None, unknown), (None, unknown)]
    assert set(secured.cluster.topics) == {"u", "copy"}


def test_what_is_deleted_by_an_id_or_created_for_who_asks_of_it_is_written_down_by_its_name(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millrace.security")
    object.__setattr__(secured.broker.config, "auto_create_topics", True)
    guard = Guard(secured.granted, frozenset(), Journal(), Meters(secured.book))

    def ask(user: str, right: Operation, api: ApiKey, version: int, asked: Values) -> tuple[str, str, str]:
        secured.granted.grant(f"User:{user}", {(right, TOPIC), (DESCRIBE, TOPIC)})
        caplog.clear()
        secured.ask(guard.access(f"User:{user}", "127.0.0.1"), api, version, asked)
        told = (record.getMessage() for record in caplog.records if record.name == "millrace.security")
        (line,) = (json.loads(text.partition(": ")[2]) for text in told)
        (name,) = line["resources"]
        return line["what"], line["principal"], name

    by_id: Values = {"topics": [{"topic_id": secured.cluster.topics["t"].topic_id}], "timeout": 1}
    assert ask("reader", READ, ApiKey.DELETE_TOPICS, 6, by_id) == ("refused", "User:reader", "topic t")
    assert ask("deleter", DELETE, ApiKey.DELETE_TOPICS, 6, by_id) == ("allowed", "User:deleter", "topic t")
    asked: Values = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    assert ask("creator", CREATE, ApiKey.METADATA, 8, asked) == ("allowed", "User:creator", "topic new")


def test_a_topic_that_may_not_be_described_is_answered_as_one_that_is_not_there(
    secured: Secured, limited: Access
) -> None:
    for version in SERVED[ApiKey.METADATA]:
        for create in (False, True):
            asked = [{"topics": [{"name": n}], "allow_auto_topic_creation": create} for n in ("u", "v")]
            (there, missing) = (secured.ask(limited, ApiKey.METADATA, version, one).topics for one in asked)
            assert repr(there).replace("'u'", "'v'") == repr(missing)
            assert there[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    by_id = [
        {"topics": [{"topic_id": number, "name": None}]}
        for number in (secured.cluster.topics["u"].topic_id, uuid.uuid4())
    ]
    (there, missing) = (secured.ask(limited, ApiKey.METADATA, 12, one).topics[0] for one in by_id)
    assert (there.error_code, there.partitions) == (missing.error_code, missing.partitions)
    assert (there.name, missing.name) == ("", "")


@pytest.mark.parametrize("name", [None, "", "t", "u", "not there"])
@pytest.mark.parametrize("version", [12, 13])
def test_an_id_decides_which_topic_is_described_whatever_name_stands_beside_it(
    secured: Secured, limited: Access, version: int, name: str | None
) -> None:
    """Java's AdminClient sends an empty name beside the id."""
    topic = secured.cluster.topics["t"]
    asked: Values = {"topics": [{"topic_id": topic.topic_id, "name": name}]}
    for access in (EVERYTHING, limited):
        (told,) = secured.ask(access, ApiKey.METADATA, version, asked).topics
        assert (told.error_code, told.name, told.topic_id) == (0, "t", topic.topic_id)


def test_a_topic_is_created_for_a_client_that_may_create_it_only(secured: Secured) -> None:
    object.__setattr__(secured.broker.config, "auto_create_topics", True)
    asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
    describer = secured.granted.grant("describer", {(DESCRIBE, TOPIC)})
    (told,) = secured.ask(describer, ApiKey.METADATA, 8, asked).topics
    assert (told.error_code, "new" in secured.cluster.topics) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, False)
    creator = secured.granted.grant("creator", {(DESCRIBE, TOPIC), (CREATE, CLUSTER)})
    (told,) = secured.ask(creator, ApiKey.METADATA, 8, asked).topics
    assert told.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    secured.until("it is created", lambda: "new" in secured.cluster.topics)


def test_what_one_client_may_see_is_never_another_ones_cached_answer(secured: Secured) -> None:
    asked: Values = {"topics": None}

    def topics(access: Access) -> set[str]:
        return {topic.name for topic in secured.ask(access, ApiKey.METADATA, 8, asked).topics}

    some = secured.granted.grant("some", {(DESCRIBE, TOPIC)}, ["t"])
    other = secured.granted.grant("other", {(DESCRIBE, TOPIC)}, ["u"])
    for _ in range(2):  # the second time from the cache
        assert (topics(EVERYTHING), topics(some), topics(other)) == ({"t", "u", "copy"}, {"t"}, {"u"})
    secured.granted.grant("some", set())
    assert topics(some) == set()


class Pipelining(AskingClient):
    """A connection that sends several requests in one segment."""

    def __init__(self, secured: Secured, access: Access) -> None:
        super().__init__(access)
        self._secured, self._framer = secured, RequestFramer(1 << 20, FrameBuffers())

    def send(self, frames: bytes) -> list[Request]:
        self._framer.receive_data(memoryview(bytearray(frames)))
        requests = []
        while not self.closed and (request := self._secured.handlers.serve_next(self, self._framer)):
            requests.append(request)
        self._secured.turn()
        self._framer.release()
        return requests


def _frame(api: int, version: int, body: bytes) -> bytes:
    return struct.pack(">ihhih", 10 + len(body), api, version, 7, -1) + body


def _produce(name: str = "t", acks: int = 1) -> bytes:
    data = [{"name": name, "partition_data": [{"index": 0, "records": BATCH}]}]
    return _frame(ApiKey.PRODUCE, 8, request_body(ApiKey.PRODUCE, 8, {"acks": acks, "topic_data": data}))


def _codes(requests: Sequence[Request]) -> list[int]:
    """The error of each answer of one partition of a topic with a name of one letter."""
    answers = b"".join(
        part for request in requests for part in request.parts or () if isinstance(part, bytes)
    )
    codes: list[int] = []
    while answers:
        (size,) = struct.unpack_from(">i", answers)
        codes += struct.unpack_from(">h", answers, 8 + 4 + 3 + 4 + 4)
        answers = answers[4 + size :]
    return codes


def test_a_repeated_produce_request_is_refused_once_the_right_is_gone(secured: Secured) -> None:
    client = Pipelining(secured, secured.granted.grant("writer", {(WRITE, TOPIC)}))
    served = client.send(_produce() * 5)
    assert ([request.count for request in served], _codes(served)) == ([5], [0] * 5)
    secured.granted.grant("writer", set())
    end = secured.broker.partition("t", 0).log.end
    served = client.send(_produce() * 5)
    assert _codes(served) == [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 5
    assert secured.broker.partition("t", 0).log.end == end
    secured.granted.grant("writer", {(WRITE, TOPIC)}, ["u"])
    assert _codes(client.send(_produce("u") + _produce("t") + _produce("u"))) == [0, 29, 0]


def test_what_is_written_without_a_right_and_without_an_answer_closes_the_connection(
    secured: Secured,
) -> None:
    client = Pipelining(secured, secured.granted.grant("reader", {(READ, TOPIC)}))
    before = secured.effects()
    client.send(_produce(acks=0))
    assert client.closed
    assert secured.effects() == before


def test_a_fetch_that_waits_is_refused_if_the_right_is_gone_when_it_is_answered(secured: Secured) -> None:
    access = secured.granted.grant("reader", {(READ, TOPIC)})
    client = Pipelining(secured, access)
    part = {"partition": 0, "fetch_offset": secured.high_watermark("t"), "partition_max_bytes": 1 << 20}
    fetch = {"max_wait": 60_000, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [part]}]}
    body = request_body(ApiKey.FETCH, 4, {**fetch, "max_bytes": 1 << 20})
    (request,) = client.send(_frame(ApiKey.FETCH, 4, body))
    assert request.parts is None
    secured.granted.grant("reader", set())
    secured.produce()
    secured.until("an answer", lambda: request.parts is not None)
    pieces: Any = request.parts
    assert all(isinstance(piece, bytes) for piece in pieces), "it holds records"
    assert client.errors[ApiKey.FETCH, ErrorCode.TOPIC_AUTHORIZATION_FAILED] == 1


OPEN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)


@pytest.mark.parametrize("api", sorted(SERVED))
def test_before_a_login_nothing_is_served_but_what_is_open_to_all(secured: Secured, api: ApiKey) -> None:
    before = secured.effects()
    for version in SERVED[api]:
        client = Pipelining(secured, UNAUTHENTICATED)
        client.login = Login({})
        (example, *_) = (example for example in EXAMPLES if example.api == api)
        body = example.encoded(version) if version >= example.since else b""
        client.send(_frame(api, version, body))
        assert client.closed == (api not in OPEN)
        assert secured.effects() == before


def test_an_api_that_lists_without_asking_what_its_client_may_see_is_refused(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    @serves(range(5), ListGroupsRequest, ListGroupsResponse, needs=lambda _: (), lists=True)
    def forgetful(call: Call[ListGroupsRequest]) -> ListGroupsResponse:
        secret = ListedGroup(group_id="secret", protocol_type="consumer")
        return ListGroupsResponse(error_code=0, groups=(secret,))

    services: Any = SimpleNamespace()
    handlers = Handlers(Services(secured.broker, services), [forgetful])
    with caplog.at_level(logging.ERROR):
        answer = ask(secured, ApiKey.LIST_GROUPS, 4, {}, EVERYTHING, handlers)
    assert (answer.error_code, answer.groups) == (ErrorCode.UNKNOWN_SERVER_ERROR, ())
    assert "LIST_GROUPS v4 of client '', principal 'User:ANONYMOUS' at 127.0.0.1:1 failed" in caplog.text
