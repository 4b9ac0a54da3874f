"""A web server's access log for tests, written here, with the oddities of real ones; and what a log holds.

`python -m tests.access_log FILE` writes the log that the tests read. Times step back, lines come hours late
or minutes early, agents are missing, strange or cut, and requests hold escapes and bytes that are no text.
The file that the environment variable ACCESS_LOG names is read beside it.
"""

from __future__ import annotations

import os
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

LINES = 10_000
HOURS = 84
START = datetime(2015, 5, 17, 10, tzinfo=UTC)

PATHS = (
    "/",
    "/favicon.ico",
    "/style2.css",
    "/images/jordan-80.png",
    "/robots.txt",
    "/blog/puppet?flav=rss20",
    "/projects/xdotool/",
    "/presentations/logstash/images/search.png",
    "/files/logstash/logstash-1.3.2.jar",
    "/?page=%2e%2e%2fetc",
    "/articles/caf%C3%A9/",
    "/search?q=a+b&lang=en",
    "/a b c",
)
AGENTS = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_9_1) AppleWebKit/537.36 (KHTML, like Gecko) Safari/537.36",
    "Mozilla/5.0 (Windows NT 6.1; rv:11.0) Gecko/20100101 Firefox/11.0",
    "Mozilla/4.0 (compatible; MSIE 6.0; Windows NT 5.1; SV1)",
    "Mozilla/5.0 (compatible; Crawler/2.1; +http://crawler.example/bot.html)",
    "curl/7.35.0",
    "-",
)
REFERRERS = ("-", "-", "http://shop.example/", "http://search.example/?q=log%20files&ie=utf-8")
# What stands between the quotes of some lines, and nowhere else.
ODD_REQUESTS = (
    b"GET /caf\xff HTTP/1.1",
    rb"\x16\x03\x01\x00",
    b"GET /old",
    rb"GET /say/\"hello\" HTTP/1.1",
    b"-",
)
ODD_REFERRERS = (rb"http://\xe4\xe5\xe3\xf2\xff.\xf0\xf4/", rb"http://search.example/?q=\"lost events\"")
ODD_AGENTS = (rb"say \"hi\"", rb"() { :;}; /bin/ping", "Mühle/1.0".encode(), b"", b"x" * 900)

_TIME = re.compile(r"\[(\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\]")


@dataclass(frozen=True, slots=True)
class AccessLog:
    """A log file, and what a test expects of it, read without Millrace's parser."""

    name: str
    path: Path

    def times_ms(self) -> Iterator[int]:
        """The event times, in the order of the lines."""
        for line in self.path.read_text(errors="replace").splitlines():
            match = _TIME.search(line)
            assert match is not None, line
            yield int(datetime.strptime(match[1], "%d/%b/%Y:%H:%M:%S %z").timestamp() * 1000)

    def hours(self) -> Counter[str]:
        """Lines per hour in UTC, `2015-05-17T10`."""
        return Counter(f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%dT%H}" for time in self.times_ms())


def access_log_names() -> list[str]:
    """The logs that a test reads: the written one and, where ACCESS_LOG is set, the given one."""
    return ["written", "given"] if os.environ.get("ACCESS_LOG") else ["written"]


def open_access_log(name: str, folder: Path) -> AccessLog:
    """One of these logs, the written one in `folder`; a given one that is missing is an error, no skip."""
    if name == "written":
        path = folder / "access.log"
        write_access_log(path)
    else:
        path = Path(os.environ["ACCESS_LOG"])
        if not path.is_file():
            raise FileNotFoundError(
                f"ACCESS_LOG={path} is no file: name an access log or leave ACCESS_LOG empty"
            )
    return AccessLog(name, path)


def write_access_log(path: Path, *, lines: int = LINES, hours: int = HOURS, seed: int = 1) -> None:
    """Write a log of so many lines over so many hours; the same seed writes the same bytes."""
    chance = random.Random(seed)
    written = [_line(chance, time) for time in _times(chance, lines, timedelta(hours=hours))]
    written[-1] = written[-1][:-9]  # a server that was killed cuts its last line
    path.write_bytes(b"\n".join(written) + b"\n")


def _times(chance: random.Random, lines: int, span: timedelta) -> Iterator[datetime]:
    """Times that go forward over all and often step back; 1 line in 100 is hours late, 1 in 200 is early."""
    for index in range(lines):
        offset = span * index / lines + timedelta(seconds=chance.randrange(-180, 181))
        match index % 200:
            case 50 | 150:
                offset -= timedelta(seconds=chance.randrange(3 * 3600))
            case 100:
                offset += timedelta(seconds=chance.randrange(40 * 60))
        yield START + min(max(offset, timedelta()), span - timedelta(seconds=1))


def _line(chance: random.Random, time: datetime) -> bytes:
    method = chance.choices(("GET", "HEAD", "POST", "OPTIONS"), (990, 7, 2, 1))[0]
    request = f"{method} {chance.choice(PATHS)} HTTP/1.{chance.choice('01')}".encode()
    referrer, agent = chance.choice(REFERRERS).encode(), chance.choice(AGENTS).encode()
    match chance.randrange(300):
        case 0:
            request = chance.choice(ODD_REQUESTS)
        case 1:
            referrer = chance.choice(ODD_REFERRERS)
        case 2:
            agent = chance.choice(ODD_AGENTS)
    address = f"10.{chance.randrange(8)}.{chance.randrange(256)}.{chance.randrange(256)}"
    status = chance.choices((200, 304, 404, 301, 206, 500), (910, 45, 21, 16, 5, 3))[0]
    size = "-" if status == 304 or chance.random() < 0.02 else str(chance.randrange(100, 300_000))
    front = f"{address} - - [{time:%d/%b/%Y:%H:%M:%S +0000}]".encode()
    return b'%s "%s" %d %s "%s" "%s"' % (front, request, status, size.encode(), referrer, agent)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tests.access_log FILE")
    write_access_log(Path(sys.argv[1]))
