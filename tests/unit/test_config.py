"""Settings: every wrong key or type ends in one line that names it."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from millrace.config import (
    BrokerConfig,
    KafkaMirrorConfig,
    ListenerConfig,
    LogConfig,
    OauthConfig,
    SecurityConfig,
    TlsConfig,
    from_mapping,
    load,
    parse_address,
    parse_addresses,
)
from millrace.errors import ConfigError
from tests.support import REPOSITORY

MINIMAL = 'broker_id = 1\ncluster = "dc1"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(MINIMAL + "[log]\nflush_ms = 5\nretention_ms = -1\n")
    return path


def test_a_file_is_read_and_overridden_key_by_key(file: Path) -> None:
    config = load(BrokerConfig, file, ["listen=127.0.0.1:0", "log.flush_ms=7", 'mirror.dc2.bootstrap="a:1"'])
    assert config.log == LogConfig(flush_ms=7, retention_ms=None)
    assert config.listen == "127.0.0.1:0"
    assert config.mirror["dc2"].bootstrap == "a:1"


NO_CLUSTERS = ["", "..", "a/../b", "/a", "a//b", "zookeeper", "audit", "x" * 201]


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("lisen=x", "unknown key 'lisen'; did you mean 'listen'"),
        ("log.flushes=1", "log: unknown key 'flushes'"),
        ("broker_id=one", "broker_id has the wrong type: 'one'"),
        ("log.flush_ms=true", "flush_ms has the wrong type: True"),
        ("log.flush=never", "log.flush is 'never': it must be one of soon, batch"),
        ('mirror.dc1 = {bootstrap = "a:1", topics = "all"}', "topics has the wrong type"),
        ("broker_id=-1", "broker_id is -1: no setting is negative"),
        ("log.retention_ms=-2", "retention_ms is -2: no setting is negative"),
        ("replica_catch_up_bytes_per_second=9_999", "at least 10000, or -1 for no limit"),
        ("offsets_retention_minutes=0", "at least 1; -1 keeps offsets for ever"),
        (r'log_dir="a\u0000b"', r"log_dir has the wrong type: 'a\\x00b'"),
        ("broker_id=2147483648", "broker_id is 2147483648: it must be at most 2147483647"),
        *((f"cluster={name}", "is no name of a cluster: take one like dc1") for name in NO_CLUSTERS),
        ("nonsense", "is not key=value"),
        ("cluster.name=1", "cluster is not a table"),
    ],
)
def test_a_wrong_key_or_type_is_named(file: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(BrokerConfig, file, [override])
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("broker_id = 1\n")
    with pytest.raises(ConfigError, match="missing key 'cluster'"):
        load(BrokerConfig, path)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        load(BrokerConfig, tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("broker_id = = 1")
    with pytest.raises(ConfigError, match=r"cannot read .*broken\.toml"):
        load(BrokerConfig, broken)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:99999", "host:port", "a..b:1", "x" * 64 + ":1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_address(text)


def test_addresses_are_split() -> None:
    assert parse_addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]


_SECTIONS = ("log", "mirror", "listeners", "tls", "oauth", "security", "replica_client")


def test_the_page_names_every_key_of_a_broker_with_its_default() -> None:
    page = (REPOSITORY / "docs" / "configuration.md").read_text()
    told: dict[str, str] = {}
    for keys, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", page, re.MULTILINE):
        told.update(zip(re.findall(r"`([^`]*)`", keys), defaults.split(", "), strict=False))
    groups = (
        ("", BrokerConfig),
        ("log.", LogConfig),
        ("listeners.NAME.", ListenerConfig),
        ("tls.", TlsConfig),
        ("oauth.", OauthConfig),
        ("security.", SecurityConfig),
    )
    for prefix, settings in groups:
        for field in dataclasses.fields(settings):
            if field.name not in _SECTIONS:
                default = "required" if field.default is dataclasses.MISSING else field.default
                if isinstance(default, tuple):
                    default = json.dumps(default).partition(", ")[0]
                text = {"None": "-1", "True": "true", "False": "false", "": "none"}.get(
                    str(default), str(default)
                )
                assert told.get(prefix + field.name, "").strip("`").startswith(text), field.name


def test_a_mirror_into_an_apache_kafka_takes_no_topics_of_the_batch_mirror() -> None:
    values = {"cluster": "all", "bootstrap": "k:1", "zookeeper": "z:1"}
    origin = {"bootstrap": "a:1", "batch_topics": ["A"]}
    with pytest.raises(ConfigError, match=r"mirror\.dc1\.batch_topics: .* move the topics to `topics`"):
        from_mapping(KafkaMirrorConfig, {**values, "mirror": {"dc1": origin}}, "x")


MUTUAL = {"listen": "h:1", "protocol": "SSL", "client_certificates": "required"}
BROKER = {"broker_id": 1, "cluster": "dc1"}


def test_listen_alone_is_one_listener() -> None:
    config = from_mapping(BrokerConfig, {**BROKER, "listen": "0.0.0.0:1"}, "x")
    assert config.named_listeners == {"default": ListenerConfig(listen="0.0.0.0:1", advertised="0.0.0.0:1")}


def test_listeners_by_name_take_its_place() -> None:
    one = {"listen": "0.0.0.0:1", "advertised": "kafka:2"}
    config = from_mapping(
        BrokerConfig, {**BROKER, "listeners": {"a": one, "b": {"listen": "10.0.0.1:3"}}}, "x"
    )
    assert list(config.named_listeners) == ["a", "b"]
    assert config.named_listeners["a"].advertised == "kafka:2"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"listen": "10.0.0.1:1", "listeners": {"a": {"listen": "10.0.0.1:2"}}}, "one more listener"),
        ({"listeners": {"a": {"listen": "0.0.0.0:1"}}}, "set `advertised`"),
        ({"listeners": {"a": {"listen": "[::]:1"}}}, "set `advertised`"),
        ({"listeners": {"a": {"listen": "h:1", "protocol": "plaintext"}}}, "is none of PLAINTEXT"),
        ({"listeners": {"a": {"listen": "h:1", "protocol": "SSL"}}}, r"a of protocol SSL needs \[tls\] cert"),
        ({"listeners": {"a": {"listen": "h:1", "client_certificates": "wanted"}}}, "of protocol SSL"),
        ({"listeners": {"a": MUTUAL}, "tls": {"certificate": "c"}}, r"of listener a need \[tls\] ca"),
        ({"listeners": {"a": {**MUTUAL, "client_certificates": "yes"}}}, "'yes' is none of none, wanted"),
        ({"tls": {"min_version": "1.1"}}, "min_version '1.1' is none of 1.2, 1.3"),
        ({"listeners": {"a": {}}}, "listeners.a: missing key 'listen'"),
    ],
)
def test_listeners_that_cannot_be_are_refused_in_one_line(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        from_mapping(BrokerConfig, {**BROKER, **settings}, "x")
