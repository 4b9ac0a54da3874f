"""A connection of type `millrace`, as text in the environment, becomes settings or one clear line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from millrace.errors import ConfigError
from millrace.security.client import load_client, password
from millrace_airflow.hooks import millrace as hook
from millrace_airflow.hooks.millrace import MillraceHook
from millrace_airflow.provider_info import get_provider_info
from millrace_airflow.settings import MillraceSettings

EXTRA = {"registry": "http://r:1", "auditor": "http://a:2", "warehouse": "/w"}


def set_connection(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", json.dumps({"conn_type": "millrace", **fields}))


def test_a_connection_in_json_holds_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    origins = {"dc1": "127.0.0.1:9192", "dc2": "127.0.0.1:9292,127.0.0.1:9293"}
    extra = {**EXTRA, "origins": origins, "spark_master": "yarn", "job_dir": "/jobs"}
    set_connection(monkeypatch, host="127.0.0.1:9392,127.0.0.1:9393", extra=extra)
    settings = MillraceHook().get_conn()
    assert settings.bootstrap == "127.0.0.1:9392,127.0.0.1:9393"
    assert (settings.registry, settings.auditor, settings.warehouse) == ("http://r:1", "http://a:2", "/w")
    assert settings.origins == origins
    assert (settings.spark_master, settings.job_directory) == ("yarn", Path("/jobs"))


def test_the_form_requires_what_has_no_default_and_nothing_else() -> None:
    fields = get_provider_info()["connection-types"][0]["conn-fields"]
    required = {name for name, field in fields.items() if "null" not in field["schema"]["type"]}
    needed = {one.name for one in dataclasses.fields(MillraceSettings) if one.default is one.default_factory}
    assert required == needed - {"bootstrap"}, "the brokers are the connection's host"


def test_a_connection_as_a_uri_holds_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    query = f"registry={quote('http://r:1')}&auditor={quote('http://a:2')}&warehouse={quote('/w')}"
    origins = quote(json.dumps({"dc1": "127.0.0.1:9192"}))
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", f"millrace://broker:9392/?{query}&origins={origins}")
    settings = MillraceHook().get_conn()
    assert (settings.bootstrap, settings.registry, settings.warehouse) == ("broker:9392", "http://r:1", "/w")
    assert settings.origins == {"dc1": "127.0.0.1:9192"}


def test_several_brokers_fit_in_a_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    query = "registry=http%3A%2F%2Fr&auditor=http%3A%2F%2Fa&warehouse=%2Fw"
    host = quote("a:1,b:2", safe="")
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", f"millrace://{host}/?{query}")
    assert MillraceHook().get_conn().bootstrap == "a:1,b:2"


def test_login_and_password_become_a_client_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extra = {**EXTRA, "protocol": "SASL_SSL", "ca": "/ca.pem", "mechanism": "SCRAM-SHA-256"}
    set_connection(monkeypatch, host="b:1", login='a"b', password="s3cr\\t", extra=extra)
    settings = MillraceHook().get_conn()
    for name, text in settings.client_files().items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    security = load_client(str(tmp_path / "client.toml"))
    assert (security.protocol, security.ca, security.mechanism) == ("SASL_SSL", "/ca.pem", "SCRAM-SHA-256")
    assert (security.user, password(security)) == ('a"b', "s3cr\\t")
    assert "s3cr" not in repr(settings)


def test_tokens_have_fields_of_their_own_which_airflow_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse

    tokens = {"registry_token": "canary-r/", "auditor_token": "canary-a"}
    urls = {"registry": "https://web@r:1", "auditor": "https://ops@a:2/under"}
    extra = {**EXTRA, **urls, **tokens}
    set_connection(monkeypatch, host="b:1", extra=extra)
    settings = MillraceHook().get_conn()
    assert settings.registry == "https://web:canary-r%2F@r:1"
    assert settings.auditor == "https://ops:canary-a@a:2/under"
    assert "canary" not in repr(settings)
    shown = ConnectionResponse.redact_extra(json.dumps(extra))
    assert shown is not None
    assert "canary" not in shown
    set_connection(monkeypatch, host="b:1", extra={**EXTRA, "registry_token": "canary"})
    with pytest.raises(ConfigError, match="registry 'http://r:1' names no user for the token") as error:
        MillraceHook().get_conn()
    assert "canary" not in str(error.value)


def test_jobs_are_kept_in_airflows_home_unless_a_folder_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/home/of/airflow")
    set_connection(monkeypatch, host="b:1", extra=EXTRA)
    assert MillraceHook().get_conn().job_directory == Path("/home/of/airflow/millrace-jobs")


def test_an_address_of_ip_version_6_keeps_its_brackets_in_a_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    query = "registry=http%3A%2F%2Fr&auditor=http%3A%2F%2Fa&warehouse=%2Fw"
    monkeypatch.setenv("AIRFLOW_CONN_MILLRACE_DEFAULT", f"millrace://[::1]:9092/?{query}")
    assert MillraceHook().get_conn().bootstrap == "[::1]:9092"


def test_a_token_of_digits_and_a_login_with_a_control_character_are_taken_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra = {**EXTRA, "registry": "https://web@r:1", "registry_token": 1234567, "protocol": "SASL_SSL"}
    set_connection(monkeypatch, host="b:1", login="a\x7fb", password="p", extra=extra)
    settings = MillraceHook().get_conn()
    assert settings.registry == "https://web:1234567@r:1"
    for name, text in settings.client_files().items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text(text)
    assert load_client(str(tmp_path / "client.toml")).user == "a\x7fb"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"host": "b:1", "extra": "[1]"}, "its extra is not a JSON object"),
        ({"extra": EXTRA}, "connection millrace_default has no host: set it to HOST:PORT"),
        ({"host": "broker", "extra": EXTRA}, "connection millrace_default: host 'broker' is not HOST:PORT"),
        ({"host": "b:1", "extra": {"registry": "http://r"}}, "missing key 'auditor'"),
        (
            {"host": "b:1", "extra": {**EXTRA, "autidor": "x"}},
            "unknown key 'autidor'; did you mean 'auditor'",
        ),
        (
            {"host": "b:1", "extra": {**EXTRA, "auditor": "10.0.0.5:8082"}},
            "connection millrace_default: auditor '10.0.0.5:8082' is not a URL: write http://HOST:PORT",
        ),
        (
            {"host": "b:1", "extra": {**EXTRA, "registry": "https//u:secret@r:1"}},
            "connection millrace_default: registry '***@r:1' is not a URL",
        ),
        ({"host": "b:1", "extra": {**EXTRA, "origins": "dc1"}}, "origins is not JSON of the form"),
        ({"host": "b:1", "extra": {**EXTRA, "origins": {"dc1": 9192}}}, "origins.dc1 has the wrong type"),
        ({"host": "b:1", "extra": {**EXTRA, "origins": {"dc1": "x"}}}, "origin dc1 'x' is not HOST:PORT"),
        (
            {"host": "b:1", "login": "loads", "extra": EXTRA},
            "has a login and no protocol: set it to SASL_SSL",
        ),
        (
            {"host": "b:1", "extra": {**EXTRA, "protocol": "SASL_SSL"}},
            "SASL_SSL needs user and password_file",
        ),
        ({"host": "b:1", "extra": {**EXTRA, "protocol": "TLS"}}, "protocol 'TLS' is none of PLAINTEXT, SSL"),
        (
            {"host": "b:1", "login": "loads", "extra": {**EXTRA, "client_file": "/c", "protocol": "SSL"}},
            "give protocol and login, or client_file",
        ),
    ],
)
def test_a_wrong_connection_is_one_line_that_names_the_field(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], message: str
) -> None:
    set_connection(monkeypatch, **fields)
    with pytest.raises(ConfigError) as error:
        MillraceHook().get_conn()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_testing_a_connection_names_the_first_service_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hook, "TEST_TIMEOUT_S", 0.2)
    set_connection(monkeypatch, host="127.0.0.1:1", extra=EXTRA)
    works, message = MillraceHook().test_connection()
    assert not works
    assert message.startswith("cannot reach a broker at 127.0.0.1:1")
