"""Choice of an origin's topics to mirror: by name, by pattern, not at all."""

from __future__ import annotations

import pytest

from millrace.config import OriginConfig, from_mapping
from millrace.errors import ConfigError
from millrace_mirror.choice import Choice, choose, names_only

CONFIG = OriginConfig(
    bootstrap="x:1",
    topics=("*", "__consumer_offsets", "test-kept"),
    exclude=("test-*", "Secret"),
    batch_topics=("Batch?", "PageView"),
)


@pytest.mark.parametrize(
    ("topic", "choice", "by_name"),
    [
        ("Clicks", Choice.PULLED, False),
        ("audit", Choice.PULLED, False),
        ("audit-offline", None, False),
        ("__transaction_state", None, False),
        ("__consumer_offsets", Choice.PULLED, True),
        ("test-1", None, False),
        ("test-kept", Choice.PULLED, True),
        ("Secret", None, False),
        ("Batch1", Choice.BATCH, False),
        ("Batch12", Choice.PULLED, False),
        ("PageView", Choice.BATCH, True),
    ],
)
def test_a_name_counts_before_what_is_left_out_and_that_before_a_pattern(
    topic: str, choice: Choice | None, by_name: bool
) -> None:
    assert choose(CONFIG, topic) == (choice, by_name)


def test_without_patterns_only_the_named_topics_are_asked_about() -> None:
    assert names_only(CONFIG) is None
    assert names_only(OriginConfig(bootstrap="x:1", topics=("A",), batch_topics=("B",))) == ["A", "B"]


def test_a_limit_that_would_stop_a_mirror_is_refused() -> None:
    assert from_mapping(OriginConfig, {"bootstrap": "x:1", "max_bytes_per_second": -1}, "f") == OriginConfig(
        bootstrap="x:1"
    )
    with pytest.raises(ConfigError, match="at least 10000"):
        OriginConfig(bootstrap="x:1", max_bytes_per_second=9_999)
