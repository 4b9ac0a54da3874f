from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path

import pytest

from millrace.errors import MillraceError
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.messages import schema_file
from millrace_demo.access_log import BadLine, Part, check_log, parse_line, read_log
from tests.access_log import AccessLog, open_access_log

LINE = (
    '83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203023'
    ' "http://semicomplete.com/x" "Mozilla/5.0 (X11)"'
)
HOUR_MS = 3_600_000
HEADER = {"time": 1, "server": "web-1", "service": "web", "instance": 1, "sequence": 0}


def test_every_field_of_a_line_is_read() -> None:
    time_ms, fields = parse_line(LINE)
    assert time_ms == 1_431_857_103_000
    assert fields == {
        "memberId": None,
        "clientAddress": "83.149.9.216",
        "method": "GET",
        "url": "/a?b=1",
        "protocol": "HTTP/1.1",
        "referrer": "http://semicomplete.com/x",
        "userAgent": "Mozilla/5.0 (X11)",
        "status": 200,
        "bytes": 203023,
    }


@pytest.mark.parametrize(
    ("old", "new", "field", "value"),
    [
        ("203023", "-", "bytes", None),
        ('"http://semicomplete.com/x"', '"-"', "referrer", None),
        ('"Mozilla/5.0 (X11)"', '"-"', "userAgent", None),
        ('"Mozilla/5.0 (X11)"', r'"say \"hi\""', "userAgent", 'say "hi"'),
        ("/a?b=1", r"/a\"b", "url", '/a"b'),
        ("/a?b=1", r"/a\\b\\\"c", "url", r"/a\b\"c"),
        ("semicomplete.com/x", r"x/\"\\", "referrer", r'http://x/"' + "\\"),
        ("(X11)", r"C:\\x \x16", "userAgent", r"Mozilla/5.0 C:\x \x16"),
        ("GET /a?b=1 HTTP/1.1", "GET /a b c HTTP/1.1", "url", "/a b c"),
        ("GET /a?b=1 HTTP/1.1", "GET /a", "protocol", ""),
        ("GET /a?b=1 HTTP/1.1", r"\x16\x03\x01", "url", r"\x16\x03\x01"),
        ("GET /a?b=1 HTTP/1.1", "-", "url", "-"),
        ("83.149.9.216", "2001:db8::1", "clientAddress", "2001:db8::1"),
    ],
)
def test_the_odd_lines_that_servers_do_write_are_read(old: str, new: str, field: str, value: object) -> None:
    assert parse_line(LINE.replace(old, new))[1][field] == value


def test_a_line_of_common_format_has_no_referrer_and_no_agent() -> None:
    fields = parse_line(LINE.partition(' "http')[0])[1]
    assert (fields["referrer"], fields["userAgent"]) == (None, None)


def test_a_line_cut_inside_its_last_field_keeps_what_is_left() -> None:
    assert parse_line(LINE[:-6])[1]["userAgent"] == "Mozilla/5.0 "


@pytest.mark.parametrize(
    ("zone", "time"), [("+0200", "2015-05-17T08:05:03"), ("-0730", "2015-05-17T17:35:03")]
)
def test_the_event_time_is_utc_whatever_zone_the_server_wrote(zone: str, time: str) -> None:
    time_ms, _ = parse_line(LINE.replace("+0000", zone))
    assert datetime.fromtimestamp(time_ms / 1000, UTC).isoformat()[:19] == time


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        LINE[:60],
        LINE.replace(" 200 ", " twohundred "),
        LINE.replace("May", "Mai"),
        LINE.replace("17/May", "32/May"),
        LINE.replace("10:05:03", "25:05:03"),
        LINE + " more",
    ],
)
def test_what_is_no_line_of_a_log_is_a_bad_line(line: str) -> None:
    with pytest.raises(BadLine):
        parse_line(line)


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{LINE}\n\nnonsense\n{LINE}\n")
    assert check_log(path, skip_bad_lines=True) == (2, 1)
    with pytest.raises(MillraceError, match="1 lines cannot be read, nothing was published"):
        check_log(path)
    with pytest.raises(MillraceError, match="line 3: it is not in combined format"):
        list(read_log(path))
    assert [event.line for event in read_log(path, bad=[])] == [1, 4]


def test_bytes_that_are_no_text_do_not_stop_the_file_and_can_be_encoded(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        LINE.replace("/a?b=1", "/caf").encode() + b"\n" + LINE.encode().replace(b"/a?", b"/\xff?")
    )
    urls = [event.fields["url"] for event in read_log(path)]
    assert urls == ["/caf", r"/\xff?b=1"]
    for event in read_log(path):
        EventSchema(schema_file("PageView"), 1).encode(HEADER, event.fields)


def test_the_parts_of_a_file_are_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{LINE}\n" * 10)
    parts = [[event.line for event in read_log(path, Part(n, 3))] for n in (1, 2, 3)]
    assert parts == [[1, 4, 7, 10], [2, 5, 8], [3, 6, 9]]


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "-1/2", "a/b"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MillraceError, match="--part"):
        Part.parse(text)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match=r"cannot read .*nowhere.log"):
        check_log(tmp_path / "nowhere.log")


def test_a_log_is_read_to_its_last_line_and_keeps_every_hour(access_log: AccessLog) -> None:
    schema = EventSchema(schema_file("PageView"), 1)
    hours: Counter[str] = Counter()
    for event in read_log(access_log.path):
        schema.encode(HEADER, event.fields)
        hours[f"{datetime.fromtimestamp(event.time_ms / 1000, UTC):%Y-%m-%dT%H}"] += 1
    assert hours == access_log.hours()


def test_the_log_written_for_tests_has_the_oddities_of_real_ones(tmp_path: Path) -> None:
    log = open_access_log("written", tmp_path)
    times = list(log.times_ms())
    hours = sorted(log.hours())
    assert (len(times), len(hours), hours[0], hours[-1]) == (10_000, 84, "2015-05-17T10", "2015-05-20T21")
    assert sum(later < earlier for earlier, later in pairwise(times)) > 3_500, "times step back"
    so_far = list(accumulate(times, max))
    assert sum(newest - time > HOUR_MS for time, newest in zip(times, so_far, strict=True)) > 50, "late lines"
    assert (
        sum(later - newest > HOUR_MS // 4 for newest, later in zip(so_far, times[1:], strict=False)) > 20
    ), "early lines"
    content = log.path.read_bytes()
    for odd in (rb"\"", rb"\x", b"\xff", b'"-"', b'""', b" - ", b"x" * 900, b"HEAD /"):
        assert odd in content
    assert not content.endswith(b'"\n'), "its last line is cut"
    assert open_access_log("written", tmp_path).path.read_bytes() == content, "the same seed, the same bytes"
