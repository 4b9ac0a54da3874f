"""The registry's page in a real Chromium: what is drawn, that nothing runs, and that nothing is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from millrace_audit.producer import AuditedProducer
from millrace_registry.client import SchemaRegistryClient
from tests.brokers import TestCluster
from tests.support import REPOSITORY, WAIT_S, Process, wait_until
from tests.warehouses import EMPTY_EVENT

Start = Callable[..., Process]
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), ""
)
SCREENSHOTS = os.environ.get("MILLRACE_SCREENSHOTS", "")
"""A folder to leave pictures in, for people to look at; empty: none."""
EVIL = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no Chromium: apt-get install chromium-headless-shell"
)


def browse(url: str, folder: Path, name: str) -> str:
    """The page's DOM after it was drawn; fails on anything that the browser's console says."""
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--window-size=1280,900",
    ]
    said = ["--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=2000"]
    done = subprocess.run(
        [CHROMIUM, *options, *said, "--dump-dom", url],
        capture_output=True, text=True, timeout=2 * WAIT_S, check=True,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    assert not console, console
    if SCREENSHOTS:
        subprocess.run(
            [CHROMIUM, *options, f"--screenshot={Path(SCREENSHOTS) / name}.png", url],
            capture_output=True, timeout=2 * WAIT_S, check=True,
        )  # fmt: skip
    return done.stdout


def test_somebody_looks_at_subjects_and_a_difference_and_nothing_that_clients_wrote_runs(
    start: Start, zookeeper: str, tmp_path: Path
) -> None:
    cluster = TestCluster(start, f"ui-{uuid4().hex[:6]}", tmp_path, zookeeper, "[log]\nflush_ms = 20\n")
    cluster.start_brokers(1)
    with cluster.client() as client:
        for topic in ("PageView", "AuditProducers", "audit"):
            client.create_topic(topic, 1)
    options = ["registry", "--listen", "127.0.0.1:0", "--database-url", f"sqlite:///{tmp_path}/r.db"]
    before = start(*options)
    url = f"http://{before.ready()}"
    schema = json.loads((REPOSITORY / "schemas" / "PageView.avsc").read_text())
    country = {"name": "country", "type": ["null", "string"], "default": None, "doc": EVIL}
    with SchemaRegistryClient(url) as schemas:
        schemas.register("PageView", schema)
        schema_id = schemas.register("PageView", {**schema, "fields": [*schema["fields"], country]})
        schemas.register(EVIL, {"type": "record", "name": "R", "doc": EVIL, "fields": []})
    with AuditedProducer(cluster.bootstrap, url, cluster=cluster.name, server="s", service="w") as producer:
        producer.send("PageView", schema, EMPTY_EVENT, time_ms=1_431_856_800_000)
    before.stop()
    # It looks at the topics when it starts, and a minute later.
    url = f"http://{start(*options, '--bootstrap', cluster.bootstrap).ready()}"
    wait_until(
        "the registry has looked at the topics",
        lambda: '<td data-l="topics">PageView' in httpx.get(f"{url}/ui/subjects/PageView").text,
        timeout_s=2 * WAIT_S,
    )
    page = browse(f"{url}/ui", tmp_path, "registry-subjects")
    assert "<title>Schemas · Millrace</title>" in page
    assert "onerror=document" not in page.replace("&lt;img src=x onerror=document", "")
    assert f'<td class="r" data-l="schema id">{schema_id}' in page
    versions = browse(f"{url}/ui/subjects/PageView", tmp_path, "registry-versions")
    assert versions.count('<td data-l="topics">PageView') == 1
    (link,) = re.findall(r'href="([^"]*diff[^"]*)"', versions)
    difference = browse(url + link.replace("&amp;", "&"), tmp_path, "registry-difference")
    assert "<title>PageView: 1 and 2 · Schemas · Millrace</title>" in difference
    assert '<span class="sg a">+</span><code>country: null | string = null</code>' in difference
    assert '<tr class="added">' in difference
    assert "&lt;script&gt;document.title='broken'" in difference


def test_a_phone_shows_the_registry_in_its_width_and_cuts_no_word_that_fits(
    start: Start, tmp_path: Path
) -> None:
    from playwright.sync_api import sync_playwright

    database = ("--database-url", f"sqlite:///{tmp_path}/r.db")
    url = f"http://{start('registry', '--listen', '127.0.0.1:0', *database).ready()}"
    subject = f"shop.{'orders' * 20}-value"
    with SchemaRegistryClient(url) as schemas:
        schemas.register("OrderPlaced", "string")
        schemas.register(subject, "int")
        schemas.register(subject, "long")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800})
        for path in ("/ui", f"/ui/subjects/{subject}", f"/ui/subjects/{subject}/diff?old=1&new=2"):
            page.goto(url + path)
            assert page.evaluate("document.documentElement.scrollWidth") == 400, path
        page.goto(f"{url}/ui")
        lines = "e => e.getBoundingClientRect().height / parseFloat(getComputedStyle(e).lineHeight)"
        assert page.locator("td:has-text('BACKWARD')").first.evaluate(lines) < 2
        assert page.locator("td:has-text('OrderPlaced')").evaluate(lines) < 2
        browser.close()
