"""Names of subjects: the words of a deployment, each strategy, and ids that are of other subjects."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import ConfigError, MillraceError
from millrace_registry.subjects import Subjects, foreign_id_lines, foreign_ids, full_name

ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": []}
SCHEMAS = {1: ORDER, 2: {**ORDER, "name": "shop.Refund"}, 3: "int"}
HOLDERS = {1: ["orders-value"], 2: ["orders"], 3: ["numbers"]}


class Registry:
    """Knows three schemas."""

    def find_schema(self, schema_id: int) -> Any:
        return SCHEMAS.get(schema_id)

    def subjects_of(self, schema_id: int) -> list[str]:
        return HOLDERS.get(schema_id, [])


REGISTRY: Any = Registry()


def test_a_topic_has_the_deployments_strategy_unless_it_has_its_own() -> None:
    subjects = Subjects.parse(["topic-value", "clicks=record", "old=topic", "views=page-views"])
    assert subjects.of("orders") == "orders-value"
    assert subjects.of("clicks", "web.Click") == "web.Click"
    assert (subjects.of("old"), subjects.of("views")) == ("old", "page-views")
    assert Subjects.parse([]).of("orders", "shop.Order") == "orders"
    with pytest.raises(ConfigError, match="--subject clicks=SUBJECT"):
        subjects.of("clicks")


def test_the_environment_says_it_for_every_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SUBJECTS", "record orders=topic-value")
    subjects = Subjects.of_environment()
    assert (subjects.of("orders"), subjects.of("x", "a.B")) == ("orders-value", "a.B")
    monkeypatch.delenv("MILLRACE_SUBJECTS")
    assert Subjects.of_environment().of("orders") == "orders"


@pytest.mark.parametrize("word", ["value", "=orders", "orders=", ""])
def test_a_word_that_says_nothing_is_refused_with_what_to_write(word: str) -> None:
    with pytest.raises(ConfigError, match="write topic, topic-value, record, or TOPIC=SUBJECT"):
        Subjects.parse([word])


def test_a_record_that_decides_is_read_from_the_messages() -> None:
    by_record = Subjects.parse(["record"])
    assert by_record.of_messages("orders", lambda: [1, 99], REGISTRY) == "shop.Order"
    with pytest.raises(MillraceError, match=r"several records, shop\.Order, shop\.Refund"):
        by_record.of_messages("orders", lambda: [1, 2], REGISTRY)
    with pytest.raises(ConfigError, match="named like its record"):
        by_record.of_messages("orders", list, REGISTRY)

    def unread() -> list[int]:
        raise AssertionError("the messages are read although the topic's name decides")

    assert Subjects.parse(["topic-value"]).of_messages("orders", unread, REGISTRY) == "orders-value"


def test_ids_that_the_topics_subject_never_had_are_named_with_what_to_do() -> None:
    others = foreign_ids("orders", [1, 2, 3, 99], Subjects(), REGISTRY)
    assert others == {1: ["orders-value"], 3: ["numbers"]}
    assert "schema id 1 of subject orders-value" in foreign_id_lines("orders", others)[0]
    assert "--subject orders=orders-value" in foreign_id_lines("orders", others)[0]
    assert foreign_ids("orders", [1], Subjects.parse(["topic-value"]), REGISTRY) == {}
    assert foreign_ids("orders", [1], Subjects.parse(["record"]), REGISTRY) == {1: ["orders-value"]}


@pytest.mark.parametrize(
    ("schema", "name"),
    [(ORDER, "shop.Order"), ({"name": "a.B", "namespace": "c"}, "a.B"), ({"name": "B"}, "B"), ("int", None)],
)
def test_a_full_name_has_its_namespace_once(schema: Any, name: str | None) -> None:
    assert full_name(schema) == name


@pytest.mark.parametrize("command", [["load"], ["reload"], ["promote"], ["consume"], ["agent"]])
def test_every_command_that_needs_a_subject_takes_the_same_words(command: list[str]) -> None:
    shown = CliRunner().invoke(cli, [*command, "--help"]).output
    assert "--subject [TOPIC=]SUBJECT" in shown
