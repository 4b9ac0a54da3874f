"""Principal of a client by the subject of its certificate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import ConfigError
from millrace.security.principals import MAX_SUBJECT_CHARACTERS, distinguished_name, parse_rules, principal


def subject(*names: tuple[str, str]) -> tuple[tuple[tuple[str, str], ...], ...]:
    return tuple((name,) for name in names)


def test_a_subject_is_written_with_the_most_special_name_first() -> None:
    whole = (
        *subject(("countryName", "SE"), ("organizationName", "Ab")),
        (("commonName", "x"), ("userId", "7")),
    )
    assert distinguished_name(whole) == "CN=x+UID=7,O=Ab,C=SE"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a,OU=brokers", r"a\2COU\3Dbrokers"),
        ("a\n", r"a\0A"),
        ("a+CN=b", r"a\2BCN\3Db"),
        (r"a\,b", r"a\5C\2Cb"),
        (" #a ", r"\20#a\20"),
        ("#a", r"\23a"),
        ("åäö, ab", r"åäö\2C ab"),
        ("", ""),
    ],
)
def test_a_name_cannot_pretend_to_be_several(value: str, written: str) -> None:
    assert distinguished_name(subject(("commonName", value))) == f"CN={written}"


BROKERS = parse_rules(["RULE:^CN=(.*?),OU=brokers$/$1/L"])


@pytest.mark.parametrize("value", ["x,OU=brokers", "x\n,OU=brokers", "x\\,OU=brokers", "x+OU=brokers"])
def test_no_common_name_passes_for_an_organizational_unit(value: str) -> None:
    assert principal(BROKERS, subject(("commonName", value))) is None
    made = principal(BROKERS, subject(("organizationalUnitName", "brokers"), ("commonName", value)))
    assert made != "User:x"


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_two_subjects_are_never_one(one: str, other: str) -> None:
    names = {principal(parse_rules(["DEFAULT"]), subject(("commonName", value))) for value in (one, other)}
    assert len(names) == (1 if one == other else 2)


def test_the_first_rule_that_takes_a_subject_counts() -> None:
    rules = parse_rules(["RULE:CN=(\\w+)/first-$1/", "RULE:.*/second/U", "DEFAULT"])
    assert principal(rules, subject(("commonName", "a"))) == "User:first-a"
    assert principal(rules, subject(("commonName", "a b"))) == "User:SECOND"


def test_who_is_made_nothing_of_or_has_an_endless_name_is_nobody() -> None:
    assert principal(parse_rules(["RULE:.*//"]), subject(("commonName", "a"))) is None
    endless = subject(("commonName", "a" * MAX_SUBJECT_CHARACTERS))
    assert principal(parse_rules(["DEFAULT"]), endless) is None


@pytest.mark.parametrize(
    "text", ["", "default", "RULE:a", "RULE:a/b", "RULE:(/b/", "RULE:a/$1/", "RULE:a/b/X"]
)
def test_a_rule_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="principal rule"):
        parse_rules([text])
