"""`millrace topics policy`: every setting that holds for a topic, and where it is set."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from millrace.cli import cli
from millrace.errors import ConfigError, InvalidTopic
from millrace.topics_file import TopicPolicy

FILE = """
[PageView]
proof = "complete"
["shop.orders.v1"]
subject = "topic-value"
proof = "carried"
accept_rejected = true
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "topics.toml"
    path.write_text(FILE)
    monkeypatch.setenv("MILLRACE_TOPICS_FILE", str(path))
    monkeypatch.delenv("MILLRACE_SUBJECTS", raising=False)
    return str(path)


def in_table(file: str, topic: str) -> str:
    return f"{file}: [{topic}]"


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["topics", "policy", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def settings(*words: str) -> dict[tuple[str, str], tuple[object, str]]:
    records = json.loads(run(*words, "--json"))
    return {(one["topic"], one["setting"]): (one["value"], one["set_by"]) for one in records}


def test_every_setting_of_every_topic_is_shown_with_its_origin(file: str) -> None:
    shown = settings()
    names = {field.name for field in fields(TopicPolicy)}
    assert shown.keys() == {(topic, name) for topic in ("PageView", "shop.orders.v1") for name in names}
    assert shown["shop.orders.v1", "proof"] == ("carried", in_table(file, "shop.orders.v1"))
    assert shown["shop.orders.v1", "accept_rejected"] == (True, in_table(file, "shop.orders.v1"))
    assert shown["shop.orders.v1", "mirror"] == (False, "default")
    assert shown["PageView", "proof"] == ("complete", in_table(file, "PageView"))


def test_a_topic_that_the_file_does_not_name_has_the_defaults(file: str) -> None:
    assert {origin for _, origin in settings("Other").values()} == {"default"}


def test_the_subject_is_the_one_that_commands_take(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_SUBJECTS", "record PageView=Views")
    shown = settings("PageView", "shop.orders.v1", "Other")
    assert shown["PageView", "subject"] == ("Views", "MILLRACE_SUBJECTS")
    assert shown["shop.orders.v1", "subject"] == ("topic-value", in_table(file, "shop.orders.v1"))
    assert shown["Other", "subject"] == ("record", "MILLRACE_SUBJECTS")


def test_people_read_values_as_the_file_writes_them(file: str) -> None:
    (line,) = [line for line in run("shop.orders.v1").splitlines() if "accept_rejected" in line]
    assert line.split(maxsplit=3) == [
        "shop.orders.v1",
        "accept_rejected",
        "true",
        in_table(file, "shop.orders.v1"),
    ]


def test_without_a_file_topics_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_TOPICS_FILE", raising=False)
    assert settings("PageView")["PageView", "proof"] == ("complete", "default")
    with pytest.raises(ConfigError, match="there is no file of topics: name topics"):
        run()


def test_a_name_that_no_topic_may_have_is_refused(file: str) -> None:
    with pytest.raises(InvalidTopic, match="is not a topic name"):
        run("a b")


def test_a_setting_of_matching_topics_names_their_expression(file: str) -> None:
    with Path(file).open("a") as more:
        more.write(
            "[topics_matching.'shop\\..*']\nproof = 'complete'\nmax_bytes = '1GiB'\nsubject = 'record'\n"
        )
    shown, matching = settings("shop.orders.v1", "shop.clicks"), f"{file}: [topics_matching.'shop\\..*']"
    assert shown["shop.orders.v1", "proof"] == ("carried", in_table(file, "shop.orders.v1"))
    assert shown["shop.orders.v1", "max_bytes"] == ("1GiB", matching)
    assert shown["shop.clicks", "subject"] == ("record", matching)
    assert shown["shop.clicks", "owner"] == ("", "default")
