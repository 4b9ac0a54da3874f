"""The console on databases that stories have filled: verdicts by hour, what it escapes, what it refuses."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from markupsafe import escape
from sqlalchemy import update

from millrace.topics_file import TopicPolicy
from millrace_audit.answer import Verdict, iso, overall, utc
from millrace_audit.auditor.records.progress import Progress
from millrace_audit.auditor.service import answers
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.console import MARKS
from millrace_audit.auditor.service.heat import hours_of_all, newest_end
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore, CoverageRow, WindowRow
from millrace_audit.auditor.verdict.facts import WindowFacts
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import OFFLINE, WAREHOUSE, RejectedMessages
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


class Picture(HTMLParser):
    """The cells of the only topic, and what they say when one points at them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells, self.titles = "", list[str]()
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = dict(attrs)
        self._in_cell = tag == "a" and has.get("class") in {*Verdict, "none"}
        if self._in_cell:
            self.titles.append(has["title"] or "")

    def handle_data(self, data: str) -> None:
        self.cells += data if self._in_cell else ""

    def handle_endtag(self, tag: str) -> None:
        self._in_cell = False


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
        session.execute(update(WindowRow).values(is_changed=True))
    assert console.verdicts(W, W + HOUR_MS) == {TOPIC: [Verdict.PENDING]}


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
    page = console.get(topic=TOPIC, at=AT).text
    assert "1 missing at dc1" in page
    assert "shop on web-1, instance 1" in page
    assert "millrace log verify" in page, "what to do about it"


@pytest.mark.parametrize("console", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("days", [2, 7, 30])
def test_the_picture_says_of_each_hour_what_its_windows_say_one_by_one(console: Console, days: int) -> None:
    dice, end = random.Random(days), W - W % HOUR_MS + HOUR_MS
    start = end - days * 24 * HOUR_MS
    console.story.whole()
    console.story.apply()
    words = [*Verdict, *[Verdict.COMPLETE] * 10, "a later word"]
    expected: dict[int, Verdict] = {}
    with console.store.writing() as session:
        for at in range(start - HOUR_MS, end - HOUR_MS, WINDOW_MS):
            if dice.random() < 0.7:
                continue
            said, is_news = dice.choice(words), dice.random() < 0.1
            session.add(WindowRow(topic=TOPIC, window=at, verdict=said, is_changed=is_news))
            verdict = Verdict(said) if said in {*Verdict} else Verdict.PENDING
            hour = at - at % HOUR_MS
            seen = [verdict, Verdict.PENDING] if is_news else [verdict]
            expected[hour] = overall([*seen, expected.get(hour, Verdict.COMPLETE)])
    expected[end - HOUR_MS] = Verdict.COMPLETE
    hours = [expected.get(hour) for hour in range(start, end, HOUR_MS)]
    assert {*hours} == {*Verdict, None}
    assert console.verdicts(start, end) == {TOPIC: hours}
    assert console.get(days=str(days)).status_code == 200
    page = Picture(console.get(days=str(days), until=iso(end)).text)
    assert page.cells == "".join(MARKS[verdict] for verdict in hours)
    named = [at for at in page.titles if at.partition(": ")[2] == "no events"]
    first = utc(start + hours.index(None) * HOUR_MS)
    assert named[0].partition(":")[0] == first.strftime("%Y-%m-%dT%H" if days == 2 else "%Y-%m-%d")


@pytest.mark.parametrize(
    ("until", "last"),
    [
        ("2015-05-18T00:00Z", "Sun 17 May 12 18"),
        ("2015-05-17T10:00Z", "Sun 17 May"),
        ("2015-05-17T07:00Z", "Sun 17"),
        ("2015-05-17T02:00Z", "17"),
        ("2015-05-17T01:00Z", "Sat 16 May 12 18"),
    ],
)
def test_the_line_above_the_picture_names_its_last_day_as_far_as_there_is_room(
    console: Console, until: str, last: str
) -> None:
    console.story.whole()
    console.story.apply()
    _, _, scale = console.get(until=until).text.partition('<div class="row scale">')
    _, _, scale = scale.partition('<span class="cells">')
    scale, _, _ = scale.partition("</span>")
    assert len(scale) == 48
    assert " ".join(scale.split()).endswith(f" {last}")


def test_every_verdict_has_a_mark_of_its_own() -> None:
    assert set(MARKS) == {*Verdict, None}
    assert len(set(MARKS.values())) == len(MARKS)


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
    assert console.numbers.delays(TOPIC) == [("home", 1.0, 1), (OFFLINE, 2.0, 1), (WAREHOUSE, 3.0, 1)]
    assert "home 1 s (1 window); offline 2 s" in console.get(topic=TOPIC, at=AT).text


def test_what_producers_say_is_text_and_nothing_else(console: Console) -> None:
    story = console.story
    story.hello(server=EVIL, service=EVIL)
    story.report(0, (0, 9), server=EVIL, service=EVIL)
    story.hello(2, topic=EVIL)
    story.beats()
    story.apply()
    for query in (
        {},
        {"topic": TOPIC, "at": AT},
        {"topic": EVIL, "at": AT},
        {"until": EVIL},
        {"topic": "x", "at": EVIL},
    ):
        answer = console.get(**query)
        assert "<script>alert" not in answer.text
        page = Tags(answer.text)
        assert page.tags.count("script") == 1, "our own file"
        assert ("src", "console/console.js") in page.attributes
        named = [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
        assert named == [], "a strict policy lets none of them run"
        links = [value for name, value in page.attributes if name == "href"]
        assert all(link.startswith(("?", "v1/", "console/")) for link in links), links


def test_the_page_of_a_topic_names_its_owner_and_shows_it_as_text(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    assert "Owner" not in console.get(topic=TOPIC, at=AT).text
    console.policies[TOPIC] = TopicPolicy(owner=EVIL)
    page = console.get(topic=TOPIC, at=AT).text
    assert f"<p>Owner: {escape(EVIL)}</p>" in page
    assert "<script>alert" not in page


def test_a_topic_with_branch_live_says_how_far_its_fresh_rows_are_behind(console: Console) -> None:
    story = console.story
    story.whole()
    story.load(found((0, 9)), topic="SearchQuery")
    story.apply()
    for page in (console.get().text, console.get(topic=TOPIC, at=AT).text):
        assert "resh rows" not in page, "no table has the branch"
    story.state(1, exists=True, live_through=NOW - 2 * WINDOW_MS)
    story.warehouse_beat(NOW)
    story.apply()
    page = " ".join(console.get(topic=TOPIC, at=AT).text.split())
    tables = page[page.index("<h2>Loads and tables</h2>") :]
    assert "<th>fresh rows up to</th>" in tables
    assert "<td>2015-05-17 11:20, 20.0 min ago</td>" in tables
    assert "<td>none seen</td>" in tables, "of the other topic"
    detail = page[page.index('id="detail"') : page.index("<h2>What is complete</h2>")]
    assert "every row that reached the warehouse before 2015-05-17 11:20 UTC (20.0 min ago)" in detail


def test_the_browser_is_told_to_run_our_own_files_only(console: Console) -> None:
    for path in ("/console", "/console/console.js", "/console/console.css", "/console/icon.svg"):
        answer = console.get(path)
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
        ({"topic": TOPIC, "at": "2015-05-17T10:10"}, "is no full hour"),
        ({"topic": TOPIC, "at": "noon"}, "at"),
        ({"topic": TOPIC, "at": "0001-01-01"}, "is no full hour"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_in_a_sentence(
    console: Console, query: dict[str, str], sentence: str
) -> None:
    answer = console.get(**query)
    assert answer.status_code == 400
    assert sentence in answer.text


@pytest.mark.parametrize("until", ["1970-01-01T00:00Z", "9999-12-31T23:00Z"])
def test_the_ends_of_time_can_be_looked_at(console: Console, until: str) -> None:
    console.story.whole()
    console.story.apply()
    assert console.get(until=until, days="30").status_code == 200


def test_a_picture_ends_now_or_behind_the_newest_event_when_that_is_old(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.reading() as session:
        assert newest_end(session, NOW) == NOW - NOW % HOUR_MS + HOUR_MS
        assert newest_end(session, NOW + 20 * 24 * HOUR_MS) > NOW + 20 * 24 * HOUR_MS
        assert newest_end(session, NOW + 40 * 24 * HOUR_MS) == W + HOUR_MS


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
    page = " ".join(console.get().text.split())
    mirrors = page[page.index("<h2>Mirrors</h2>") :]
    assert '<td>dc1</td><td class="n">1</td><td class="n">50</td><td class="n">1</td>' in mirrors
    topics = page[page.index("<h2>Topics</h2>") : page.index("<h2>Mirrors</h2>")]
    assert f"<td>{TOPIC}</td>" in topics
    assert '<td class="n">50</td><td class="n">50</td></tr>' in topics, "not mirrored, not loaded"
    assert "<td>1 of 1 part</td>" in page


def test_a_mirror_whose_position_is_not_known_yet_has_no_lag(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.writing() as session:
        here = update(CoverageRow).where(CoverageRow.tier == OFFLINE)
        session.execute(here.values(origin=["dc1", "dc1-PageView-0", None]))
    answer = console.get(topic=TOPIC, at=AT)
    assert answer.status_code == 200
    assert '<td>dc1-0</td><td class="n">not known</td>' in answer.text


def test_a_partition_without_a_record_at_its_origin_has_nothing_left_to_mirror(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    with console.store.writing() as session:
        session.execute(update(CoverageRow).where(CoverageRow.tier == "dc1").values(end=0))
        here = update(CoverageRow).where(CoverageRow.tier == OFFLINE)
        session.execute(here.values(end=0, origin=["dc1", "dc1-PageView-0", None]))
    page = " ".join(console.get(topic=TOPIC, at=AT).text.split())
    assert '<td>dc1-0</td><td class="n">0</td>' in page
    mirrored = '<td>dc1</td><td class="n">1</td><td class="n">0</td><td class="n">0</td><td class="n">0</td>'
    assert mirrored in page[page.index("<h2>Mirrors</h2>") :]


def test_of_a_topic_that_was_never_loaded_all_is_not_loaded(console: Console) -> None:
    console.story.report(0, (0, 9))
    console.story.count("dc1", found((0, 9)))
    console.story.apply()
    topics = console.get().text.split("<h2>Topics</h2>")[1]
    assert '<td class="n">all</td><td class="n">all</td></tr>' in topics, "nor mirrored"
    console.story.count(OFFLINE, found((0, 9)))
    console.story.apply()
    topics = console.get().text.split("<h2>Topics</h2>")[1]
    assert '<td class="n">0</td><td class="n">all</td></tr>' in topics


def test_a_browser_that_asks_for_nothing_is_sent_to_the_console(console: Console) -> None:
    client = console._client
    answer = client.get("/", headers={"accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["location"]) == (307, "console")
    assert client.get("/").json()["service"] == "millrace auditor"


def test_the_number_of_rejected_messages_stands_beside_the_hour(console: Console) -> None:
    console.story.whole()
    console.story.apply()
    assert '<th class="n">rejected</th>' not in console.get(topic=TOPIC, at="2015-05-17T10").text
    console.story.load(SequenceCounts(), rejected=[RejectedMessages(W, W, 1234, 0, "no value")])
    console.story.apply()
    for at in ("2015-05-17T10", "2015-05-17"):
        page = console.get(topic=TOPIC, at=at).text
        assert '<th class="n">rejected</th>' in page
        assert '<td class="n">1,234</td>' in page
    assert "load 2 rejected 1234 messages (no value)" in page
