"""All commands spell the same thing in the same way, and docs/commands.md lists them as they are."""

from __future__ import annotations

import json
from collections import defaultdict

import click
import pytest

from millrace.cli import SECTIONS, cli
from millrace.help_texts import EXIT_CODES
from millrace_warehouse.commands.textfile import METRICS
from tests import commands_page, json_answers

LEAVES = dict(commands_page.leaves())
TWO_MEANINGS = {
    "--cluster": {"", "NAME"},  # of `acls`: the cluster itself, as Kafka's tool has it
    "--follow": {"", "TOPIC=PATH"},  # of the agent: a file
    "--to": {"TIME", "WHERE"},  # of `groups seek`
    "--host": {"IP", "HOST"},
    "--accept-rejected": {"", "LOAD"},
    "--last": {"N"},
}
"""Options that mean different things in different commands."""
PRINTS_NO_RESULT = {
    *("demo", "init", "up", "produce", "access add", "security", "schemas export", "brokers drain"),
    *("users create", "users delete", "acls allow", "acls deny", "groups delete", "groups seek"),
    *("topics create", "topics alter", "topics delete", "topics elect"),
    *("mirror run", "mirror adopt", "mirror reset"),
    *SECTIONS["Run"],
}
"""Commands, and groups of them, that do something and print at most one line about it."""


def test_the_page_lists_every_command_as_it_is() -> None:
    page = commands_page.PAGE.read_text()
    _, begin, tables = page.partition(commands_page.BEGIN)
    assert begin + tables == commands_page.tables(), "run: python -m tests.commands_page"


def test_every_command_stands_in_one_section() -> None:
    names = [name for section in SECTIONS.values() for name in section]
    assert sorted(names) == sorted(cli.list_commands(click.Context(cli)))


def test_an_option_has_the_same_value_and_variable_in_every_command() -> None:
    values: dict[str, set[str]] = defaultdict(set)
    variables: dict[str, set[object]] = defaultdict(set)
    for command in LEAVES.values():
        context = click.Context(command)
        for option in commands_page.options(command):
            name = option.opts[0]
            values[name].add("" if option.is_flag else option.make_metavar(context))
            if option.envvar:
                variables[name].add(option.envvar)
    assert {name: found for name, found in values.items() if len(found) > 1} == {
        name: found for name, found in TWO_MEANINGS.items() if len(found) > 1
    }
    several = {name for name, found in variables.items() if len(found) > 1}
    assert several <= {"--database-url"}  # registry and auditor have one each


def test_no_option_has_the_name_of_a_type_for_its_value() -> None:
    for command in LEAVES.values():
        context = click.Context(command)
        for option in commands_page.options(command):
            value = "" if option.is_flag else option.make_metavar(context)
            assert not value.startswith(("INTEGER", "FLOAT", "PATH", "DIRECTORY")), (
                command.name,
                option.opts,
            )


def test_only_the_commands_that_write_metrics_have_an_option_for_their_folder() -> None:
    having = {
        words
        for words, command in LEAVES.items()
        if any(option.opts[0] == "--metrics-dir" for option in commands_page.options(command))
    }
    assert having == METRICS.keys()


@pytest.mark.parametrize("words", LEAVES)
def test_a_command_that_prints_a_result_prints_it_as_json_too(words: str) -> None:
    has_json = any(option.name == "as_json" for option in commands_page.options(LEAVES[words]))
    prints_none = words in PRINTS_NO_RESULT or words.split()[0] in PRINTS_NO_RESULT
    assert has_json != prints_none


def test_the_keys_of_every_json_answer_are_listed() -> None:
    with_json = {
        words
        for words, command in LEAVES.items()
        if any(option.name == "as_json" for option in commands_page.options(command))
    }
    assert with_json == json_answers.ANSWERS.keys()


def test_an_answer_with_another_key_or_without_one_is_noticed() -> None:
    row = {"user": "web", "mechanism": "SCRAM-SHA-512", "iterations": 4096}
    json_answers.check_output(["users", "list", "--json"], json.dumps([row]))
    for wrong in ({**row, "salt": ""}, {"user": "web"}):
        with pytest.raises(AssertionError, match="keys of `millrace users list --json` differ"):
            json_answers.check_output(["users", "list", "--json"], json.dumps([row, wrong]))


@pytest.mark.parametrize("words", LEAVES)
def test_the_help_of_every_command_ends_with_its_exit_codes_alone(words: str) -> None:
    assert LEAVES[words].epilog == EXIT_CODES
