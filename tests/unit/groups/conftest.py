"""Fixtures of the group tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.groups.driving import Driven, new_group


@pytest.fixture
def driven() -> Iterator[Driven]:
    """A group without members, with a clock of its own."""
    yield from new_group()
