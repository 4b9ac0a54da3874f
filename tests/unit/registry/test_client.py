"""Our client of a registry, against answers that no registry gives."""

from __future__ import annotations

from functools import partial
from unittest import mock

import httpx
import pytest

from millrace_registry import client as ours


def client_of(status: int, body: str) -> ours.SchemaRegistryClient:
    answer = httpx.MockTransport(lambda _: httpx.Response(status, text=body))
    with mock.patch("httpx.Client", partial(httpx.Client, transport=answer)):
        return ours.SchemaRegistryClient("http://registry", timeout_s=0)


def test_only_a_registrys_own_code_says_that_a_schema_is_unknown() -> None:
    # A proxy, or another service behind a wrong address, says 404 to everything. Whoever took that for the
    # registry's word would count every message as one of nobody's.
    for body in ('{"detail": "Not Found"}', '{"error_code": 404, "message": "HTTP 404 Not Found"}', "[]"):
        with client_of(404, body) as client:
            with pytest.raises(ours.RegistryUnavailable, match="does not answer like a schema registry"):
                client.find_schema(1)
            with pytest.raises(ours.RegistryUnavailable):
                client.versions("s")
    for code, ask in ((40403, "schema"), (40401, "latest"), (40402, "latest")):
        with client_of(404, f'{{"error_code": {code}, "message": "gone"}}') as client:
            with pytest.raises(ours.UnknownSchema, match="gone"):
                getattr(client, ask)("1")
            assert client.versions("s") == []
            assert client.find_schema(1) is None


def test_an_answer_without_the_id_it_was_asked_for_is_no_registrys() -> None:
    with client_of(200, '{"hello": "world"}') as client:
        for ask in (
            lambda: client.register("s", "int"),
            lambda: client.latest("s"),
            lambda: client.lookup("s", "int"),
            lambda: client.incompatibilities("s", "int"),
        ):
            with pytest.raises(ours.RegistryUnavailable):
                ask()


def test_what_a_registry_says_can_be_gone_on_with() -> None:
    answer = '{"error_code": 40401, "message": "Subject \'s\' not found."}'
    with client_of(404, answer) as client, pytest.raises(ours.UnknownSchema, match=r"'s' not found$"):
        client.latest("s")
