"""Each option is said once: what a command makes of words is what a verb is given, in a Spark job too."""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from millrace.config import from_mapping
from millrace.errors import ConfigError
from millrace_warehouse.requests import (
    AuditWarehouse,
    Compact,
    Erase,
    Expire,
    Load,
    Mirror,
    Promote,
    Publish,
    Reload,
    Tables,
    Verify,
    command_line_fields,
    command_options,
    option,
    parse_request,
)
from tests.support import REPOSITORY

REQUIRED: dict[str, Any] = {
    "topic": "T",
    "topics": ("T", "T"),
    "warehouse": "/w",
    "bootstrap": "b:1",
    "registry": "http://r",
    "reason": " why ",
    "older_than_s": "30d",
    "origin": "dc1",
    "origin_bootstrap": "o:1",
}


def words(cls: type, **given: Any) -> dict[str, Any]:
    """The words of a command line with those that a verb requires, as click hands them over."""
    return {
        name: given.get(
            name, REQUIRED[name] if spelt.attributes["required"] else spelt.attributes.get("default")
        )
        for name, spelt in command_line_fields(cls)
    }


VERBS = [Load, Publish, Compact, Tables, Reload, Mirror, Expire, Erase, Promote, Verify, AuditWarehouse]


@functools.cache
def names_that_code_reads() -> set[str]:
    """Attributes that are read anywhere in the plugins outside the module that declares the options."""
    files = [path for path in (REPOSITORY / "plugins").rglob("*.py") if path.name != "requests.py"]
    nodes = itertools.chain.from_iterable(ast.walk(ast.parse(path.read_text())) for path in files)
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("cls", VERBS)
def test_no_option_is_read_from_words_and_then_by_nobody(cls: Any) -> None:
    assert {field.name for field in dataclasses.fields(cls)} <= names_that_code_reads()


@pytest.mark.parametrize("cls", [Load, Reload, Mirror])
def test_a_job_reads_the_very_verb_that_its_command_has_read(cls: type) -> None:
    given: Any = parse_request(cls, words(cls))
    travelled = json.loads(json.dumps(dataclasses.asdict(given)))
    read: Any = from_mapping(cls, travelled, "the job's settings")
    assert dataclasses.asdict(read) == {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in dataclasses.asdict(given).items()
    }


def test_words_that_are_not_given_leave_the_defaults_and_words_mean_values() -> None:
    given = parse_request(Load, words(Load, topics=("B", "A", "B"), max_bytes="2GiB", until_ms=""))
    assert (given.topics, given.max_bytes, given.until_ms, given.cut_bytes) == (
        ["B", "A"],
        2 << 30,
        None,
        64 << 20,
    )
    assert given.run_id.startswith("manual-")
    assert parse_request(Reload, words(Reload, loads="7-9")).loads == [7, 8, 9]
    assert parse_request(Verify, words(Verify, warehouse="w")).warehouse == str(Path("w").absolute())


def test_what_cannot_be_judged_waits_for_ever_unless_an_age_is_given() -> None:
    assert parse_request(Publish, words(Publish)).unproven_after_s is None
    assert parse_request(Publish, words(Publish, unproven_after_s="3d")).unproven_after_s == 259_200


def test_a_default_that_is_a_word_means_the_same_to_code() -> None:
    assert Expire(topic="T", warehouse="/w", older_than_s=1).reader_grace_s == 259_200


@pytest.mark.parametrize("cls", [Publish, Compact, Tables, Expire, Verify])
def test_whoever_reads_or_writes_a_table_may_be_told_its_catalog(cls: type) -> None:
    assert parse_request(cls, words(cls)).catalog == ""
    assert parse_request(cls, words(cls, catalog="lake")).catalog == "lake"


def test_a_word_that_means_nothing_is_refused_by_the_options_name() -> None:
    with pytest.raises(ConfigError, match=r"^--max-bytes 'much' is not a size"):
        parse_request(Mirror, words(Mirror, max_bytes="much"))
    with pytest.raises(ConfigError, match=r"^--bootstrap '' is not HOST:PORT"):
        parse_request(Verify, words(Verify, bootstrap=""))


def test_a_spelling_says_whether_a_word_is_taken_and_how_often() -> None:
    @command_options
    class Try:
        names: str = option("NAME...", default=())
        size: str | None = option("--size SIZE", "How much.", default=None)
        keys: str = option("--key KEY...", "Keys.", default=())
        dry: bool = option("--dry", "Do nothing.", default=False)

    spelt = {name: (each.name, each.attributes) for name, each in command_line_fields(Try)}
    assert spelt["names"] == ("NAME", {"nargs": -1, "metavar": "NAME...", "required": False})
    assert spelt["size"][0] == "--size"
    assert spelt["size"][1] == {"metavar": "SIZE", "help": "How much.", "required": False}
    assert (spelt["keys"][1]["metavar"], spelt["keys"][1]["multiple"]) == ("KEY", True)
    assert spelt["dry"][1]["is_flag"]
