"""PageView messages for benchmarks: as varied as a real web server's log, the same in every run.

A few popular values and many rare ones, as many different ones as 10,000 requests to a public site had: 1,750
addresses, 1,500 paths, 560 browsers, 630 referrers. Several producers, times that rise and overlap a little.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro

from millrace.records import BatchHeader, Message, build_batch
from millrace.records.compression import Codec

PAGE_VIEW: dict[str, Any] = json.loads((Path(__file__).parents[2] / "schemas" / "PageView.avsc").read_text())
SCHEMA_ID = 1
START_MS = 1431857103000
PREFIX = b"\0" + SCHEMA_ID.to_bytes(4, "big")
_HOSTS = 8
_WORDS = (
    "presentations",
    "logstash",
    "images",
    "kibana",
    "blog",
    "geekery",
    "articles",
    "projects",
    "xdotool",
    "files",
    "style",
)


def _popular(dice: random.Random, values: Sequence[Any]) -> Any:
    """One of the values; the n-th about 1/n as often as the first."""
    return values[int(len(values) ** dice.random()) - 1]


class Visitors:
    """Values that the requests choose from."""

    def __init__(self, dice: random.Random) -> None:
        self.addresses = [".".join(str(dice.randrange(256)) for _ in range(4)) for _ in range(1750)]
        self.urls = [self._path(dice) for _ in range(1500)]
        self.referrers = [f"http://www.{dice.choice(_WORDS)}.com{self._path(dice)}" for _ in range(630)]
        self.browsers = [self._browser(dice) for _ in range(560)]
        self.instances = [dice.getrandbits(63) for _ in range(_HOSTS)]

    @staticmethod
    def _path(dice: random.Random) -> str:
        words = "/".join(dice.choices(_WORDS, k=dice.randint(1, 4)))
        return f"/{words}/{dice.choice(_WORDS)}-{dice.randrange(1000)}.{dice.choice(('html', 'png', 'css'))}"

    @staticmethod
    def _browser(dice: random.Random) -> str:
        system = dice.choice(
            ("Windows NT 6.1; WOW64", "Macintosh; Intel Mac OS X 10_9_1", "X11; Linux x86_64")
        )
        engine = f"AppleWebKit/{dice.randrange(530, 540)}.{dice.randrange(50)} (KHTML, like Gecko)"
        chrome = f"Chrome/{dice.randrange(20, 34)}.0.{dice.randrange(2000)}"
        return f"Mozilla/5.0 ({system}) {engine} {chrome} Safari/537.36"

    def line(self, dice: random.Random) -> str:
        """A request as a web server writes it down."""
        address, url = _popular(dice, self.addresses), _popular(dice, self.urls)
        size, browser = dice.randrange(10**5), _popular(dice, self.browsers)
        return f'{address} - - "GET {url} HTTP/1.1" 200 {size} "{browser}"'

    def event(self, number: int, dice: random.Random) -> dict[str, Any]:
        """The number-th request of all, a millisecond after the one before."""
        host = number % _HOSTS
        return {
            "header": {
                "time": START_MS + number + dice.randrange(200),
                "server": f"web-{host}.dc1.example.com",
                "service": "www",
                "instance": self.instances[host],
                "sequence": number // _HOSTS,
            },
            "memberId": None if dice.random() < 0.5 else dice.randrange(10**7),
            "clientAddress": _popular(dice, self.addresses),
            "method": "GET" if dice.random() < 0.99 else "POST",
            "url": _popular(dice, self.urls),
            "protocol": "HTTP/1.1" if dice.random() < 0.93 else "HTTP/1.0",
            "referrer": None if dice.random() < 0.4 else _popular(dice, self.referrers),
            "userAgent": _popular(dice, self.browsers),
            "status": 200 if dice.random() < 0.91 else dice.choice((304, 404, 206, 301)),
            "bytes": None if dice.random() < 0.07 else dice.randrange(10 ** dice.randint(3, 6)),
        }


def page_views(records: int) -> Iterator[Message]:
    """That many messages, each a zero byte, the schema's id and an Avro body."""
    dice = random.Random(1)
    visitors, schema = Visitors(dice), fastavro.parse_schema(PAGE_VIEW)
    for number in range(records):
        event, out = visitors.event(number, dice), io.BytesIO()
        out.write(PREFIX)
        fastavro.schemaless_writer(out, schema, event)
        yield Message(event["header"]["time"], None, out.getvalue())


def batches_of(
    messages: Sequence[Message], codec: Codec, per_batch: int
) -> Iterator[tuple[BatchHeader, bytes]]:
    """The messages in record batches, their offsets byte positions from 0 on."""
    position = 0
    for first in range(0, len(messages), per_batch):
        raw = build_batch(messages[first : first + per_batch], codec=codec, base_offset=position)
        header = BatchHeader.parse(raw)
        assert header is not None
        yield header, raw
        position += header.size
