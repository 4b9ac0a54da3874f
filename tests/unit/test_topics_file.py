"""The file of topics: what it may say, and that everybody takes it from there."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from millrace.config import from_mapping
from millrace.errors import ConfigError
from millrace.topics_file import TopicPolicy, policies_of_environment, policies_of_topics, read_policies
from millrace_audit.auditor.options import AuditOptions
from millrace_registry.subjects import Subjects
from millrace_warehouse.requests import Load, command_line_fields, parse_request

FILE = """
[PageView]
["shop.orders.v1"]
subject = "topic-value"
proof = "carried"
max_bytes = "2GiB"
max_rejected = "1%"
accept_rejected = true
"""
ORDERS = "shop.orders.v1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "topics.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(path))
    monkeypatch.delenv("MILLRACE_SUBJECTS", raising=False)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[PageView]\nmax_byte = 1", r"\[PageView\]: unknown key 'max_byte'; did you mean 'max_bytes'"),
        ("[PageView]\nmirror = 'yes'", r"\[PageView\]: mirror has the wrong type"),
        ("[PageView]\nproof = 'some'", "proof 'some' is unknown: write complete or carried"),
        (
            "[PageView]\nsilent_after = '90m'",
            "silent_after '90m' is no time: write hours or days, like 24h or 7d",
        ),
        ("PageView = true", "PageView.* is no table of a topic: write the name in brackets"),
        ("[PageView]\n['a b']", "topics.toml: 'a b' is not a topic name"),
        ("['..']", "topics.toml: '..' is not a topic name"),
        (f"[{'x' * 250}]", f"topics.toml: '{'x' * 250}' is not a topic name"),
        ('[Click]\nowner = "web\\u001b[2J"', r"topics.toml: \[Click\]: owner holds .* \\x1b: take it out"),
        ('[Click]\nowner = "web\\nteam"', r"\[Click\]: owner holds .* \\n: take it out"),
        ('[Click]\nowner = "\\u202eweb"', r"\[Click\]: owner holds .* \\u202e: take it out"),
        (f"[Click]\nowner = '{'x' * 201}'", r"topics.toml: \[Click\]: owner has 201 characters: .* 200"),
        ("[shop.orders]\nproof = 'carried'", 'write a name with dots in quotes, like \\["a.b"\\]'),
        ("[topics_matching.'(']", r"\[topics_matching.'\('\] is not a regular expression: "),
        ("[topics_matching.'a.*']\nmax_byte = 1", r"\[topics_matching.'a\.\*'\]: unknown key 'max_byte'"),
        ("topics_matching = 1", r"is no table: write \[topics_matching.'EXPRESSION'\] for each expression"),
        ("[topics_matching]\nproof = 'carried'", r"\[topics_matching.'proof'\] is no table of a topic"),
        ("", "names no topic"),
        ("[PageView", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "topics.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_policies(file)


def test_an_owner_may_be_any_visible_text(tmp_path: Path) -> None:
    owner = ("Équipe <web> & 数据 " * 20)[:200]
    file = tmp_path / "topics.toml"
    file.write_text(f'[Click]\nowner = "{owner}"', encoding="utf-8")
    assert read_policies(file)["Click"].owner == owner


@pytest.mark.parametrize(("text", "hours"), [("1h", 1), ("24h", 24), ("7d", 168)])
def test_a_silence_is_in_hours_or_days(tmp_path: Path, text: str, hours: int) -> None:
    file = tmp_path / "topics.toml"
    file.write_text(f"[Click]\nsilent_after = '{text}'\n[PageView]\n")
    policies = read_policies(file)
    assert policies["Click"].silent_after_ms == hours * 3_600_000
    assert policies["PageView"].silent_after_ms is None


def test_without_the_variable_no_topic_has_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_TOPICS_FILE", raising=False)
    assert policies_of_environment() == {}


def test_a_topic_s_subject_is_as_the_file_says_unless_a_word_says_otherwise(file: Path) -> None:
    subjects = Subjects.of_environment()
    assert (subjects.of(ORDERS), subjects.of("PageView")) == (f"{ORDERS}-value", "PageView")
    assert Subjects.of_environment(["record"]).of(ORDERS) == f"{ORDERS}-value"
    assert Subjects.of_environment([f"{ORDERS}=Orders"]).of(ORDERS) == "Orders"


def test_the_auditor_takes_carried_for_proof_where_the_file_or_the_option_says_so(file: Path) -> None:
    options = AuditOptions(origins=["dc1"], carried="legacy.*", policies=read_policies(file))
    assert [options.carried_is_enough(topic) for topic in (ORDERS, "legacy.x", "PageView", "Other")] == [
        True,
        True,
        False,
        False,
    ]


def load(tmp_path: Path, file: Path, **words: object) -> Load:
    given = {name: None for name, _ in command_line_fields(Load)}
    needed = {"warehouse": str(tmp_path / "w"), "bootstrap": "127.0.0.1:1", "registry": "http://r"}
    return parse_request(Load, {**given, **needed, "policies": str(file), **words})


def test_a_load_s_limits_are_the_topic_s_and_options_outweigh_them(tmp_path: Path, file: Path) -> None:
    one = load(tmp_path, file).for_topic(ORDERS)
    assert (one.max_bytes, one.max_rejected, one.accept_rejected) == (2 << 30, "1%", True)
    one = load(tmp_path, file).for_topic("PageView")
    assert (one.max_bytes, one.max_rejected, one.accept_rejected) == (None, "", False)
    one = load(tmp_path, file, max_bytes="5MB", max_rejected="7").for_topic(ORDERS)
    assert (one.max_bytes, one.max_rejected) == (5_000_000, "7")


def test_a_size_that_is_none_is_refused_with_its_topic(tmp_path: Path, file: Path) -> None:
    file.write_text("[Click]\nmax_bytes = 'many'")
    with pytest.raises(ConfigError, match="Click: max_bytes 'many' is not a size"):
        load(tmp_path, file).for_topic("Click")


MATCHING = """
[topics_matching.'legacy\\..*']
proof = "carried"
subject = "topic-value"
max_rejected = "5%"
silent_after = "24h"
format = "json"
[topics_matching.'.*\\.orders']
proof = "complete"
owner = "team-shop"
["legacy.orders"]
max_rejected = "1%"
accept_rejected = true
"""


@pytest.fixture
def matching(file: Path) -> Path:
    file.write_text(MATCHING)
    return file


def test_the_topic_s_own_table_decides_about_its_keys_then_the_first_expression_that_matches(
    matching: Path,
) -> None:
    policies = read_policies(matching)
    assert policies["legacy.orders"] == TopicPolicy(
        proof="carried",
        subject="topic-value",
        max_rejected="1%",
        silent_after="24h",
        format="json",
        owner="team-shop",
        accept_rejected=True,
    )
    assert policies["shop.orders"] == TopicPolicy(owner="team-shop")
    assert policies.get("not.legacy.x") is None, "the whole name matches"
    assert [*policies] == ["legacy.orders"], "Airflow's tasks are of topics that the file names"


def test_a_key_of_its_own_table_decides_even_with_the_default_value(file: Path) -> None:
    file.write_text("[topics_matching.'P.*']\nproof = 'carried'\n[PageView]\nproof = 'complete'")
    assert read_policies(file)["PageView"].proof == "complete"
    assert read_policies(file)["PageClick"].proof == "carried"


def test_a_file_may_have_expressions_only(file: Path) -> None:
    file.write_text("[topics_matching.'.*']\nproof = 'carried'")
    assert read_policies(file)
    assert read_policies(file)["PageView"].proof == "carried"


def test_loads_and_the_auditor_read_the_settings_of_matching_topics(tmp_path: Path, matching: Path) -> None:
    one = load(tmp_path, matching).for_topic("legacy.x")
    assert (one.max_rejected, one.format) == ("5%", "json")
    subjects = Subjects.of_environment()
    assert (subjects.of("legacy.x"), subjects.of("shop.x")) == ("legacy.x-value", "shop.x")
    options = AuditOptions(origins=["dc1"], policies=read_policies(matching))
    assert options.carried_is_enough("legacy.x")
    assert not options.carried_is_enough("shop.orders")
    assert options.owner_of("shop.orders") == "team-shop"


def test_a_job_gets_the_policies_of_its_topics(tmp_path: Path, matching: Path) -> None:
    policies = policies_of_topics(read_policies(matching), ["legacy.x", "Other"])
    request = dataclasses.replace(load(tmp_path, matching), policies=policies)
    sent = json.loads(json.dumps(dataclasses.asdict(request)))
    assert from_mapping(Load, sent, "job").policies == {
        "legacy.x": read_policies(matching)["legacy.x"],
        "Other": TopicPolicy(),
    }
