"""The console's and the registry's pages by axe-core: WCAG 2.2 A and AA, light and dark, wide and narrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from millrace_registry.client import SchemaRegistryClient
from tests.brokers import Start
from tests.compat.programs import npm_modules
from tests.integration.test_console import CHROMIUM, PAGES, PHONE, browser, look, story, url

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

__all__ = ["browser", "story", "url"]
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LAPTOP: dict[str, Any] = {"viewport": {"width": 1366, "height": 900}}
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="there is no Chromium: apt-get install chromium-headless-shell"
)


def check(page: Page) -> list[str]:
    """Return what axe finds on the page, a line for each element."""
    page.evaluate((npm_modules("axe") / "axe-core" / "axe.min.js").read_text())
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    options = {"runOnly": RULES, "resultTypes": ["violations"]}
    found: list[dict[str, Any]] = page.evaluate(
        "options => axe.run(document, options).then(all => all.violations)", options
    )
    return [f"{one['id']}: {node['html'][:150]}" for one in found for node in one["nodes"]]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["1366", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_on_a_page_of_the_console(
    browser: Browser, url: str, name: str, scheme: str, size: dict[str, Any]
) -> None:
    for looked in look(browser, url + PAGES[name], color_scheme=scheme, **size):
        assert check(looked.page) == []


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["1366", "390"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_pages_of_the_registry(
    browser: Browser, start: Start, tmp_path: Path, scheme: str, size: dict[str, Any]
) -> None:
    database = ("--database-url", f"sqlite:///{tmp_path}/r.db")
    address = f"http://{start('registry', '--listen', '127.0.0.1:0', *database).ready()}"
    with SchemaRegistryClient(address) as schemas:
        schemas.register("OrderPlaced", "int")
        schemas.register("OrderPlaced", "long")
    for path in ("/ui", "/ui/subjects/OrderPlaced", "/ui/subjects/OrderPlaced/diff?old=1&new=2"):
        for looked in look(browser, address + path, color_scheme=scheme, **size):
            assert check(looked.page) == [], path
