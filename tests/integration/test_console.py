"""The console in a real Chromium: somebody looks, clicks through it, and sees news without reloading."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from millrace_audit.auditor.service.app import build_app
from millrace_audit.auditor.service.metrics import AuditNumbers
from millrace_audit.auditor.store import AuditStore
from millrace_audit.reports.counts import HOUR_MS
from millrace_audit.reports.messages import FOR_EVER, OFFLINE
from tests.unit.audit.story import NOW, OPTIONS, Story, W, found
from tests.unit.audit.test_app import Worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), ""
)
SCREENSHOTS = os.environ.get("MILLRACE_SCREENSHOTS", "")
"""A folder to leave pictures in, for people to look at; empty: none."""
EVIL = "<img src=x onerror=document.title='broken'>"
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no Chromium: apt-get install chromium-headless-shell"
)


@dataclass
class Looked:
    """A browser's page, and all that went wrong in it."""

    page: Page
    errors: list[str]
    url: str

    def shot(self, name: str) -> None:
        if SCREENSHOTS:
            self.page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=name != "console")


def tell(story: Story) -> None:
    """Hours of every verdict: complete, carried, a loss, a silent producer, one on its way."""
    for number, hour in enumerate(range(-20, 2)):
        window, instance = W + hour * HOUR_MS, 100 + number
        story.hello(instance, time=window)
        story.report(0, (0, 999), instance=instance, window=window)
        has = (0, 996) if hour in (-9, -3) else (0, 999)
        counts = found(has, instance=instance, window=window)
        if hour == -6:
            counts.merge(found((0, 99), instance=900, window=window, server=EVIL))
        story.count("dc1", found((0, 999), instance=instance, window=window) if hour != -6 else counts)
        story.count(OFFLINE, counts)
        story.load(counts)
        if hour < -9:
            story.publish(counts, windows=(window,))
    story.hello(7, time=NOW, closed=W, server=EVIL)
    story.hello(8, topic="SearchQuery", time=NOW, closed=W)
    story.beats()
    story.apply()


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    store = AuditStore(f"sqlite:///{tmp_path_factory.mktemp('console')}/audit.db")
    story = Story(store, replace(OPTIONS, runbooks="https://wiki/runbooks"))
    tell(story)
    yield story
    store.close()


@pytest.fixture(scope="module")
def url(story: Story) -> Iterator[str]:
    app = build_app(story.store, story.options, Worker(AuditNumbers(story.store, story.options)))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join()


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


@pytest.fixture
def laptop(browser: Browser, url: str) -> Iterator[Looked]:
    yield from look(browser, url, viewport={"width": 1280, "height": 800})


@pytest.fixture
def phone(browser: Browser, url: str) -> Iterator[Looked]:
    yield from look(browser, url, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)


def test_somebody_finds_a_loss_by_clicking_on_its_hour(laptop: Looked) -> None:
    page = laptop.page
    assert page.title() == "Millrace console"
    assert page.url.endswith("/console"), "a browser that asks for nothing lands here"
    laptop.shot("overview")
    marks = page.locator(".heat .row").nth(1).locator("a")
    assert marks.count() == 48
    bad = page.locator(".heat a.incomplete")
    assert bad.all_text_contents() == ["X", "X"]
    bad.last.click()
    detail = page.locator("#detail")
    assert "incomplete" in detail.locator("h2").inner_text()
    assert "3 missing at offline" in detail.inner_text()
    assert "997-999" in detail.inner_text()
    assert "millrace mirror status" in detail.inner_text(), "what to do"
    laptop.shot("hour")
    page.set_viewport_size({"width": 1040, "height": 900})
    page.evaluate("scrollTo(0, 0)")
    laptop.shot("console")  # docs/images/console.png
    detail.locator("text=Close").click()
    assert page.locator("#detail").count() == 0
    assert laptop.errors == []


def test_open_incidents_are_at_the_top_each_with_a_command_that_a_button_copies(laptop: Looked) -> None:
    page = laptop.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    section = page.locator("#incidents")
    cards = section.locator(".incident")
    assert section.locator("h2").inner_text() == "1 incident"
    assert section.bounding_box()["y"] < page.locator(".heat").bounding_box()["y"]  # type: ignore[index]
    worst = cards.first
    assert "incomplete" in worst.inner_text()
    assert "3 missing at offline" in worst.inner_text()
    assert "2 hours of PageView" in worst.inner_text()
    link = worst.locator("a", has_text="millraceeventsmissing")
    assert link.get_attribute("href") == "https://wiki/runbooks#millraceeventsmissing"
    worst.locator("button").click()
    worst.locator("button", has_text="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == worst.locator("code").inner_text() == "millrace mirror status CONFIG"
    assert laptop.errors == []


def test_a_phone_shows_each_incident_as_a_card_in_its_width(phone: Looked) -> None:
    cards = phone.page.locator(".incident")
    for number in range(cards.count()):
        box = cards.nth(number).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        button = cards.nth(number).locator("button").bounding_box()
        assert button is not None
        assert button["height"] >= 24, "large enough for a finger"
    phone.shot("phone-incidents")


def test_a_month_is_a_link_for_each_day_and_a_day_one_for_each_hour(laptop: Looked) -> None:
    page = laptop.page
    page.click("text=30 days")
    row = page.locator(".heat .row").nth(1)
    assert len(row.locator(".cells").inner_text()) == 30 * 24
    heat = page.locator(".heat")
    assert heat.evaluate("one => one.scrollLeft") > 0, "the newest hours are in sight"
    laptop.shot("month")
    row.locator("a.incomplete").first.click()
    hours = page.locator("#detail tbody").first.locator("a")
    assert hours.count() == 24
    page.locator("#detail tbody tr", has_text="incomplete").first.locator("a").click()
    assert page.locator("#detail thead th").first.inner_text() == "window"
    page.click("text=earlier")
    assert page.locator(".views >> text=newest").count() == 1
    assert laptop.errors == []


def test_fresh_rows_stand_beside_the_published_ones_of_a_topic_that_has_branch_live(
    laptop: Looked, story: Story
) -> None:
    page = laptop.page
    tables = page.locator("section", has=page.locator("h2", has_text="Loads and tables"))
    assert "fresh rows" not in tables.inner_text(), "no table has the branch"
    story.state(22, exists=True, live_through=NOW - 3 * 60_000)
    story.warehouse_beat(NOW - 3000)
    story.apply()
    page.reload()
    row = tables.locator("tbody tr", has=page.locator("td", has_text="PageView"))
    assert "2015-05-17 11:37, 3.0 min ago" in row.inner_text()
    tables.scroll_into_view_if_needed()
    laptop.shot("fresh")
    story.state(22, exists=True, live_through=FOR_EVER)
    story.apply()
    page.reload()
    assert "2015-05-17 11:39, 3 s ago" in row.inner_text(), "as of the reader's last look"
    page.locator(".heat .row").nth(1).locator("a.complete").last.click()
    fresh = page.locator("#detail p", has_text="Fresh rows")
    assert "every row that reached the warehouse before 2015-05-17 11:39 UTC (3 s ago)" in fresh.inner_text()
    laptop.shot("fresh-hour")
    story.state(22, exists=True)
    story.apply()
    assert laptop.errors == []


def test_verdicts_can_be_told_apart_without_any_colour(laptop: Looked) -> None:
    shown = {
        (one.get_attribute("class"), one.inner_text()[:1]) for one in laptop.page.locator(".heat a").all()
    }
    assert {("complete", "+"), ("incomplete", "X"), ("pending", "~"), ("carried", "=")} <= shown
    assert len({mark for _, mark in shown}) == len(shown), "no mark stands for two verdicts"
    legend = laptop.page.locator(".legend").inner_text()
    for name in ("complete", "carried", "pending", "unknown", "incomplete", "no events"):
        assert name in legend


def test_what_a_producer_calls_itself_is_shown_as_it_is_and_does_nothing(laptop: Looked) -> None:
    page = laptop.page
    page.locator(".heat .row").nth(1).locator("a.pending").last.click()
    assert EVIL in page.locator("#detail").inner_text()
    assert page.title() == "Millrace console"
    assert page.locator("img").count() == 0
    assert laptop.errors == []


def test_news_are_seen_without_reloading_and_nobody_loses_their_place(laptop: Looked, story: Story) -> None:
    page = laptop.page
    page.click("text=30 days")
    page.locator(".heat").evaluate("one => { one.scrollLeft = 777; }")
    page.evaluate("window.stayed = true")
    story.hello(55, topic="Newcomer", time=NOW)
    story.apply()
    page.get_by_title("Newcomer", exact=True).wait_for(timeout=30_000)
    assert page.evaluate("window.stayed") is True, "the page was not loaded again"
    assert page.locator(".heat").evaluate("one => one.scrollLeft") == 777
    page.route("**/console*", lambda route: route.abort())
    page.locator("text=The auditor does not answer").wait_for(timeout=30_000)


def test_a_phone_shows_the_page_in_its_width_and_the_newest_hours_first(phone: Looked) -> None:
    page = phone.page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    phone.shot("phone")
    mark = page.locator(".heat .row").nth(1).locator("a").last
    box = mark.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= 390 - 8, "it is in sight"
    mark.tap()
    page.locator("#detail").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    phone.shot("phone-hour")
    assert phone.errors == []


def test_all_hours_are_there_for_whoever_has_no_script(browser: Browser, url: str) -> None:
    for looked in look(browser, url, java_script_enabled=False):
        looked.page.locator(".heat a.incomplete").first.click()
        assert "missing at offline" in looked.page.locator("#detail").inner_text()
