"""Tokens of web services: what is shown must be known, and what is known has roles for names."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.service.access import AccessList, Unauthenticated, add_entry


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "access.toml"


def basic(name: str, token: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()


def test_a_token_is_shown_as_bearer_or_as_the_password_of_its_name(file: Path) -> None:
    token = add_entry(file, "loads", ["read"])
    add_entry(file, "web", ["register"])
    known = AccessList(str(file))
    assert known.name_of(f"Bearer {token}") == "loads"
    assert known.name_of(f"bearer {token}") == "loads"
    assert known.name_of(basic("loads", token)) == "loads"
    assert token not in file.read_text()


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        "Bearer x",
        "Basic",
        "Basic x",
        "Basic ====",
        "Digest x",
        basic("loads", ""),
        "Bearer é",
        "Basic é",
    ],
)
def test_what_is_no_token_is_nobody(file: Path, shown: str | None) -> None:
    add_entry(file, "loads", ["read"])
    with pytest.raises(Unauthenticated):
        AccessList(str(file)).name_of(shown)


def test_a_token_counts_for_its_own_name_only(file: Path) -> None:
    token = add_entry(file, "loads", ["read"])
    known = AccessList(str(file))
    for name in ("web", "", "LOADS"):
        with pytest.raises(Unauthenticated):
            known.name_of(basic(name, token))
    with pytest.raises(Unauthenticated):
        known.name_of(f"Token {token}")


def test_roles_are_given_by_name_prefix_or_for_everything(file: Path) -> None:
    add_entry(file, "web", ["read", "register:web-*", "admin:web-clicks"])
    known = AccessList(str(file))
    assert known.allows("web", "read")
    assert known.allows("web", "read", "anything")
    assert known.allows("web", "register", "web-clicks")
    assert known.allows("web", "admin", "web-clicks")
    assert not known.allows("web", "register", "we")
    assert not known.allows("web", "register")
    assert not known.allows("web", "admin", "web-clicks2")
    assert not known.allows("web", "accept")
    assert not known.allows("others", "read")


def test_the_file_is_read_again_and_stays_as_it_was_when_it_cannot_be(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = add_entry(file, "one", ["read"])
    known = AccessList(str(file))
    second = add_entry(file, "two", ["read"])
    assert known.name_of(f"Bearer {second}") == "two"
    good = file.read_text()
    file.write_text("[one]\ntoken_sha256 = 5\n")
    assert known.name_of(f"Bearer {first}") == "one"
    assert "stays in use" in caplog.text
    file.unlink()
    assert known.name_of(f"Bearer {first}") == "one"
    file.write_text(good.partition("[two]")[0])
    assert known.name_of(f"Bearer {first}") == "one"
    with pytest.raises(Unauthenticated):
        known.name_of(f"Bearer {second}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[a]\nroles = []\n", "missing key 'token_sha256'"),
        ('[a]\ntoken_sha256 = "x"\nroles = ["read"]\n', "is not 64 hex digits"),
        (f'[a]\ntoken_sha256 = "{"0" * 64}"\nroles = ["READ"]\n', "is neither ROLE"),
        (f'["a b"]\ntoken_sha256 = "{"0" * 64}"\nroles = []\n', "is no .NAME."),
        ("a = 5\n", "is no .NAME."),
        ("[[", "cannot read"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=says):
        AccessList(str(file))


def test_a_name_is_added_behind_a_last_line_without_its_end(file: Path) -> None:
    tokens = [add_entry(file, "loads", ["read"])]
    file.write_text(file.read_text().rstrip("\n"))
    tokens.append(add_entry(file, "web", ["register"]))
    known = AccessList(str(file))
    assert [known.name_of(f"Bearer {token}") for token in tokens] == ["loads", "web"]


def test_a_name_is_added_once(file: Path) -> None:
    add_entry(file, "one", ["read"])
    with pytest.raises(ConfigError, match="already has an entry for one"):
        add_entry(file, "one", ["read"])
    with pytest.raises(ConfigError, match="is not 1 to 100"):
        add_entry(file, "a.b", ["read"])
    with pytest.raises(ConfigError, match="is neither ROLE"):
        add_entry(file, "two", ['read"]'])
    assert stat.S_ISREG(file.stat().st_mode)
