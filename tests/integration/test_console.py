"""The console in a real Chromium: an operator looks, clicks through it, and sees news without reloading."""

from __future__ import annotations

import math
import os
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
import uvicorn

from millrace.topics_file import TopicPolicy
from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.cluster_look import (
    BrokerSeen,
    ClusterLook,
    ClusterSeen,
    DiskSeen,
    GroupLag,
    PartitionSeen,
)
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS, WINDOW_MS, SequenceCounts
from millrace_audit.reports.messages import FOR_EVER, OFFLINE, LoadNumber
from tests.unit.audit.story import NOW, OPTIONS, Story, W, found
from tests.unit.audit.test_app import Worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), ""
)
SCREENSHOTS = os.environ.get("MILLRACE_SCREENSHOTS", "")
"""A folder to leave pictures in, for people to look at; empty: none."""
EVIL = "<img src=x onerror=document.title='broken'>"
OWNERS = {"OrderPlaced": "shop", "PageView": "web", "SearchQuery": "search", "LoginFailed": "identity"}
PAGES = {
    "overview": "console",
    "week": "console?days=7",
    "month": "console?days=30",
    "topic": "topic?topic=PageView",
    "hour": "hour?topic=PageView&at=2015-05-17T07",
    "cluster": "cluster",
    "error": "console?days=3",
}
CUT = """width => [...document.querySelectorAll('main *')]
    .filter(one => !one.closest('.scroll, .vh, thead, svg, details:not([open])'))
    .filter(one => one.getBoundingClientRect().right > width + 1)
    .map(one => one.outerHTML.slice(0, 80))"""
"""Elements that the right edge of the window cuts."""
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no Chromium: apt-get install chromium-headless-shell"
)


@dataclass
class Looked:
    """A browser's page, and all that went wrong in it."""

    page: Page
    errors: list[str]
    url: str

    def shot(self, name: str, *, full_page: bool = True) -> None:
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=full_page)


@dataclass(kw_only=True)
class Sender:
    """A producer of one topic, whose events are loaded and published hour by hour."""

    topic: str
    instance: int
    size: int
    lost: tuple[int, ...] = ()
    """Hours of which two windows lose an event on the way to the aggregate cluster."""
    silent_from: int = 99
    pause: range = range(0)
    is_reported: bool = True
    server: str = ""
    sequence: int = 0
    reports: int = 0

    def __post_init__(self) -> None:
        self.names: dict[str, Any] = {"server": self.server or f"web-{self.instance}"}
        self.loaded: dict[int, SequenceCounts] = {}

    def send(self, story: Story, hour: int) -> None:
        self.loaded[hour] = SequenceCounts()
        for at, window in enumerate(windows_of(hour)):
            if window + WINDOW_MS > NOW or hour in self.pause:
                continue
            sent = max(2, int(self.size * (1.5 + math.sin(window / HOUR_MS / 4))))
            first, self.sequence = self.sequence, self.sequence + sent
            there: dict[str, Any] = {"instance": self.instance, "window": window}
            counts = found((first, self.sequence - 1), **there, **self.names)
            kept = counts
            if hour in self.lost and at in (1, 2):
                kept = found((first, self.sequence - 2), **there, **self.names)
            if self.is_reported and hour < self.silent_from:
                times: dict[str, Any] = {"closed": window + WINDOW_MS, "time": window + WINDOW_MS}
                reported = (first, self.sequence - 1)
                story.report(self.reports, reported, topic=self.topic, **there, **times, **self.names)
                self.reports += 1
            for tier, at_tier in (("dc1", counts), (OFFLINE, kept)):
                story.count(tier, at_tier, topic=self.topic, partition=self.instance)
            self.loaded[hour].merge(kept)

    def load(self, story: Story, hour: int) -> None:
        """Load everything that the aggregate cluster has; publish the hour if it is proven."""
        source = LoadNumber(len(self.loaded))
        story.load(self.loaded[hour], topic=self.topic, source=source)
        if hour < 0 and hour not in self.lost and hour < self.silent_from:
            story.publish(self.loaded[hour], topic=self.topic, windows=windows_of(hour))


def windows_of(hour: int) -> range:
    return range(W + hour * HOUR_MS, W + (hour + 1) * HOUR_MS, WINDOW_MS)


SENDERS: list[dict[str, Any]] = [
    {"topic": "OrderPlaced", "instance": 1, "size": 12},
    {"topic": "LoginFailed", "instance": 2, "size": 3, "pause": range(-30, -24)},
    {"topic": "PageView", "instance": 3, "size": 40, "lost": (-9, -3)},
    {"topic": "SearchQuery", "instance": 4, "size": 9, "silent_from": -5, "server": EVIL},
    {"topic": "AdClick", "instance": 5, "size": 6, "is_reported": False},
]


def tell(story: Story, given: Sequence[Mapping[str, Any]]) -> None:
    """Two days of each sender, loaded up to 11:00 and published up to 10:00."""
    senders = [Sender(**each) for each in given]
    for each in senders:
        if each.is_reported:
            start = windows_of(-47)[0]
            story.hello(each.instance, topic=each.topic, time=start, **each.names)
    for hour in range(-47, 2):
        for each in senders:
            each.send(story, hour)
        end = min(windows_of(hour)[-1] + WINDOW_MS, NOW - 9000)
        for time in (end, end + 6000):
            for tier in ("dc1", "dc2", OFFLINE):
                story.beat(tier, time)
        for each in senders:
            if hour < 1:
                each.load(story, hour)
    story.warehouse_beat(NOW - 4000)
    story.apply()


def told(folder: Path, senders: Sequence[Mapping[str, Any]]) -> Iterator[Story]:
    """A story of the senders, in a database of its own, with owners of the topics."""
    store = AuditStore(f"sqlite:///{folder}/audit.db")
    policies = {topic: TopicPolicy(owner=owner) for topic, owner in OWNERS.items()}
    policies["AdClick"] = TopicPolicy(owner="ads", proof="carried")
    story = Story(store, replace(OPTIONS, runbooks="https://wiki/runbooks", policies=policies))
    tell(story, senders)
    yield story
    store.close()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    yield from told(tmp_path_factory.mktemp("console"), SENDERS)


GB = 1_000_000_000
BROKERS = [
    BrokerSeen(1, "off-1.kafka.example.com:9392", 4, 6, 0, DiskSeen(4000 * GB, 2210 * GB, 1620 * GB)),
    BrokerSeen(2, "", 0, 2, 2),
    BrokerSeen(3, "off-3.kafka.example.com:9392", 1, 1, 0, DiskSeen(960 * GB, 31 * GB, 905 * GB)),
    BrokerSeen(4, "off-4.kafka.example.com:9392", 0, 0, 0),
]
PARTITIONS = [
    *(PartitionSeen(f"PageView-{number}", 1, (1,), (1,)) for number in range(4)),
    PartitionSeen("SearchQuery-0", 1, (1, 2), (1,)),
    PartitionSeen("SearchQuery-1", -1, (2,), ()),
]
GROUPS = [GroupLag("revenue", "Stable", 6, "PageView", 18_204), GroupLag("old", "Empty", 0, "", None)]


class KnownCluster(ClusterLook):
    """A cluster of which one broker is away. `test_console_cluster` asks a real one."""

    def seen(self) -> ClusterSeen:
        return ClusterSeen(GROUPS, PARTITIONS, BROKERS, is_known=True)


def serve(story: Story) -> Iterator[str]:
    worker = Worker(AuditNumbers(story.store, story.options))
    app = build_app(story.store, story.options, worker, KnownCluster("127.0.0.1:1"))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def url(story: Story) -> Iterator[str]:
    yield from serve(story)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def look(browser: Browser, url: str, **options: Any) -> Iterator[Looked]:
    context = browser.new_context(**options)
    page, errors = context.new_page(), list[str]()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(url)
    yield Looked(page, errors, url)
    context.close()


PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def laptop(browser: Browser, url: str) -> Iterator[Looked]:
    yield from look(browser, url, viewport={"width": 1366, "height": 800})


@pytest.fixture
def phone(browser: Browser, url: str) -> Iterator[Looked]:
    yield from look(browser, url, **PHONE)


def row(page: Page, topic: str) -> Locator:
    return page.locator(f'.mrow[data-name="{topic}"]')


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1366, 1920, 390])
@pytest.mark.parametrize("name", PAGES)
def test_each_page_fits_the_window_and_the_policy_refuses_nothing_of_it(
    browser: Browser, url: str, name: str, width: int, scheme: str
) -> None:
    size = {"viewport": {"width": width, "height": 900}} if width > 500 else PHONE
    for looked in look(browser, url + PAGES[name], color_scheme=scheme, **size):
        page = looked.page
        looked.shot(f"{name}-{width}-{scheme}")
        page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT, width) == [], "nothing is cut at the right edge"
        assert [error for error in looked.errors if "400 (Bad Request)" not in error] == []


def test_an_operator_finds_a_loss_by_clicking_on_its_hour(laptop: Looked) -> None:
    page = laptop.page
    assert page.url.endswith("/console"), "a browser that asks for nothing lands here"
    assert page.title() == "✕ 2 incidents, 3 of 5 proven · Millrace"
    assert page.locator("h1").inner_text() == "3 of 5 topics are proven up to 10:50"
    assert "4 in 2 hours of 1 topic" in page.locator(".say").inner_text()
    assert page.locator(".flow .bad").inner_text().split("\n")[0] == "offline", "the tier where it is lost"
    cells = row(page, "PageView").locator(".cells a")
    assert cells.count() == 48
    bad = row(page, "PageView").locator("a.incomplete")
    assert bad.count() == 2
    bad.last.click()
    assert page.locator("h1 .v").inner_text() == "incomplete"
    assert "2 missing at offline of " in page.locator(".tell").inner_text()
    assert page.locator(".flow .bad b").inner_text() == "offline"
    assert page.locator(".matrix td.bad").all_inner_texts()[0].endswith("\u22121")
    assert page.locator(".finding").count() == 2
    assert "millrace mirror status CONFIG" in page.locator(".waits").first.inner_text(), "what to do"
    page.locator(".pager a[rel=next]").click()
    assert page.locator("h1 .v").inner_text() == "complete"
    page.locator(".crumb a", has_text="PageView").click()
    assert page.locator("h1").inner_text().startswith("PageView")
    assert laptop.errors == []


def test_incidents_have_a_command_that_a_button_copies_and_a_runbook(laptop: Looked) -> None:
    page = laptop.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert page.locator("#h-inc").inner_text() == "Incidents 2"
    cards = page.locator(".inc")
    assert cards.locator("header .v").all_inner_texts() == ["incomplete", "unknown"]
    worst = cards.first
    assert "missing at offline" in worst.inner_text()
    assert "PageView 4 in 2 h" in worst.inner_text()
    assert worst.locator(".own").inner_text() == "owner web"
    link = worst.locator("a", has_text="Runbook")
    assert link.get_attribute("href") == "https://wiki/runbooks#millraceeventsmissing"
    worst.locator(".copy").click()
    worst.locator("button", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "millrace mirror status CONFIG"
    assert laptop.errors == []


@pytest.fixture
def own_story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Story]:
    """A story that the test may go on with, of two topics without incidents or of a test's senders."""
    yield from told(tmp_path, getattr(request, "param", SENDERS[:2]))


@pytest.fixture
def own(browser: Browser, own_story: Story) -> Iterator[Looked]:
    """A laptop that shows `own_story`."""
    for url in serve(own_story):
        yield from look(browser, url, viewport={"width": 1366, "height": 800})


@pytest.mark.parametrize("own_story", [SENDERS[2:3]], indirect=True)
def test_an_operator_takes_an_incident_and_others_see_the_name(own: Looked) -> None:
    page = own.page
    page.on("dialog", lambda dialog: dialog.accept(EVIL))
    page.locator(".ack").click()
    page.locator(".acked").wait_for()
    assert page.locator(".acked").inner_text().strip() == EVIL
    assert page.locator(".ack").count() == 0
    assert "0 incidents wait for an operator, 1 is acknowledged" in page.locator(".say").inner_text()
    assert own.errors == []


def test_on_a_good_day_the_title_and_the_icon_say_so_and_nothing_is_in_the_way(own: Looked) -> None:
    page = own.page
    assert page.title() == "✓ 2 of 2 proven · Millrace"
    assert page.locator("h1").inner_text() == "All 2 topics are proven up to 10:50"
    assert page.locator("link[rel=icon]").get_attribute("href") == "icon-good.svg"
    assert page.locator("#h-inc").inner_text() == "No incident"
    assert page.locator(".inc").count() == 0
    own.shot("good-1366-light")
    assert own.errors == []


def test_a_month_is_a_link_for_each_day_and_a_day_is_the_page_of_its_topic(laptop: Looked) -> None:
    page = laptop.page
    page.click("text=30 d")
    row(page, "PageView").locator(".cells a").first.wait_for()
    assert row(page, "PageView").locator(".cells a").count() == 30
    days = row(page, "PageView").locator("a.incomplete")
    assert days.count() == 1
    assert row(page, "OrderPlaced").locator("rect.complete").count() >= 1
    days.click()
    assert page.locator("h1 .v").inner_text() == "incomplete"
    hours = page.locator(".lane .cells a")
    assert hours.count() == 24
    page.locator(".lane .cells a.incomplete").first.click()
    assert page.locator("h1").inner_text().startswith("2015-05-17 01:00 to 02:00")
    assert laptop.errors == []


def test_a_topics_chart_shows_at_which_tier_events_are_missing_and_its_numbers_are_a_table(
    laptop: Looked,
) -> None:
    page = laptop.page
    page.goto(laptop.url + PAGES["topic"])
    lanes = {one.locator("> span").first.inner_text(): one for one in page.locator(".lane").all()}
    assert [*lanes] == ["home", "offline", "warehouse", "table", "verdict"]
    assert lanes["home"].locator("b").inner_text() == "all"
    assert lanes["offline"].locator("b").inner_text() == "X 4"
    assert lanes["offline"].locator("rect.miss").count() == 2
    assert lanes["warehouse"].locator("b").inner_text() == "as before"
    page.click("text=Numbers")
    numbers = page.locator(".numbers tbody tr")
    assert numbers.count() == 144
    assert "X \u22121" in numbers.filter(has_text="2015-05-17 07:10").inner_text()
    lanes["offline"].locator("svg").hover()
    assert "acknowledged" in page.locator("#hover").inner_text()
    assert "TIMESTAMP '2015-05-17 00:00:00 UTC'" in page.locator("#sql").inner_text(), "the newest hour"
    assert laptop.errors == []


def test_fresh_rows_stand_beside_the_published_ones_of_a_topic_that_has_branch_live(
    own: Looked, own_story: Story
) -> None:
    page, story = own.page, own_story
    page.goto(own.url + "topic?topic=OrderPlaced")
    facts = page.locator(".facts")
    assert "fresh rows" not in facts.inner_text(), "the table has no such branch"
    story.state(48, topic="OrderPlaced", exists=True, live_through=NOW - 3 * 60_000)
    story.warehouse_beat(NOW - 3000)
    story.apply()
    page.reload()
    assert "11:37 3 min behind, proven or not" in facts.inner_text()
    story.state(48, topic="OrderPlaced", exists=True, live_through=FOR_EVER)
    story.apply()
    page.reload()
    assert "11:39 3 s behind" in facts.inner_text(), "as of the reader's last look"
    assert own.errors == []


def test_a_page_that_is_marked_as_read_only_has_no_button_to_acknowledge(laptop: Looked) -> None:
    buttons = laptop.page.locator(".ack:visible")
    assert buttons.count() == 2
    laptop.page.evaluate("document.documentElement.setAttribute('data-read-only', '')")
    assert buttons.count() == 0


def test_a_disk_that_is_nearly_full_stands_out_on_the_page_of_the_cluster(laptop: Looked) -> None:
    page = laptop.page
    page.goto(laptop.url + PAGES["cluster"])
    assert page.locator(".broker dd.late").all_inner_texts() == ["2 of 2", "31 GB of 960 GB free"]
    assert page.locator(".broker.bad h2 .v").all_inner_texts() == ["does not answer"]


def test_verdicts_can_be_told_apart_without_any_colour(laptop: Looked) -> None:
    sign = "one => getComputedStyle(one, '::before').content"
    signs = {
        one.get_attribute("class"): one.evaluate(sign) for one in laptop.page.locator(".map .cells a").all()
    }
    assert {"complete", "incomplete", "unknown", "pending", "carried", "none"} <= signs.keys()
    assert len({*signs.values()}) == len(signs), "no sign stands for two verdicts"
    legend = laptop.page.locator(".legend").inner_text()
    for name in ("complete", "carried", "pending", "unknown", "incomplete", "no events"):
        assert name in legend


def test_what_a_producer_calls_itself_is_shown_as_it_is_and_does_nothing(laptop: Looked) -> None:
    page = laptop.page
    assert EVIL in page.locator(".inc.unknown").inner_text()
    row(page, "SearchQuery").locator("a.unknown").first.click()
    assert EVIL in page.locator("main").inner_text()
    assert "broken" not in page.title()
    assert page.locator("img").count() == 0
    assert laptop.errors == []


def test_a_filter_and_an_order_apply_at_once_and_stay_in_the_address(laptop: Looked) -> None:
    page = laptop.page
    shown = page.locator(".mrow[data-name]:visible")
    names = "rows => rows.map(row => row.dataset.name)"
    worst = ["PageView", "SearchQuery", "AdClick", "LoginFailed", "OrderPlaced"]
    assert shown.evaluate_all(names) == worst
    page.get_by_label("Sort").select_option("size")
    assert shown.evaluate_all(names)[:2] == ["PageView", "OrderPlaced"]
    page.get_by_label("Filter topics or owners").fill("SHOP")
    assert shown.evaluate_all(names) == ["OrderPlaced"]
    assert parse_qs(urlsplit(page.url).query) == {"q": ["shop"], "sort": ["size"]}
    page.reload()
    assert shown.evaluate_all(names) == ["OrderPlaced"]
    page.get_by_label("Filter topics or owners").fill("nothing like this")
    assert page.locator("#empty").is_visible()
    page.get_by_label("Filter topics or owners").fill("")
    page.get_by_label("State").select_option("held")
    page.get_by_label("Sort").select_option("worst")
    assert shown.evaluate_all(names) == worst[:2]
    assert laptop.errors == []


def test_the_map_is_one_stop_of_the_keyboard_and_arrows_move_in_it(laptop: Looked) -> None:
    page = laptop.page
    page.keyboard.press("g")
    label = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(label) == "05-17 01:00 incomplete"
    assert "PageView" in page.locator("#hover").inner_text(), "the card says where the keyboard is"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(label) == "05-17 02:00 complete"
    page.keyboard.press("End")
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**/hour?topic=SearchQuery&at=2015-05-15T12")
    page.keyboard.press("/")
    page.keyboard.type("OrderPlaced")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?topic=OrderPlaced")
    assert laptop.errors == []


def test_a_chosen_theme_stays(laptop: Looked) -> None:
    page, background = laptop.page, "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Dark or light").click()
    dark = page.evaluate(background)
    assert dark != light
    page.goto(laptop.url + PAGES["cluster"])
    assert page.evaluate(background) == dark


@pytest.mark.slow
def test_news_are_seen_without_reloading_and_nobody_loses_their_place(own: Looked, own_story: Story) -> None:
    page = own.page
    page.get_by_label("Filter topics or owners").fill("e")
    page.get_by_label("Sort").select_option("name")
    row(page, "LoginFailed").locator("a.none").first.focus()
    page.evaluate("window.stayed = true")
    own_story.hello(55, topic="Newcomer", time=NOW)
    own_story.hello(56, topic="Login", time=NOW)
    own_story.apply()
    row(page, "Newcomer").wait_for(timeout=30_000)
    assert page.evaluate("window.stayed") is True, "the page was not loaded again"
    names = page.locator(".mrow[data-name]:visible").evaluate_all("all => all.map(row => row.dataset.name)")
    assert names == ["LoginFailed", "Newcomer", "OrderPlaced"]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "05-16 04:00 no events"
    page.route("**/console*", lambda route: route.abort())
    page.locator("text=the auditor does not answer").wait_for(timeout=30_000)


def test_a_phone_shows_all_columns_and_parts_that_are_large_enough_for_a_finger(phone: Looked) -> None:
    page = phone.page
    assert row(page, "PageView").locator(".pv time").is_visible()
    assert row(page, "PageView").locator(".sp small").is_visible()
    heights = page.locator(".inc button").evaluate_all("all => all.map(one => one.offsetHeight)")
    assert min(heights) >= 24
    cell = row(page, "PageView").locator("a.incomplete").last
    cell.tap()
    page.wait_for_url("**/hour?*")
    assert page.locator(".matrix td.bad").first.is_visible()
    assert phone.errors == []


def test_all_is_there_for_a_browser_without_script(browser: Browser, url: str) -> None:
    for looked in look(browser, url, java_script_enabled=False, viewport={"width": 1366, "height": 800}):
        page = looked.page
        assert page.locator(".copy:visible, .ack:visible, .live:visible").count() == 0
        page.get_by_label("State").select_option("unknown")
        page.get_by_role("button", name="Show").click()
        assert page.locator(".mrow[data-name]:visible").count() == 1
        row(page, "SearchQuery").locator("a.unknown").first.click()
        assert "Something that must be known is not known" in page.locator("main").inner_text()
        page.locator(".crumb a", has_text="SearchQuery").click()
        page.click("text=Numbers")
        assert page.locator(".numbers tbody tr").count() == 144


OF_THE_DOCS = [{**sender, "server": ""} for sender in SENDERS]


@pytest.mark.parametrize("own_story", [OF_THE_DOCS], indirect=True)
def test_the_picture_of_the_documentation_has_two_incidents_and_the_map(own: Looked) -> None:
    page = own.page
    page.set_viewport_size({"width": 1366, "height": 890})
    assert page.locator(".inc").count() == 2
    assert page.locator(".mrow[data-name]:visible").count() == 5
    own.shot("console", full_page=False)  # docs/images/console.png
