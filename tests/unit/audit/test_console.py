"""The console on databases that stories have filled: verdicts by hour, what it escapes, what it refuses."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from markupsafe import escape
from sqlalchemy import Engine, update
from sqlalchemy.event import listen, remove
from sqlalchemy.orm import Session

from millrace.service.pages import FILES, duration, short
from millrace.topics_file import TopicPolicy
from millrace_audit.answer import Verdict, iso, overall, utc
from millrace_audit.auditor.judging.topic_facts import MOST_UNCOUNTED
from millrace_audit.auditor.lease import Lease
from millrace_audit.auditor.options import AuditOptions
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers, charts
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.heat import _WORST_LAST, DAY_MS, hours_of_all, newest_end
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.service.overview import MOST_LINKED, Overview, View
from millrace_audit.auditor.store import AuditStore, CoverageRow, TopicRow, WindowRow
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import FOR_EVER, OFFLINE, WAREHOUSE, RejectedMessages
from tests.unit.audit.story import NOW, OPTIONS, TOPIC, Story, W, found
from tests.unit.audit.test_app import Client, Worker

HOUR = {"from": "2015-05-17T10:00Z", "to": "2015-05-17T11:00Z"}
AT = "2015-05-17T10"
EVIL = "<script>alert(1)</script>\"'&"


class Console:
    """A story, and the page about it."""

    def __init__(self, store: AuditStore) -> None:
        self.clock, self.store = NOW, store
        self.policies: dict[str, TopicPolicy] = {}
        self.options = replace(OPTIONS, clock_ms=lambda: self.clock, policies=self.policies)
        self.story = Story(self.store, self.options)
        self.numbers = AuditNumbers(self.store, self.options)
        self._client = Client(build_app(self.store, self.options, Worker(self.numbers)))

    def get(self, path: str = "/console", **query: str) -> httpx.Response:
        return self._client.get(path, params=query)

    def verdicts(self, start: int, end: int) -> dict[str, list[Verdict | None]]:
        with self.store.reading() as session:
            return {
                row.known.topic: [*row.hours]
                for row in hours_of_all(session, self.options, Progress(session), start, end)
            }


@pytest.fixture
def console(request: pytest.FixtureRequest, stores: Callable[[str], AuditStore], tmp_path: Path) -> Console:
    """On SQLite, or on PostgreSQL where a test asks for it."""
    is_postgres = getattr(request, "param", "sqlite") == "postgresql"
    url = request.getfixturevalue("postgres_url") if is_postgres else f"sqlite:///{tmp_path}/audit.db"
    return Console(stores(url))


class Tags(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


class Map(HTMLParser):
    """Verdicts of the only topic's cells: of its links for hours, or of its strip's runs of hours."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.linked, self.drawn, self.labels = list[str](), list[str](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        kinds = [kind for kind in has.get("class", "").split() if kind in {*Verdict, "none"}]
        if tag == "a" and "aria-label" in has:
            self.linked += kinds
            self.labels.append(has["aria-label"])
        if tag == "rect" and kinds and has["height"] == "1":
            at = int(has["x"])
            self.drawn += ["none"] * (at - len(self.drawn)) + kinds * int(has["width"])


def test_an_hour_has_the_verdict_of_its_worst_window_and_one_without_events_none(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    (hours,) = console.verdicts(W - 2 * HOUR_MS, W + HOUR_MS).values()
    assert hours == [None, None, Verdict.COMPLETE]
    console.story.hello(2, time=NOW)
    console.story.report(0, (0, 2), instance=2, window=W + HOUR_MS // 2)
    console.story.beats(NOW + 6000)
    console.clock = NOW + 6000
    console.story.apply()
    (hours,) = console.verdicts(W, W + HOUR_MS).values()
    assert hours == [Verdict.INCOMPLETE], "the other window of the hour is complete"


def test_an_hour_in_which_a_reader_is_silent_is_not_shown_as_one_without_events(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    console.clock = NOW + 3 * HOUR_MS
    (hours,) = console.verdicts(W, W + 4 * HOUR_MS).values()
    assert hours == [Verdict.COMPLETE, *[Verdict.UNKNOWN] * 3], "its readers stand since 11:39"


def test_an_hour_with_news_that_is_not_judged_is_pending(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.writing() as session:
        session.execute(update(WindowRow).values(is_final=False, is_changed=True))
    assert console.verdicts(W, W + HOUR_MS) == {TOPIC: [Verdict.PENDING]}


def test_no_query_of_the_overview_reads_all_windows(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    statements: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, text: str, values: Any, *___: Any) -> None:
        statements.append((text, values))

    listen(Engine, "before_cursor_execute", note)
    try:
        for days in ("2", "30"):
            console.get(days=days)
    finally:
        remove(Engine, "before_cursor_execute", note)
    with console.store.reading() as session:
        cursor = session.connection().connection.cursor()
        plans = {
            text: [str(row[3]) for row in cursor.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()]
            for text, values in statements
            if text.startswith(("SELECT", "WITH"))
        }
    assert any("FROM windows" in text for text in plans)
    assert not [text for text, plan in plans.items() if any(line.startswith("SCAN windows") for line in plan)]


def test_what_the_picture_says_of_an_hour_is_what_the_answer_says_of_it(console: Console) -> None:
    story = console.story
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats()
    story.apply()
    (hours,) = console.verdicts(W, W + HOUR_MS).values()
    answer = console.get(f"/v1/topics/{TOPIC}/completeness", **HOUR).json()
    assert hours == [answer["verdict"]] == ["incomplete"]
    page = console.get("/hour", topic=TOPIC, at=AT).text
    assert "<h3>1 missing at dc1</h3>" in page
    assert "shop on web-1, window 10:00" in page
    assert 'data-copy="millrace log verify DIR"' in page, "what to do about it"


@pytest.mark.parametrize("console", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("days", [2, 7, 30])
def test_the_picture_says_of_each_hour_what_its_windows_say_one_by_one(console: Console, days: int) -> None:
    dice, end = random.Random(days), W - W % HOUR_MS + HOUR_MS
    start = end - days * 24 * HOUR_MS
    console.story.whole()
    console.story.apply()
    words = [*Verdict, *[Verdict.COMPLETE] * 10]
    expected: dict[int, Verdict] = {}
    with console.store.writing() as session:
        for at in range(start - HOUR_MS, end - HOUR_MS, WINDOW_MS):
            if at // DAY_MS % 2 and dice.random() < 0.7:
                continue  # each second day has all windows
            verdict, is_news = dice.choice(words), dice.random() < 0.1
            session.add(WindowRow(topic=TOPIC, window=at, verdict=verdict, is_changed=is_news))
            hour = at - at % HOUR_MS
            seen = [verdict, Verdict.PENDING] if is_news else [verdict]
            expected[hour] = overall([*seen, expected.get(hour, Verdict.COMPLETE)])
    expected[end - HOUR_MS] = Verdict.COMPLETE
    hours = [expected.get(hour) for hour in range(start, end, HOUR_MS)]
    assert {*hours} == {*Verdict, None}
    assert console.verdicts(start, end) == {TOPIC: hours}
    assert console.get(days=str(days)).status_code == 200
    page = Map(console.get(days=str(days), until=iso(end)).text)
    names = [verdict or "none" for verdict in hours]
    if days == 2:
        assert page.linked == names
        assert page.labels[0] == f"{utc(start):%m-%d %H}:00 {hours[0] or 'no events'}"
        return
    after_end = -end % (24 * HOUR_MS) // HOUR_MS  # the map ends with its last day
    assert page.drawn[: len(hours) - after_end] == names[after_end:]
    assert len(page.linked) == days
    assert page.linked[1] == overall(filter(None, hours[after_end:][24:48]))


def test_the_age_of_replayed_events_is_not_shown_as_a_delay(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.reading() as session:
        (window,) = answers.completeness(session, console.options, TOPIC, W, W + WINDOW_MS).windows
    end = W + WINDOW_MS
    console.clock = end + 3_000
    for late_ms in (1_000, 4_000 * 24 * HOUR_MS):
        read_at = {"dc1": end + late_ms, OFFLINE: end + 2_000}
        console.numbers.note_final(window, WindowFacts(topic=TOPIC, start=W, read_at=read_at))
    steps = [(hop.source, hop.tier) for hop in console.numbers.hops(TOPIC)]
    assert steps == [("", "home"), ("home", OFFLINE), (OFFLINE, WAREHOUSE)]
    assert {hop[2:] for hop in console.numbers.hops(TOPIC)} == {(1.0, 1.0, 1)}


def test_a_topics_page_says_how_fast_most_windows_pass_each_hop_and_how_slow_the_slowest_are(
    console: Console,
) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.reading() as session:
        (window,) = answers.completeness(session, console.options, TOPIC, W, W + WINDOW_MS).windows
    end = W + WINDOW_MS
    for copied_s in [5] * 8 + [100] * 2:
        console.clock = end + 120_000
        read_at = {"dc1": end + 3_000, OFFLINE: end + 3_000 + copied_s * 1000}
        console.numbers.note_final(window, WindowFacts(topic=TOPIC, start=W, read_at=read_at))
    _, copy, load = console.numbers.hops(TOPIC)
    assert (copy.median, copy.slow, copy.windows) == (5.0, 100.0, 10)
    assert (load.median, load.slow) == (112.0, 112.0)
    page = console.get("/topic", topic=TOPIC).text
    assert '>home</td><td data-l="to">offline</td><td class="r" data-l="half within">5 s</td>' in page
    assert "1 min</td></tr>" in page


def test_what_producers_say_is_text_and_nothing_else(console: Console) -> None:
    story = console.story
    story.hello(server=EVIL, service=EVIL)
    story.report(0, (0, 9), server=EVIL, service=EVIL)
    story.hello(2, topic=EVIL)
    story.beats()
    story.apply()
    for path, query in (
        ("/console", {}),
        ("/console", {"days": "30"}),
        ("/console", {"until": EVIL}),
        ("/console", {"q": EVIL}),
        ("/console", {"state": EVIL}),
        ("/topic", {"topic": TOPIC}),
        ("/topic", {"topic": EVIL}),
        ("/hour", {"topic": TOPIC, "at": AT}),
        ("/hour", {"topic": EVIL, "at": AT}),
        ("/hour", {"topic": "x", "at": EVIL}),
        ("/cluster", {}),
    ):
        answer = console.get(path, **query)
        assert "<script>alert" not in answer.text
        page = Tags(answer.text)
        assert page.tags.count("script") == 2, "our own files"
        assert {("src", "console.js"), ("src", "theme.js")} <= {*page.attributes}
        named = [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
        assert named == [], "a strict policy lets none of them run"
        links = [value for name, value in page.attributes if name == "href"]
        own = ("?", "#", "v1/", "console", "topic?", "hour?", "cluster", "icon-")
        assert all(link.startswith(own) for link in links), links


def test_the_page_of_a_topic_names_its_owner_and_shows_it_as_text(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    pages: list[tuple[str, dict[str, str]]] = [("/topic", {}), ("/hour", {"at": AT})]
    for path, query in pages:
        assert "owner" not in console.get(path, topic=TOPIC, **query).text
    console.policies[TOPIC] = TopicPolicy(owner=EVIL)
    for path, query in pages:
        page = console.get(path, topic=TOPIC, **query).text
        assert f"/ owner {escape(EVIL)}</p>" in page
        assert "<script>alert" not in page
    assert f"<small>{escape(EVIL)}</small>" in console.get().text


def test_a_topic_with_branch_live_says_how_far_its_fresh_rows_are_behind(console: Console) -> None:
    story = console.story
    story.whole()
    story.apply()
    assert "fresh rows" not in console.get("/topic", topic=TOPIC).text, "the table has no such branch"
    story.state(1, exists=True, live_through=NOW - 2 * WINDOW_MS)
    story.warehouse_beat(NOW)
    story.apply()
    page = console.get("/topic", topic=TOPIC).text
    assert "<dt>fresh rows up to</dt>" in page
    assert ">11:20</time> <small>20 min behind, proven or not</small>" in page


def test_the_browser_is_told_to_run_our_own_files_only(console: Console) -> None:
    for path in ("console", "topic?topic=x", f"hour?topic=x&at={AT}", "cluster", "favicon.ico", *FILES):
        answer = console._client.get(f"/{path}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"].split("; ")
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert not any("unsafe" in rule or "*" in rule for rule in policy)
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"days": "3"}, "days=3: take 2, 7 or 30"),
        ({"until": "yesterday"}, "until"),
        ({"until": "2015-05-17T10:10Z"}, "is no full hour"),
        ({"state": "fine"}, "state=fine: take one of held, incomplete"),
        ({"sort": "x"}, "sort=x: take one of worst, name, behind, size"),
        ({"topic": TOPIC, "at": "2015-05-17T10:10"}, "is no full hour"),
        ({"topic": TOPIC, "at": "noon"}, "at"),
        ({"topic": TOPIC, "at": "0001-01-01"}, "is no full hour"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_in_a_sentence(
    console: Console, query: dict[str, str], sentence: str
) -> None:
    answer = console.get("/hour" if "topic" in query else "/console", **query)
    assert answer.status_code == 400
    assert sentence in answer.text


@pytest.mark.parametrize("until", ["1970-01-01T00:00Z", "9999-12-31T23:00Z"])
def test_the_ends_of_time_can_be_looked_at(console: Console, until: str) -> None:
    console.story.whole()
    console.story.apply()
    for days in ("2", "30"):
        assert console.get(until=until, days=days).status_code == 200
    assert console.get("/topic", topic=TOPIC, until=until).status_code == 200
    assert console.get("/hour", topic=TOPIC, at=until).status_code == 200


def test_a_picture_ends_now_or_behind_the_newest_event_when_that_is_old(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.reading() as session:
        assert newest_end(session, NOW) == NOW - NOW % HOUR_MS + HOUR_MS
        assert newest_end(session, NOW + 20 * 24 * HOUR_MS) > NOW + 20 * 24 * HOUR_MS
        assert newest_end(session, NOW + 40 * 24 * HOUR_MS) == W + HOUR_MS


MIRRORED = {"partitions": 1, "lag": 50, "behind": 1, "not known": 0}


def test_partitions_say_how_far_mirror_and_load_are_behind(console: Console) -> None:
    story = console.story
    story.hello()
    story.report(0, (0, 9))
    story.count("dc1", found((0, 4)))
    story.count("dc1", found((5, 9)))
    story.count(OFFLINE, found((0, 4)), size=100)
    story.load(found((0, 4)))
    story.count(OFFLINE, found((5, 6)), size=50)
    story.beats()
    story.apply()
    mirrored = "".join(f'<td class="r" data-l="{name}">{value}</td>' for name, value in MIRRORED.items())
    assert f'<td data-l="origin">dc1</td>{mirrored}</tr>' in console.get("/cluster").text
    page = console.get("/topic", topic=TOPIC).text
    for source in ("dc1-0", "offline"):
        assert f'<td data-l="from">{source}</td><td class="r" data-l="lag">50</td>' in page
    assert '<td data-l="read back">1 of 1 part</td>' in page


def test_a_mirror_whose_position_is_not_known_yet_has_no_lag(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.writing() as session:
        here = update(CoverageRow).where(CoverageRow.tier == OFFLINE)
        session.execute(here.values(origin=["dc1", "dc1-PageView-0", None]))
    page = console.get("/topic", topic=TOPIC).text
    assert '<td data-l="from">dc1-0</td><td class="r" data-l="lag">not known</td>' in page


def test_a_partition_without_a_record_at_its_origin_has_nothing_left_to_mirror(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.writing() as session:
        session.execute(update(CoverageRow).where(CoverageRow.tier == "dc1").values(end=0))
        here = update(CoverageRow).where(CoverageRow.tier == OFFLINE)
        session.execute(here.values(end=0, origin=["dc1", "dc1-PageView-0", None]))
    page = console.get("/topic", topic=TOPIC).text
    assert '<td data-l="from">dc1-0</td><td class="r" data-l="lag">0</td>' in page


def test_a_browser_that_asks_for_nothing_is_sent_to_the_console(console: Console) -> None:
    client = console._client
    answer = client.get("/", headers={"accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (307, "console")
    assert client.get("/").json()["service"] == "millrace auditor"


def test_the_number_of_rejected_messages_stands_beside_the_hour(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    assert "<th>rejected</th>" not in console.get("/hour", topic=TOPIC, at=AT).text
    console.story.load(SequenceCounts(), rejected=[RejectedMessages(W, W, 1234, 0, "no value")])
    console.story.apply()
    page = console.get("/hour", topic=TOPIC, at=AT).text
    assert "<th>rejected</th>" in page
    assert "<td>1,234</td>" in page
    assert "load 2 rejected 1234 messages (no value)" in page
    page = console.get("/topic", topic=TOPIC).text
    assert '<td data-l="reason">no value</td><td class="r" data-l="messages">1,234</td>' in page


def test_an_incident_is_first_and_one_that_was_resolved_lately_is_listed_as_ended(console: Console) -> None:
    story = console.story
    story.hello()
    story.report(0, (0, 9))
    story.carry(found((0, 8)))
    story.beats()
    story.apply()
    page = console.get().text
    assert "<title>✕ 1 incident, 0 of 1 proven · Millrace</title>" in page
    assert '<article class="inc incomplete"' in page
    assert "<b>1 in 1 hour of 1 topic</b>" in page
    story.count("dc1", found((9, 9)))
    story.count(OFFLINE, found((9, 9)))
    story.load(found((9, 9)))
    story.beats(NOW + 6000)
    console.clock = NOW + 6000
    story.apply()
    page = console.get().text
    assert '<article class="inc' not in page
    assert "Ended in the last 7 days" in page
    assert "1 missing at dc1" in page


def test_a_new_topic_is_neither_proven_nor_held_back(console: Console) -> None:
    console.story.whole()
    console.story.hello(5, topic="News", time=NOW, closed=W)
    console.story.apply()
    page = console.get().text
    assert "<b>1 of 2 topics</b> is proven up to" in page
    assert "1 has nothing that is proven yet. " in page
    assert 'href="icon-good.svg"' in page
    assert '<div class="mrow ok" data-name="News"' in page


def test_a_wait_for_a_load_is_no_incident_until_it_lasts_too_long(console: Console) -> None:
    story = console.story
    story.hello()
    story.report(0, (0, 9))
    for tier in ("dc1", OFFLINE):
        story.count(tier, found((0, 9)))
    for hours in range(5):
        console.clock = NOW + hours * HOUR_MS
        story.beats(console.clock)
    console.clock = NOW
    story.apply()
    page = console.get().text
    assert '<article class="inc' not in page
    assert "On their way" in page
    assert f"millrace load {TOPIC}" in " ".join(page.replace("<span>", "").replace("</span>", "").split())
    console.clock = NOW + 4 * HOUR_MS
    story.apply()
    assert '<article class="inc pending"' in console.get().text


def test_a_page_is_rendered_once_until_the_database_or_the_time_has_changed(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    console.story.whole()
    console.story.apply()
    rendered: list[View] = []
    build = Overview.__init__

    def count(self: Overview, session: Session, options: AuditOptions, view: View) -> None:
        rendered.append(view)
        build(self, session, options, view)

    monkeypatch.setattr(Overview, "__init__", count)
    assert console.get().text == console.get().text
    assert len(rendered) == 1
    console.get(days="7")
    console.get(q="x")
    assert len(rendered) == 3, "other pages"
    console.story.hello(2, topic="News")
    console.story.apply()
    assert 'data-name="News"' in console.get().text
    assert len(rendered) == 4
    console.clock += 60_000
    assert f"{utc(console.clock):%H:%M}</time> UTC" in console.get().text
    assert len(rendered) == 5


def test_a_standby_shows_what_the_auditor_that_writes_has_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    active, standby = AuditStore(url, Lease()), AuditStore(url, Lease())
    active.renew()
    page = Client(build_app(standby, OPTIONS, Worker(AuditNumbers(standby, OPTIONS))))
    assert "No topic" in page.get("/console").text
    story = Story(active)
    story.whole()
    story.apply()
    assert f'data-name="{TOPIC}"' in page.get("/console").text
    active.close()
    standby.close()


def test_more_topics_than_links_can_name_are_strips_and_those_held_back_are_not(console: Console) -> None:
    story = console.story
    story.whole()
    for number in range(MOST_LINKED):
        story.hello(100 + number, topic=f"Quiet{number}")
        story.report(0, instance=100 + number, topic=f"Quiet{number}", closed=FOR_EVER)
    story.beats()
    story.apply()
    page = console.get().text
    held = re.findall(r'<div class="mrow held" data-name="(\w+)"', page)
    strips = page.count('<span class="cells days">')
    assert strips + len(held) == MOST_LINKED + 1
    assert strips
    assert page.count('href="hour?') == 48 * len(held)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (33_240, "9 h 14 min"), (90_000, "1 d 1 h")],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1 k"), (21_050, "21.1 k"), (2_600_000, "2.6 M")]
)
def test_narrow_columns_have_rounded_numbers(number: int, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(("highest", "end"), [(0, 1), (1, 1), (1100, 1200), (1201, 1600), (9_999, 10_000)])
def test_an_axis_ends_at_a_round_number(highest: int, end: int) -> None:
    assert charts.axis_end(highest) == end


def test_the_map_reads_no_window_of_the_topics_that_strangers_name(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    strangers = [f"{n:04}" for n in range(MOST_UNCOUNTED + 20)]
    with console.store.writing() as session:
        for topic in strangers:
            session.add_all([TopicRow(topic=topic), WindowRow(topic=topic, window=W)])
    read = set()
    with console.store.reading() as session:
        for _, hours in _WORST_LAST:
            read |= {topic for topic, _ in session.execute(hours, {"start": W, "end": W + HOUR_MS})}
    assert read == {*strangers[:MOST_UNCOUNTED]}
