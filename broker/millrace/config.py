"""Settings as frozen dataclasses, read from TOML with every unknown key refused by name.

A setting is a field: its type checks it, its default is the product's default, its docstring states unit and
trade-off. Clients read the docstring as the setting's documentation (DescribeConfigs), so each docstring must
be understood alone, and writes -1 for None, as files do. This module reads no environment variables and keeps
no state.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from millrace.errors import ConfigError

T = TypeVar("T")
MIN_BYTES_PER_SECOND = 10_000
"""Lowest rate limit: answers without records use a part of it, too."""

FLUSH = ("soon", "batch")
OFFLINE_AUDIT_TOPIC = "audit-offline"
"""Topic in the aggregate cluster with the counts made there and in the warehouse; never mirrored."""
MAX_PRODUCER_IDS = 100_000
MIN_PRODUCER_IDS = 1_000
"""Lowest limit of producer ids: fewer would leave a partition too few places for one principal and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings for writing, flushing and keeping a topic's partitions."""

    segment_bytes: int = 1 << 30
    """Roll to a new segment when the active one would exceed this."""
    segment_ms: int | None = 7 * 24 * 3600 * 1000
    """Roll to a new segment when the active one is older than this. Retention deletes only whole segments to
    which nothing was appended for long, so a segment that always gets a little would never be deleted. -1
    rolls by size alone."""
    flush: str = "soon"
    """"soon" flushes also when the disk is idle and a fetch waits for new bytes. "batch" flushes by
    flush_messages and flush_ms alone: less CPU for each message, more delay for each consumer."""
    flush_messages: int = 10_000
    """Flush after this many messages. Consumers see messages once they are flushed."""
    flush_ms: int = 100
    """Flush at the latest this long after an append: the longest that consumers wait for a message."""
    retention_ms: int | None = 7 * 24 * 3600 * 1000
    """Delete a segment when its last append is longer ago than this; -1 keeps everything."""
    retention_bytes: int | None = None
    """Delete the oldest segments while a partition is larger than this; -1 sets no limit."""
    max_message_bytes: int = 8 << 20
    """Largest batch that a producer may send."""

    def __post_init__(self) -> None:
        if self.flush not in FLUSH:
            raise ConfigError(f"log.flush is {self.flush!r}: it must be one of {', '.join(FLUSH)}")


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
CLIENT_MECHANISMS = (*MECHANISMS, "PLAIN", "OAUTHBEARER")
TLS_MECHANISMS = ("PLAIN", "OAUTHBEARER")
"""Mechanisms that send a password or a token, and so need TLS."""
LISTENER_MECHANISMS = (*MECHANISMS, *TLS_MECHANISMS)
TOKEN_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms of tokens: asymmetric, so that only the issuer has the signing key."""
TLS_VERSIONS = ("1.2", "1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperIdentity:
    """A login to ZooKeeper, and the digests of all identities: a file of `millrace zookeeper identities`."""

    user: str
    password: str = field(repr=False)
    brokers: str
    """USER:DIGEST of the identity with all rights."""
    clients: str
    """USER:DIGEST of the identity that may change groups and turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """Connection settings and login of Millrace's clients of brokers; names files, holds no secret."""

    protocol: str = "PLAINTEXT"
    """Protocol of the brokers' listener: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    ca: str = ""
    """PEM file of the authorities that sign brokers' certificates; empty: the authorities that the machine
    trusts."""
    certificate: str = ""
    """PEM file of the client's own certificate, if brokers want one."""
    key: str = ""
    """PEM file of the certificate's key, which only its owner may read; empty: in the certificate's file."""
    key_password_file: str = ""
    """File with the key's password, mode 0600."""
    min_version: str = "1.2"
    """Oldest version of TLS: 1.2 or 1.3."""
    mechanism: str = "SCRAM-SHA-512"
    """Mechanism of the login: SCRAM-SHA-256, SCRAM-SHA-512, PLAIN or OAUTHBEARER."""
    user: str = ""
    """Name that the client logs in with."""
    password_file: str = ""
    """File whose first line is the user's password, mode 0600. It is read at every login, so that a new
    password needs no restart."""
    token_file: str = ""
    """File whose first line is a token (JWT) for OAUTHBEARER, mode 0600. It is read at every login: replace
    the token there before it expires."""
    zookeeper_identity: str = ""
    """The clients' file of `millrace zookeeper identities`; empty: no login to ZooKeeper."""

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def uses_token(self) -> bool:
        return self.mechanism == "OAUTHBEARER"

    def __post_init__(self) -> None:
        _check_choice("protocol", self.protocol, PROTOCOLS)
        _check_choice("min_version", self.min_version, TLS_VERSIONS)
        _check_choice("mechanism", self.mechanism, CLIENT_MECHANISMS)
        if self.uses_token:
            if self.protocol != "SASL_SSL" or not self.token_file or self.user or self.password_file:
                raise ConfigError(
                    "mechanism OAUTHBEARER needs protocol SASL_SSL and token_file, and neither user nor"
                    " password_file: the token names the user"
                )
        elif self.uses_sasl and not (self.user and self.password_file):
            raise ConfigError(f"protocol {self.protocol} needs user and password_file")
        if self.token_file and not self.uses_token:
            raise ConfigError("token_file is for mechanism OAUTHBEARER only: set mechanism to that")
        if self.user and not self.uses_sasl:
            raise ConfigError(f"with user the protocol is SASL_SSL or SASL_PLAINTEXT, not {self.protocol}")
        if (self.ca or self.certificate) and not self.uses_tls:
            raise ConfigError(f"with ca or certificate the protocol is SSL or SASL_SSL, not {self.protocol}")
        if self.mechanism == "PLAIN" and self.protocol == "SASL_PLAINTEXT":
            raise ConfigError("mechanism PLAIN would send the password in plain text: use protocol SASL_SSL")


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginConfig:
    """A cluster that this cluster mirrors; the brokers that lead the target partitions pull it."""

    bootstrap: str
    """HOST:PORT[,HOST:PORT...] of the origin's brokers."""
    topics: Sequence[str] = ()
    """Topics that the brokers pull continuously: names, or patterns with * ? and [...]. A pattern includes
    later topics, and leaves out internal topics and topics that the origin mirrors itself."""
    exclude: Sequence[str] = ()
    """Names or patterns of topics that the patterns in `topics` leave out."""
    batch_topics: Sequence[str] = ()
    """Names or patterns of topics that get target partitions but are filled by the Spark batch mirror; they
    have precedence over `topics`."""
    max_bytes_per_second: int | None = None
    """Highest rate at which one broker reads from this origin, all topics together; -1 sets no limit."""
    security: ClientSecurity = field(default_factory=ClientSecurity)
    """Connection settings and login of this cluster's brokers at the origin's."""

    def __post_init__(self) -> None:
        rate = self.max_bytes_per_second
        if rate is not None and rate < MIN_BYTES_PER_SECOND:
            raise ConfigError(
                f"max_bytes_per_second is {rate}: give at least {MIN_BYTES_PER_SECOND}, or -1 for no limit; "
                "to stop a mirror leave its topics out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaMirrorConfig:
    """A mirror into an Apache Kafka: one process beside it, with its own registry of copies."""

    cluster: str
    """Name of the Apache Kafka as the aggregate cluster; its registry in ZooKeeper is below it."""
    bootstrap: str
    """HOST:PORT[,HOST:PORT...] of the Kafka's brokers, reached with the settings of the process's client
    file."""
    zookeeper: str
    """HOST:PORT[,HOST:PORT...] of Millrace's ZooKeeper, the same as for the auditor and the readers."""
    zookeeper_identity: str = ""
    """A brokers' file of `millrace zookeeper identities`; empty: no login to ZooKeeper."""
    metrics_listen: str = ""
    """HOST:PORT for `/metrics` (Prometheus) and `/healthz`; empty: none. Without `metrics_access` both are
    open to every client that can reach the address."""
    metrics_access: str = ""
    """A file of tokens (`millrace access`); `/metrics` requires a token with the role `metrics`."""
    mirror: Mapping[str, OriginConfig]
    """Origin clusters that are copied, by name."""

    def __post_init__(self) -> None:
        check_cluster_name(self.cluster)
        for name, origin in self.mirror.items():
            if origin.batch_topics:
                raise ConfigError(
                    f"mirror.{name}.batch_topics: `millrace mirror-batch` writes to Millrace brokers only;"
                    " move the topics to `topics`"
                )
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,200}", name):
                raise ConfigError(f"mirror.{name}: a name has 1 to 200 letters, digits, dots, `_` or `-`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits on clients of one broker.

    With the defaults, 2,000 clients cannot make the broker use 1 GiB of memory.
    """

    max_connections: int = 4_000
    """Most open connections; more are closed as they come. An idle connection costs about 3 KiB."""
    max_connections_per_address: int = 3_000
    """Most open connections from one client address: no single host can lock out all others."""
    max_idle_ms: int = 10 * 60 * 1000
    """Close a connection that for this long has sent no whole request and received nothing of an answer. A
    connection whose request waits (a parked fetch, acks=all) is not idle. The default is Kafka's: clients
    expect it."""
    max_frame_bytes: int = 64 << 20
    """Largest request; a larger one closes its connection before it is buffered. The default is eight of the
    largest batches."""
    max_queued_bytes: int = 1 << 20
    """Size of unsent answers above which the broker reads no more from a client, until the client receives
    them. Records do not count: they are sent from the files."""
    max_queued_requests: int = 4_096
    """Number of unanswered requests of a client above which the broker reads no more from it."""
    max_buffered_bytes: int = 128 << 20
    """Most bytes that all connections hold together: unfinished and unserved requests, unsent answers, and
    each unanswered request with its size, at least 4 KiB. Above the limit the broker reads nothing from a
    client that holds more than a quarter of an even share, except to finish the oldest unfinished request,
    and closes a client that stalls for 10 s. Above twice the limit it closes a client with unread answers of
    more than that quarter at once."""

    max_unauthenticated: int = 400
    """Most connections that are not yet authenticated; beyond the limit the oldest of them is closed."""
    authentication_ms: int = 10_000
    """Close a connection that has not logged in after this time."""

    def __post_init__(self) -> None:
        if self.max_buffered_bytes < 2 * self.max_frame_bytes:
            raise ConfigError("max_buffered_bytes must be at least twice max_frame_bytes")


DEFAULT_LISTEN = "127.0.0.1:9092"
DEFAULT_LISTENER = "default"
"""Name of the listener that is set by `listen` alone."""
CLIENT_CERTIFICATES = ("none", "wanted", "required")
EVERY_ADDRESS = ("0.0.0.0", "::")
"""Addresses to listen on, to which no client can connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """An address for clients: where the broker listens, what it advertises, and how clients log in."""

    listen: str
    """HOST:PORT where clients of this listener connect; port 0 takes a free port."""
    advertised: str = ""
    """HOST:PORT at which clients of this listener reach the broker; empty: `listen` itself. Port 0 means the
    port that was bound."""
    protocol: str = "PLAINTEXT"
    """Protocol that clients speak: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. SSL is TLS with the
    certificate of [tls]; SASL makes clients log in."""
    mechanisms: Sequence[str] = MECHANISMS
    """Mechanisms that clients log in with, where `protocol` asks for a login."""
    client_certificates: str = "none"
    """Client certificates, which authenticate this listener's clients: none, wanted or required."""

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def __post_init__(self) -> None:
        _check_choice("protocol", self.protocol, PROTOCOLS)
        _check_choice("client_certificates", self.client_certificates, CLIENT_CERTIFICATES)
        if self.client_certificates != "none" and not self.uses_tls:
            raise ConfigError("client_certificates are for a listener of protocol SSL or SASL_SSL")
        for mechanism in self.mechanisms:
            _check_choice("mechanism", mechanism, LISTENER_MECHANISMS)
            if mechanism in TLS_MECHANISMS and self.protocol == "SASL_PLAINTEXT":
                what = "passwords" if mechanism == "PLAIN" else "tokens"
                raise ConfigError(
                    f"mechanism {mechanism} sends {what} to eavesdroppers: use protocol SASL_SSL"
                )
        if self.uses_sasl and not self.mechanisms:
            raise ConfigError(f"protocol {self.protocol} needs mechanisms")
        if not self.advertised and parse_address(self.listen, "listen")[0] in EVERY_ADDRESS:
            raise ConfigError(f"no client finds a broker at {self.listen}: set `advertised` to HOST:PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """PEM files and settings of TLS connections."""

    certificate: str = ""
    """PEM file of the broker's certificate, followed by the chain up to an authority that clients trust."""
    key: str = ""
    """PEM file of the certificate's key, which only its owner may read; empty: in the certificate's file."""
    key_password_file: str = ""
    """File with the key's password, mode 0600."""
    ca: str = ""
    """PEM file of the authorities that clients' certificates are checked by."""
    min_version: str = "1.2"
    """Oldest version of TLS: 1.2 or 1.3."""
    principal_rules: Sequence[str] = ("DEFAULT",)
    """Rules that turn the subject of a client's certificate into a name, as Kafka's
    ssl.principal.mapping.rules."""

    def __post_init__(self) -> None:
        _check_choice("min_version", self.min_version, TLS_VERSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OauthConfig:
    """Conditions that tokens must meet for logins by OAUTHBEARER."""

    issuer: str = ""
    """Value that `iss` of a token must have."""
    audience: str = ""
    """Value that `aud` of a token must contain: it shows that the token was issued for this cluster."""
    jwks: str = ""
    """https:// address of the issuer's key set."""
    ca: str = ""
    """PEM file of the authorities that the key set's server is checked by; empty: the authorities that the
    machine trusts."""
    principal_claim: str = "sub"
    """Claim of a token that names its user."""
    algorithms: Sequence[str] = ("RS256", "ES256")
    """Algorithms that a token may be signed with."""

    def __post_init__(self) -> None:
        for algorithm in self.algorithms:
            _check_choice("algorithm", algorithm, TOKEN_ALGORITHMS)
        if self.jwks and not self.jwks.startswith("https://"):
            raise ConfigError(f"oauth.jwks {self.jwks!r} is not fetched by HTTPS: give an https:// address")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """Access control of clients."""

    authorizer: bool = False
    """True: clients may do only what access control lists allow (`millrace acls`). False: every client may do
    everything."""
    super_users: Sequence[str] = ()
    """Principals, such as User:admin, that may do everything without an access control list."""
    reauthenticate_ms: int | None = None
    """Lifetime of a login in ms. A connection whose client has not logged in again by then is closed. With -1
    a login lasts as long as its connection."""

    def __post_init__(self) -> None:
        for principal in self.super_users:
            if not principal.startswith("User:") or principal == "User:":
                raise ConfigError(f"super user {principal!r} is not User:NAME")


_NOT_CLUSTERS = ("zookeeper", "audit")
"""Nodes at the top of ZooKeeper that are no clusters: ZooKeeper's own node, and the auditor's."""


def check_cluster_name(name: str) -> None:
    """Raise ConfigError unless a ZooKeeper node, or a path to a node, can have the name."""
    nodes = name.split("/")
    wrong = any(node in ("", ".", "..") or not node.isprintable() for node in nodes)
    if wrong or nodes[0] in _NOT_CLUSTERS or len(name) > 200:
        raise ConfigError(
            f"cluster {name[:200]!r} is no name of a cluster: take one like dc1, of at most 200 letters,"
            " digits, dots, underscores and hyphens"
        )


def _check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{key} {value!r} is none of {', '.join(choices)}")


MAX_BROKER_ID = 2**31 - 1
"""Largest broker id in Kafka's protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(ClientLimits):
    """Settings of one broker process."""

    broker_id: int
    """Number of this broker, unique in its cluster."""
    cluster: str
    """Name of the cluster, for example dc1; also its ZooKeeper chroot."""
    listen: str = DEFAULT_LISTEN
    """HOST:PORT where clients connect, unless `listeners` are set; port 0 takes a free port."""
    listeners: Mapping[str, ListenerConfig] = field(default_factory=dict)
    """Listeners for several kinds of clients, by name; a cluster's brokers have the same names. Through
    ZooKeeper, Millrace's own processes find the first one."""
    tls: TlsConfig = field(default_factory=TlsConfig)
    """The broker's certificate, for listeners of protocol SSL."""
    oauth: OauthConfig = field(default_factory=OauthConfig)
    """Conditions for tokens, for listeners with OAUTHBEARER."""
    security: SecurityConfig = field(default_factory=SecurityConfig)
    zookeeper: str = "127.0.0.1:2181"
    """HOST:PORT[,HOST:PORT...] of the ensemble, without a chroot."""
    zookeeper_identity: str = ""
    """The brokers' file of `millrace zookeeper identities`, mode 0600; empty: no login to ZooKeeper, and
    every client of ZooKeeper may change the nodes of this broker."""
    log_dir: str = "./data"
    """Folder of the segment files; the running broker locks it."""
    default_partitions: int = 4
    """Partitions of a topic that is created without a number of partitions."""
    default_replicas: int = 1
    """Replicas of each partition of a topic that is created without a number of replicas."""
    rack: str = ""
    """Name shared by brokers that fail together, for example of their power supply. The replicas of a
    partition are spread over as many racks as possible. Empty: the host that the broker's first listener
    advertises, so that brokers on one machine share a rack."""
    replica_lag_ms: int = 10_000
    """Longest lag of an in-sync replica in ms: its disk must have all bytes that its leader had this long
    ago."""
    replica_catch_up_bytes_per_second: int | None = None
    """Largest rate at which this broker copies committed messages to replicas that lag, from all leaders
    together. In-sync replicas are not limited. -1 sets no limit."""
    replica_listener: str = ""
    """Name of the only listener through which brokers copy from each other. Empty: brokers connect to each
    other's first listener, and every listener serves them."""
    replica_client: ClientSecurity = field(default_factory=ClientSecurity)
    """Connection settings and login of this broker at the other brokers' replica listener."""
    auto_create_topics: bool = False
    """True: create a missing topic when a client asks for it and allows its creation. False: a mistyped name
    is an error, not a new topic that no consumer reads."""
    max_partitions_per_topic: int = 1_000
    """Most partitions of a topic. A topic is one ZooKeeper node of at most 1 MB, which every broker reads
    again at each change. A partition takes 90 bytes of the node, a mirrored partition 220."""
    max_producer_ids: int = MAX_PRODUCER_IDS
    """Most ids of idempotent producers that are remembered, in all partitions together; a tenth of them in
    each. One principal takes at most half."""
    session_timeout_ms: int = 6_000
    """Time in ms after which ZooKeeper removes a dead broker."""
    admin_hosts: Sequence[str] = ()
    """Addresses from which a mirror may be reset and its offsets translated, besides this machine itself and
    the addresses that the cluster's brokers are registered with."""
    metrics_listen: str = ""
    """HOST:PORT for `/metrics` (Prometheus) and `/healthz`; empty: none. Without `metrics_access` every
    client of that address can read the names of topics and groups."""
    metrics_access: str = ""
    """A file of tokens (`millrace access`); `/metrics` requires a token with the role `metrics`."""
    metrics_tls: bool = False
    """True: metrics and health use HTTPS, with the certificate of [tls]."""
    group_min_session_timeout_ms: int = 6_000
    """Smallest session timeout that a consumer group's member may ask for."""
    group_max_session_timeout_ms: int = 1_800_000
    """Largest session timeout that a consumer group's member may ask for."""
    group_initial_rebalance_delay_ms: int = 500
    """An empty group waits this long after each member that joins, so that consumers which start together
    share one rebalance; with 0 the first member starts it."""
    group_max_size: int = 1_000
    """Most members of one group."""
    offsets_retention_minutes: int | None = 7 * 24 * 60
    """Minutes after which the offsets of a group without members are deleted, counted from the time when its
    last member left. If the group never had members, each offset is deleted this long after its commit. -1
    keeps offsets for ever."""
    log: LogConfig = field(default_factory=LogConfig)
    mirror: Mapping[str, OriginConfig] = field(default_factory=dict)
    """Origin clusters by name."""

    def __post_init__(self) -> None:
        ClientLimits.__post_init__(self)
        check_cluster_name(self.cluster)
        if self.broker_id > MAX_BROKER_ID:
            raise ConfigError(f"broker_id is {self.broker_id}: it must be at most {MAX_BROKER_ID}")
        if self.default_replicas < 1:
            raise ConfigError("default_replicas must be at least 1")
        if self.max_producer_ids < MIN_PRODUCER_IDS:
            raise ConfigError(f"max_producer_ids must be at least {MIN_PRODUCER_IDS:,}")
        if self.offsets_retention_minutes == 0:
            raise ConfigError("offsets_retention_minutes must be at least 1; -1 keeps offsets for ever")
        rate = self.replica_catch_up_bytes_per_second
        if rate is not None and rate < MIN_BYTES_PER_SECOND:
            raise ConfigError(
                f"replica_catch_up_bytes_per_second is {rate}: give at least {MIN_BYTES_PER_SECOND},"
                " or -1 for no limit"
            )
        if self.listeners and self.listen != DEFAULT_LISTEN:
            raise ConfigError("`listen` and [listeners] are both set: make the address one more listener")
        if self.replica_listener and self.replica_listener not in self.named_listeners:
            raise ConfigError(f"replica_listener {self.replica_listener!r} is none of [listeners]")
        if self.metrics_tls and not (self.metrics_listen and self.tls.certificate):
            raise ConfigError("metrics_tls needs metrics_listen and [tls] certificate")
        for name, listener in self.listeners.items():
            if listener.uses_tls and not self.tls.certificate:
                raise ConfigError(f"listener {name} of protocol {listener.protocol} needs [tls] certificate")
            if listener.client_certificates != "none" and not self.tls.ca:
                raise ConfigError(f"client_certificates of listener {name} need [tls] ca to check them by")
            needed = (self.oauth.issuer, self.oauth.audience, self.oauth.jwks)
            if listener.uses_sasl and "OAUTHBEARER" in listener.mechanisms and not all(needed):
                raise ConfigError(f"OAUTHBEARER of listener {name} needs [oauth] issuer, audience and jwks")

    @property
    def named_listeners(self) -> Mapping[str, ListenerConfig]:
        """The listeners by name; without [listeners], the one that `listen` sets."""
        return self.listeners or {
            DEFAULT_LISTENER: ListenerConfig(listen=self.listen, advertised=self.listen)
        }


def documentation_of(settings: type) -> Mapping[str, str]:
    """Return the docstring of each field of a settings class of this file, of its bases too, as one line."""
    return {
        name: text
        for cls in reversed(settings.__mro__)
        for name, text in _docstrings().get(cls.__name__, {}).items()
    }


@cache
def _docstrings() -> Mapping[str, Mapping[str, str]]:
    """Return each class's docstrings by field, from the source: Python keeps no docstrings of fields."""
    found: dict[str, dict[str, str]] = {}
    for statement in ast.parse(Path(__file__).read_bytes()).body:
        if isinstance(statement, ast.ClassDef):
            fields = found[statement.name] = {}
            for pair in pairwise(statement.body):
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(text))
                    ):
                        fields[name] = " ".join(text.split())
    return found


def parse_address(text: str, what: str = "address") -> tuple[str, int]:
    """Return (host, port) of `HOST:PORT`. Raise ConfigError when `text` is not of that form."""
    match = re.fullmatch(r"\[?([^\[\]]+?)\]?:(\d{1,5})", text.strip())
    if match is None or "/" in match[1] or not _is_name(match[1]) or int(match[2]) > 65535:
        raise ConfigError(f"{what} {text!r} is not HOST:PORT")
    return match[1], int(match[2])


def _is_name(host: str) -> bool:
    """Return False for a name that is impossible in DNS: looking it up would raise an error that is no
    OSError.
    """
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def parse_addresses(text: str, what: str = "bootstrap") -> list[tuple[str, int]]:
    """Return every (host, port) of `HOST:PORT,HOST:PORT`. Raise ConfigError when one is malformed."""
    return [parse_address(part, what) for part in text.split(",")]


def parse_time(text: str, what: str) -> datetime:
    """Parse a time in ISO 8601, in UTC if it has no zone. Raise ConfigError when it is no time."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):  # also where the time zone moves it out of the calendar
        raise ConfigError(f"{what} {text!r} is not a time like 2015-05-17T10:00:00Z") from None


def load(cls: type[T], path: Path, overrides: Sequence[str] = ()) -> T:
    """Return the settings in a TOML file, `key=value` overrides (dotted keys) applied on top.

    Raise ConfigError, one line with file and key, for an unreadable file, an unknown key or a wrong type.
    """
    values = read_toml(path)
    for override in overrides:
        _apply_override(values, override)
    return from_mapping(cls, values, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys of a TOML file. Raise ConfigError, one line, when it cannot be read."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"no configuration file {path}: create it or give another path") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _apply_override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r} is not key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string, so that --set listen=127.0.0.1:9092 needs no quotes
    *tables, name = key.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {key}: {table} is not a table")
    values[name] = value


def from_mapping(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a settings dataclass from a mapping.

    Raise ConfigError, with `where` and the key, for a wrong key.
    """
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # any settings dataclass
    for key in values:
        if key not in fields:
            close = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(fields)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {hint}")
    required = [f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise ConfigError(f"{where}: missing key {missing[0]!r}")
    return cls(**{key: _convert(hints[key], value, f"{where}: {key}") for key, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return from_mapping(hint, value, where)
    elif origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if isinstance(value, Mapping):
            return {name: _convert(arguments[1], item, f"{where}.{name}") for name, item in value.items()}
    elif isinstance(origin, type) and issubclass(origin, Sequence):
        if isinstance(value, list):
            return tuple(_convert(arguments[0], item, where) for item in value)
    elif origin is types.UnionType:
        # `int | None`: TOML has no null, so -1 says "no limit", as in Kafka's own settings. JSON has one.
        return None if value is None or value == -1 else _convert(arguments[0], value, where)
    elif type(value) is hint and not (hint is str and "\0" in value):  # no path or name has a zero
        if hint is int and value < 0:
            raise ConfigError(
                f"{where} is {value}: no setting is negative, but -1 where a limit may be absent"
            )
        return value
    raise ConfigError(f"{where} has the wrong type: {value!r}")
