from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import accumulate, pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace_demo.access_log
from millrace.errors import MillraceError
from millrace_audit.reports.event import EventSchema
from millrace_audit.reports.messages import schema_file
from millrace_demo.access_log import Part, RefusedLines, events_of, parse_event, read_log
from millrace_demo.log_format import BadLine, LogFormat
from millrace_demo.log_lines import MAX_LINE_BYTES, LineSplitter, RawLine
from tests.access_log import AccessLog, open_access_log

LINE = (
    '83.149.9.216 - frank [17/May/2015:10:05:03 +0000] "GET /a?b=1 HTTP/1.1" 200 203023'
    ' "http://semicomplete.com/x" "Mozilla/5.0 (X11)"'
)
HOUR_MS = 3_600_000
USUAL = LogFormat()
parse_line = USUAL.parse
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
        LINE.replace("203023", "9" * 19),
        LINE.replace("- frank", "- frank von stein"),
        LINE + "more",
    ],
)
def test_what_is_no_line_of_a_log_is_a_bad_line(line: str) -> None:
    with pytest.raises(BadLine):
        parse_line(line)


VHOST = "shop.example:443 " + LINE
MAIN = LINE + ' "203.0.113.9"'
TIMED = LINE + ' "-" 0.012 0.011, 0.001 rt=0.1 uct="0.0 0.1" "caf\u00e9'


@pytest.mark.parametrize("line", [VHOST, MAIN, TIMED, VHOST.partition(' "http')[0], LINE + "  "])
def test_a_virtual_host_before_and_more_values_behind_change_nothing(line: str) -> None:
    expected = parse_line(LINE.partition(' "http')[0] if line.endswith("203023") else LINE)
    assert parse_line(line) == expected


OWN = [
    ('%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"', LINE),
    (r"%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\"".replace("\\\\", "\\"), LINE),
    ('%v:%p %h %l %u %t "%r" %s %O "%{Referer}i" "%{User-Agent}i"', VHOST),
    (
        '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"'
        ' "$http_user_agent" "$http_x_forwarded_for"',
        MAIN,
    ),
    (
        "$msec|${remote_addr}|$request_method $request_uri $server_protocol|$status|$bytes_sent|$http_referer"
        "|$upstream_response_time|$http_user_agent",
        "1431857103.000|83.149.9.216|GET /a?b=1 HTTP/1.1|200|203023|http://semicomplete.com/x|0.1, 0.2"
        "|Mozilla/5.0 (X11)",
    ),
    (
        '%{msec}t %a %m %U%q %H %>s %B "%{Referer}i" %D "%{User-agent}i"',
        '1431857103000 83.149.9.216 GET /a?b=1 HTTP/1.1 200 203023 "http://semicomplete.com/x" 1200'
        ' "Mozilla/5.0 (X11)"',
    ),
    (
        '$time_iso8601 $remote_addr "$request" $status $bytes_sent "$http_referer" "$http_user_agent"',
        '2015-05-17T12:05:03+02:00 83.149.9.216 "GET /a?b=1 HTTP/1.1" 200 203023 "http://semicomplete.com/x"'
        ' "Mozilla/5.0 (X11)"',
    ),
]


@pytest.mark.parametrize(("text", "line"), OWN)
def test_a_servers_own_format_is_read_as_its_configuration_has_it(text: str, line: str) -> None:
    assert LogFormat(text).parse(line) == parse_line(LINE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "lacks the client"),
        ("nonsense", "lacks the client"),
        ('%h %t "%r"', r"lacks the status \(%>s or \$status\)"),
        ("$remote_addr $status $time_local $uri$args", "side by side"),
        ('%h %t "%r" %>s ' + "%D " * 70, "more than 64 values"),
        ("$", "lacks"),
        ("%", "lacks"),
    ],
)
def test_a_text_that_is_no_format_is_refused_with_what_it_lacks(text: str, says: str) -> None:
    with pytest.raises(MillraceError, match=says):
        LogFormat(text)


@given(st.text(alphabet='%$hrtsb{}<>! "[]request_addrtimelocalstatus', max_size=60))
def test_any_text_is_a_format_or_refused(text: str) -> None:
    try:
        log_format = LogFormat(text)
    except MillraceError:
        return
    with pytest.raises(BadLine):
        log_format.parse("no line of any format")


def raw(text: bytes, number: int = 1) -> RawLine:
    return RawLine(number, text, len(text))


FORMATS = [USUAL, *(LogFormat(text) for text, _ in OWN)]
PIECES = [
    b" ",
    b'"',
    b"\\",
    b"\xff",
    b"\0",
    b"[17/May/2015:10:05:03 +0000]",
    b"GET / HTTP/1.1",
    b"200",
    b"-",
    b"a",
    b"|",
]


@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)))
def test_any_bytes_are_an_event_that_can_be_encoded_or_a_bad_line(text: bytes) -> None:
    for log_format in FORMATS:
        try:
            event = parse_event(raw(text.replace(b"\n", b"")), log_format)
        except BadLine:
            continue
        EventSchema(schema_file("PageView"), 1).encode(HEADER, event.fields)


@given(
    st.lists(st.sampled_from([LINE.encode(), *PIECES]), min_size=1, max_size=4).map(b"".join),
    st.integers(0, len(LINE)),
)
def test_the_longest_line_costs_little_however_it_is_made(piece: bytes, cut: int) -> None:
    """In proportion to its length: what doubles back over itself would take hours for some of these."""
    text = (LINE.encode()[:cut] + piece * (MAX_LINE_BYTES // len(piece)))[:MAX_LINE_BYTES]
    for log_format in FORMATS:
        began = process_time()
        with suppress(BadLine):
            parse_event(raw(text), log_format)
        assert process_time() - began < 1


def test_what_is_no_event_goes_to_a_file_with_the_reason_and_stops_nothing(tmp_path: Path) -> None:
    ahead = (datetime.now(UTC) + timedelta(days=3)).strftime("%d/%b/%Y")
    texts = [
        LINE.encode(),
        b"",
        b"nonsense \xff\0",
        LINE.replace("17/May/2015", "17/May/1815").encode(),
        LINE.replace("17/May/2015", ahead).encode(),
        b"x" * (MAX_LINE_BYTES + 1),
        LINE.encode(),
    ]
    refused = RefusedLines(tmp_path / "refused")
    lines = LineSplitter().receive(b"\n".join(texts) + b"\n")
    assert [event.line for event in events_of(lines, Part(), USUAL, refused)] == [1, 7]
    refused.close()
    entries = [json.loads(line) for line in refused.path.read_text().splitlines()]
    assert [(entry["line"], entry["bytes"]) for entry in entries] == [
        (number, len(texts[number - 1])) for number in (3, 4, 5, 6)
    ]
    assert [entry["reason"].split(":")[0] for entry in entries] == [
        "it is in no usual format",
        *["its time is before the year 2000 or more than a day ahead of this machine's clock"] * 2,
        "it has 65,537 bytes, more than 65,536",
    ]
    assert entries[0]["text"] == "nonsense \\xff\0"
    assert refused.count == 4


def test_without_a_refused_line_there_is_no_file_of_them(tmp_path: Path) -> None:
    refused = RefusedLines(tmp_path / "refused")
    list(events_of([raw(LINE.encode())], Part(), USUAL, refused))
    assert not refused.path.exists()


def test_the_file_of_refused_lines_has_an_end_and_the_count_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(millrace_demo.access_log, "REFUSED_BYTES", 2000)
    refused = RefusedLines(tmp_path / "refused")
    lines = [raw(b"nonsense " * 10, number) for number in range(1, 101)]
    assert list(events_of(lines, Part(), USUAL, refused)) == []
    refused.close()
    assert 1500 < refused.path.stat().st_size <= 2000
    assert (refused.count, len(caplog.records)) == (100, 1)


def test_a_folder_that_cannot_be_written_does_not_stop_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = RefusedLines(tmp_path / "nowhere" / "refused")
    lines = [raw(b"nonsense"), raw(LINE.encode(), 2), raw(b"nonsense", 3)]
    assert [event.line for event in events_of(lines, Part(), USUAL, refused)] == [2]
    assert (refused.count, [record.getMessage().split(";")[0] for record in caplog.records]) == (
        2,
        [f"refused lines are no longer written to {refused.path}: No such file or directory"],
    )


def test_a_bad_line_of_the_demos_log_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{LINE}\n\nnonsense\n{LINE}\n")
    with pytest.raises(MillraceError, match="line 3: it is in no usual format"):
        list(read_log(path))


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
    lines = LineSplitter().receive(path.read_bytes())
    parts = [[event.line for event in events_of(lines, Part(n, 3), USUAL)] for n in (1, 2, 3)]
    assert parts == [[1, 4, 7, 10], [2, 5, 8], [3, 6, 9]]


@pytest.mark.parametrize("text", ["", "2", "0/2", "3/2", "1/0", "-1/2", "a/b"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(MillraceError, match="--part"):
        Part.parse(text)


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match=r"cannot read .*nowhere.log"):
        list(read_log(tmp_path / "nowhere.log"))


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
