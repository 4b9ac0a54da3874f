"""Files with secrets are read by their owner alone, or belong to root and one group, as in Kubernetes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.security.certificates import read_secret

USER = 10001


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file in a folder that every user may enter, which pytest's folders are not."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("a secret\n")
        file.flush()
        yield Path(file.name)


@contextmanager
def another_user() -> Iterator[None]:
    """The process goes on as another user, in a group of that number."""
    group = os.getegid()
    os.setegid(USER)
    os.seteuid(USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


def test_a_file_that_the_group_can_read_is_refused_to_its_owner(secret: Path) -> None:
    secret.chmod(0o440)
    with pytest.raises(ConfigError, match="can be read by others: chmod 600"):
        read_secret(str(secret), "the password")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_the_group_may_read_a_file_of_roots_and_nobody_else_may(secret: Path) -> None:
    os.chown(secret, 0, USER)
    for mode in (0o440, 0o640):
        secret.chmod(mode)
        with another_user():
            assert read_secret(str(secret), "the password") == "a secret"
    for mode in (0o444, 0o460):
        secret.chmod(mode)
        with another_user(), pytest.raises(ConfigError, match="can be read by others"):
            read_secret(str(secret), "the password")
