"""The registry's page: what it shows, that it escapes everything, and what it costs at most."""

from __future__ import annotations

import asyncio
import html
import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from millrace_registry import retained, usage
from millrace_registry.app import create_app
from millrace_registry.page import MAX_LINES, side_by_side
from millrace_registry.store import Store
from millrace_registry.usage import Usage
from tests.marks import FORGED, MARK, check_json

EVIL = "<script>document.title='broken'</script>\"'&{{ 7*7 }}"


def record(*names: str, **more: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": ["null", "string"], "default": None} for name in names]
    return {"type": "record", "name": "R", "fields": fields, **more}


class Site:
    def __init__(self, store: Store, runner: asyncio.Runner) -> None:
        self.app = create_app(store)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self._http = httpx.AsyncClient(transport=transport, base_url="http://registry")
        self._runner = runner

    def __call__(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._runner.run(self._http.request(method, path, **options))

    def register(self, subject: str, schema: Any) -> int:
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self("POST", path, json={"schema": json.dumps(schema)})
        assert answer.status_code == 200, answer.text
        return int(answer.json()["id"])

    def page(self, path: str) -> str:
        answer = self("GET", path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        return answer.text


@pytest.fixture
def site(store: Store) -> Iterator[Site]:
    with asyncio.Runner() as runner:
        yield Site(store, runner)


def seen(page: str) -> str:
    """The text that a reader of the page sees."""
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", page)).split())


def test_somebody_finds_a_subject_its_versions_and_what_changed(site: Site) -> None:
    site.register("a/b", record("x"))
    site.register("a/b", record("x", "y"))
    site.register("other", "int")
    site("PUT", "/config/a%2Fb", json={"compatibility": "FULL"})
    page = site.page("/ui")
    assert "a/b 2 2 FULL its own" in seen(page)
    assert "other 1 3 BACKWARD" in seen(page)
    (link,) = re.findall(r'href="(/ui/subjects/a[^"]*)"', page)
    page = site.page(link)
    assert "Versions level FULL; mode READWRITE" in seen(page)
    assert '"name": "y"' in seen(page)
    (link,) = re.findall(r'href="([^"]*diff[^"]*)"', page)
    page = site.page(html.unescape(link))
    assert "+ y: null | string = null" in seen(page)
    assert 'class="added"' in page
    site("DELETE", "/subjects/a%2Fb/versions/1")
    assert "version 1 deleted 1" in seen(site.page("/ui/subjects/a%2Fb"))
    assert "No subject begins with “zzz”" in seen(site.page("/ui?prefix=zzz"))


def test_everything_that_clients_wrote_is_text(site: Site) -> None:
    subject = f"s{EVIL}"
    site.register(subject, record("x", doc=EVIL))
    site.register(subject, record("x", "y", doc=EVIL, **{EVIL: EVIL}))
    path = f"/ui/subjects/{quote(subject, safe='')}"
    for page in (
        site.page("/ui"),
        site.page(f"/ui?prefix={quote(EVIL)}"),
        site.page(path),
        site.page(f"{path}/diff?old=1&new=2"),
    ):
        assert page.count("<script") == 2, "our own files"
        assert EVIL.replace(" ", "")[:30] in seen(page).replace(" ", "")
        for link in re.findall(r'(?:href|src)="([^"#]+)"', page):
            assert site("GET", html.unescape(link)).status_code == 200, link


def test_long_lists_come_a_page_at_a_time(site: Site, store: Store) -> None:
    site.register("s", "int")
    with store.write() as rows:
        schema = rows.schema(1)
        assert schema is not None
        for number in range(250):
            rows.add_version(f"many-{number:03}", schema)
    page, names = site.page("/ui"), list[str]()
    while True:
        names += re.findall(r"many-\d{3}(?=<)", page)
        following = re.findall(r'href="([^"]*)">Next', page)
        if not following:
            break
        page = site.page(html.unescape(following[0]))
    assert names == [f"many-{number:03}" for number in range(250)]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/ui/subjects/none", 404, 40401),
        ("/ui/subjects/s/diff?old=1&new=7", 404, 40402),
        ("/ui/subjects/s/diff?old=x&new=1", 422, 42202),
        ("/ui/subjects/s/diff?old=1", 400, 400),
        ("/ui?offset=-1", 400, 400),
        ("/ui?offset=99999999999999999999999", 400, 400),
    ],
)
def test_a_page_that_is_not_there_says_so(site: Site, path: str, status: int, code: int) -> None:
    site.register("s", "int")
    answer = site("GET", path)
    assert (answer.status_code, answer.json()["error_code"]) == (status, code)


def test_a_browser_is_told_on_a_page_what_is_not_there(site: Site) -> None:
    site.register("s", "int")
    for path, status, says in (
        (f"/ui/subjects/{quote(EVIL, safe='')}", 404, f"Subject '{EVIL}' not found."),
        ("/ui/subjects/s/diff?old=1&new=7", 404, "Version 7 not found."),
        ("/ui?offset=-1", 400, "parameter offset"),
    ):
        answer = site("GET", path, headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert f" {says}" in seen(answer.text)
        assert answer.text.count("<script") == 2, "our own files"


def test_a_browser_is_led_to_the_page_and_a_client_gets_what_confluents_registry_answers(site: Site) -> None:
    answer = site("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (answer.status_code, answer.headers["location"]) == (307, "ui")
    for method in ("GET", "POST"):
        assert site(method, "/").json() == {}
    assert site("GET", "/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_a_difference_of_large_or_many_sided_schemas_costs_little(site: Site) -> None:
    site("PUT", "/config", json={"compatibility": "NONE"})
    site.register("large", record(*(f"f{n}" for n in range(5000))))
    site.register("large", record(*(f"g{n}" for n in range(5000))))
    # Each type twice in the one before it: so many paths lead to the last that nobody could list them.
    many: Any = "int"
    for depth in reversed(range(25)):
        fields = [
            {"name": "a", "type": many},
            {"name": "b", "type": f"T{depth + 1}" if depth < 24 else "int"},
        ]
        many = {"type": "record", "name": f"T{depth}", "fields": fields}
    site.register("many", many)
    site.register("many", {**many, "fields": [*many["fields"], {"name": "c", "type": "int"}]})
    began = time.process_time()
    assert "too long to be put side by side" in seen(site.page("/ui/subjects/large/diff?old=1&new=2"))
    assert "+ c: int" in seen(site.page("/ui/subjects/many/diff?old=1&new=2"))
    few = [f"line {n % 100}" for n in range(MAX_LINES)]
    assert len(list(side_by_side(few, few[::-1]))) >= MAX_LINES
    assert time.process_time() - began < 20


def test_metrics_count_requests_by_route_and_what_is_held(site: Site) -> None:
    site.register("s", "int")
    site("GET", "/subjects/s/versions/9")
    site("GET", "/no/such/path")
    site("BREW", "/subjects")
    text = site("GET", "/metrics").text
    for line in (
        "millrace_registry_schemas 1.0",
        "millrace_registry_subjects 1.0",
        "millrace_registry_versions 1.0",
        'requests_total{method="POST",route="/subjects/{subject}/versions",status="200"} 1.0',
        'requests_total{method="GET",route="/subjects/{subject}/versions/{version}",status="404"} 1.0',
        'requests_total{method="GET",route="unknown",status="404"} 1.0',
    ):
        assert line in text, text
    assert "BREW" not in text


def test_topics_that_use_a_schema_are_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cluster:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None: ...
        def topics(self) -> list[str]:
            return [f"t{number:02}" for number in range(30)]

    monkeypatch.setattr(usage, "ClusterClient", Cluster)
    monkeypatch.setattr(retained, "ids_in", lambda _, topic, tail_only: [7] if topic > "t04" else [8])
    assert Usage(None).topics_of(7) == "not known: start the registry with --bootstrap"
    looked = Usage("b:1")
    assert looked.topics_of(7) == "not known: no answer from b:1 yet"
    looked.look()
    assert looked.topics_of(8) == "t00, t01, t02, t03, t04"
    assert looked.topics_of(7).endswith("t24 and 5 more")
    assert looked.topics_of(9) == "none"


def test_marked_names_of_authors_and_documents_are_never_shown_raw(site: Site) -> None:
    schemas = [{"subject": "s", "schema": json.dumps(record("x", doc=MARK))}]
    applied = site("POST", "/apply", json={"schemas": schemas, "author": MARK, "commit": MARK[:20]})
    assert applied.status_code == 200, applied.text
    site.register("s", record("x", "y", doc=MARK))
    for path in ("/ui/subjects/s", "/ui/subjects/s/diff?old=1&new=2"):
        page = site.page(path)
        assert not [line for line in page.split("\n") if not line.isprintable()]
        assert FORGED in page
    for path in ("/ui?prefix=" + quote(MARK), "/ui/subjects/" + quote(MARK, safe="")):
        answer = site("GET", path, headers={"accept": "text/html"})
        assert not [line for line in answer.text.split("\n") if not line.isprintable()]
    check_json(site("GET", "/subjects/s/versions/1").text)
