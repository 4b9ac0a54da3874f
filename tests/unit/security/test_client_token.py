"""A client reads its token from a file with the time when it ends, or refuses it without showing it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from millrace.config import ClientSecurity
from millrace.errors import ConfigError
from millrace.security.client import token


def client(folder: Path, text: str) -> ClientSecurity:
    path = folder / "token"
    path.touch(0o600)
    path.write_text(text)
    return ClientSecurity(protocol="SASL_SSL", mechanism="OAUTHBEARER", token_file=str(path))


def jwt(claims: str) -> str:
    return f"s3cret.{base64.urlsafe_b64encode(claims.encode()).decode().rstrip('=')}.s3cret"


def test_a_token_is_read_with_its_end(tmp_path: Path) -> None:
    written = jwt('{"exp": 1700000000.5}')
    assert token(client(tmp_path, f" {written} \nmore\n")) == (written, 1_700_000_000.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3cret",
        "a.é.s3cret",
        jwt("s3cret"),
        jwt('["exp"]'),
        jwt('{"s3cret": 1}'),
        jwt('{"exp": "soon"}'),
        jwt('{"exp": NaN}'),
        jwt('{"exp": 1e999}'),
        jwt('{"exp": 1' + 400 * "0" + "}"),
        jwt(100_000 * "["),
    ],
)
def test_what_does_not_say_when_it_ends_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="token") as refused:
        token(client(tmp_path, text))
    assert "s3cret" not in str(refused.value)
    assert refused.value.__suppress_context__
