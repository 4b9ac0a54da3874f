"""The names that a topic may have, and the name of its table."""

from __future__ import annotations

import re

from millrace.errors import InvalidTopic

MAX_NAME = 249


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic unless Kafka, too, would accept the name."""
    if not re.fullmatch(rf"[a-zA-Z0-9._-]{{1,{MAX_NAME}}}", name) or name in (".", ".."):
        raise InvalidTopic(
            f"{name!r} is not a topic name: use 1 to {MAX_NAME} letters, digits, dots, underscores or hyphens"
        )


def table_name(topic: str) -> str:
    """Return the name of a topic's table: `.` and `-` become `_`."""
    return topic.replace(".", "_").replace("-", "_")
