"""The registry's web page: subjects, their versions, two versions side by side, topics that use a schema.

    GET /ui                             subjects, a page at a time
    GET /ui/subjects/S                  its versions, level and mode
    GET /ui/subjects/S/diff?old=1&new=2 the difference of two versions

The page changes nothing. The templates escape all registered text, and a header allows the browser only the
files of the pages' frame.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from millrace.service.pages import FILES, HEADERS, file_of_pages, templates_in
from millrace_registry import requests, service
from millrace_registry.access import READ
from millrace_registry.avro_schema import parse
from millrace_registry.errors import InvalidSchema
from millrace_registry.fields import changed_fields
from millrace_registry.store import Origin, Store, StoredVersion, Transaction

ROWS = 100
"""Number of subjects, or of versions, on one page."""
MAX_LINES = 1000
"""Most lines of each schema in the comparison side by side: the work grows with the square of
their number."""
Offset: TypeAlias = Annotated[int, Query(ge=0, le=1 << 31)]
_templates = templates_in(Path(__file__).with_name("pages"))
_templates.globals.update(base="/ui/", pages=[("/ui", "Schemas")], here="Schemas")
_templates.filters["utc"] = lambda ms: datetime.fromtimestamp(ms / 1000, UTC)
_templates.filters["segment"] = lambda subject: quote(subject, safe="")
routes = APIRouter(prefix="/ui", dependencies=[*requests.CHECKS, *READ])


@dataclass(frozen=True, slots=True)
class SubjectRow:
    """A subject in the list."""

    name: str
    latest: StoredVersion | None
    """The subject's latest version; None when all its versions are deleted."""
    level: str
    own_level: bool
    origin: Origin | None
    """Origin of the latest version; None if it was not registered by `/apply`."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """A line of each of two schemas; empty where only the other schema has a line."""

    old: str
    new: str
    kind: str
    """`same`, `changed`, `removed` or `added`."""


def _serve(name: str) -> None:
    @routes.get(f"/{name}", name=name)
    def file() -> Response:
        return file_of_pages(name)


for _name in FILES:
    _serve(_name)


@routes.get("")
def subjects(request: Request, prefix: str = "", offset: Offset = 0) -> Response:
    with _store(request).read() as rows:
        names = rows.subjects(prefix=prefix, page=slice(offset, offset + ROWS + 1))
        shown = [_subject_row(rows, name) for name in names[:ROWS]]
        level, mode = service.LEVEL.of(rows, service.GLOBAL), service.MODE.of(rows, service.GLOBAL)
    following = offset + ROWS if len(names) > ROWS else None
    return _page(
        "subjects.html", subjects=shown, prefix=prefix, offset=offset, next=following, level=level, mode=mode
    )


@routes.get("/subjects/{subject}")
def subject(
    request: Request, subject: Annotated[str, Depends(requests.subject_name)], offset: Offset = 0
) -> Response:
    with _store(request).read() as rows:
        service.check_known(rows, subject, deleted=None)
        page = slice(offset, offset + ROWS + 1)
        versions = rows.versions(subject, deleted=None, newest_first=True, page=page)
        row, mode = _subject_row(rows, subject), service.MODE.of(rows, subject)
        origins = rows.origins(subject)
    following = offset + ROWS if len(versions) > ROWS else None
    shown = versions[:ROWS]
    return _page(
        "subject.html",
        subject=row,
        mode=mode,
        versions=shown,
        origins=origins,
        newest=_pretty(shown[0]) if shown else "",
        offset=offset,
        next=following,
        topics=request.app.state.usage.topics_of,
    )


@routes.get("/subjects/{subject}/diff")
def diff(
    request: Request, subject: Annotated[str, Depends(requests.subject_name)], old: str, new: str
) -> Response:
    with _store(request).read() as rows:
        before, after = (
            service.find_version(rows, subject, requests.version_number(number), deleted=True)
            for number in (old, new)
        )
        try:
            schemas = [parse(service.resolve(rows, v.schema), flawed_too=True) for v in (before, after)]
            fields = changed_fields(*schemas) if before.schema.id != after.schema.id else []
        except InvalidSchema as error:  # types too deep only when combined
            fields = [str(error)]
    old_lines, new_lines = _pretty(before).splitlines(), _pretty(after).splitlines()
    too_long = max(len(old_lines), len(new_lines)) > MAX_LINES
    return _page(
        "diff.html",
        subject=subject,
        old=before,
        new=after,
        fields=fields,
        lines=[] if too_long else list(side_by_side(old_lines, new_lines)),
        too_long=too_long,
    )


def side_by_side(old: Sequence[str], new: Sequence[str]) -> Iterator[DiffRow]:
    """Yield the lines of both texts in pairs, with equal lines beside each other."""
    for kind, i, j, k, m in difflib.SequenceMatcher(None, old, new).get_opcodes():
        for n in range(max(j - i, m - k)):
            left, right = old[i + n] if i + n < j else "", new[k + n] if k + n < m else ""
            changed = "removed" if k + n >= m else "added" if i + n >= j else "changed"
            yield DiffRow(left, right, "same" if kind == "equal" else changed)


def _subject_row(rows: Transaction, name: str) -> SubjectRow:
    versions = rows.versions(name, newest_first=True, page=slice(0, 1))
    own = service.LEVEL.own(rows, name)
    latest = versions[0] if versions else None
    origin = rows.origins(name).get(latest.version) if latest else None
    return SubjectRow(name, latest, service.LEVEL.of(rows, name), own is not None, origin)


def _pretty(version: StoredVersion) -> str:
    return json.dumps(json.loads(version.schema.text), indent=2, ensure_ascii=False)


def _store(request: Request) -> Store:
    store: Store = request.app.state.store
    return store


def failure(message: str, status: int, headers: Mapping[str, str]) -> HTMLResponse:
    """Return a page with an error's message."""
    text = _templates.get_template("error.html").render(message=message)
    return HTMLResponse(text, status, {**HEADERS, **headers})


def _page(name: str, **values: Any) -> HTMLResponse:
    return HTMLResponse(_templates.get_template(name).render(values), headers=HEADERS)
