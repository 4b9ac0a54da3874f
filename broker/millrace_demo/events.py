"""Generated events for the demo, as a web site's servers in two datacenters would have published them.

They have what a log file lacks: several audit windows in every hour, and steps back in time, which make
batches straddle windows and hours. The same seed gives the same events.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

HOUR_MS = 3_600_000
PAGES = ("/", "/presentations/", "/projects/xdotool/", "/blog/tags/", "/articles/dynamic-dns", "/favicon.ico")
QUERIES = ("millrace", "kafka byte offsets", "audit trail", "lost messages", "late data")
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Macintosh)", "curl/8.5.0")


@dataclass(frozen=True, slots=True)
class MadeEvent:
    """One event without a header: its topic, its event time (ms) and its fields."""

    topic: str
    time_ms: int
    fields: dict[str, Any]


def made_events(count: int, *, start_ms: int, hours: int, seed: int) -> Iterator[MadeEvent]:
    """Yield `count` events, spread evenly over `hours` from `start_ms`, one in five a SearchQuery.

    Times jitter by up to 90 s, so neighbouring events change places and hours overlap in the stream.
    """
    chance = random.Random(seed)
    span = hours * HOUR_MS
    for index in range(count):
        time_ms = start_ms + index * span // count + chance.randrange(-90_000, 90_000)
        time_ms = min(max(time_ms, start_ms), start_ms + span - 1)
        if index % 5 == 4:
            yield MadeEvent("SearchQuery", time_ms, _search_query(chance))
        else:
            yield MadeEvent("PageView", time_ms, _page_view(chance))


def _page_view(chance: random.Random) -> dict[str, Any]:
    return {
        "memberId": chance.choice((None, chance.randrange(1, 1_000_000))),
        "clientAddress": f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}",
        "method": "GET",
        "url": chance.choice(PAGES),
        "protocol": "HTTP/1.1",
        "referrer": chance.choice((None, "https://search.example/")),
        "userAgent": chance.choice(AGENTS),
        "status": chance.choice((200, 200, 200, 304, 404)),
        "bytes": chance.choice((None, chance.randrange(100, 100_000))),
    }


def _search_query(chance: random.Random) -> dict[str, Any]:
    return {
        "memberId": chance.choice((None, chance.randrange(1, 1_000_000))),
        "query": chance.choice(QUERIES),
        "results": chance.randrange(200),
        "latencyMs": chance.randrange(5, 500),
    }
