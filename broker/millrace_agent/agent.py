"""One agent: its parts, built and ended in order."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.config import TlsConfig
from millrace.errors import ConfigError
from millrace.repeated_lines import RepeatedLines
from millrace.service.access import AccessList
from millrace.service.web import WebServer
from millrace_agent.app import build_app
from millrace_agent.carrier import BrokersTopics, Carrier
from millrace_agent.follow import Follower
from millrace_agent.intake import Intake
from millrace_agent.numbers import AgentNumbers, Taken
from millrace_agent.spool import Spool
from millrace_audit.reports.event import MAX_NAME_BYTES
from millrace_registry.client import SchemaRegistryClient
from millrace_registry.subjects import Strategy, Subjects

logger = logging.getLogger("millrace.agent")

DRAIN_S = 2.0
"""Time for which a stopped agent continues to send; its next process sends the rest."""
FULL = 0.9
"""Used part of the spool above which the agent is unhealthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The options of `millrace agent`."""

    cluster: str
    bootstrap: str
    registry: str
    service: str
    server: str
    spool: Path
    spool_bytes: int
    listen: str
    subjects: Subjects
    follow: Mapping[Path, str]
    """Topics by file."""
    lateness_ms: int
    report_interval_ms: int
    access_file: str
    """File of the tokens of clients that may use the agent; empty: every client may."""
    tls: TlsConfig | None
    """Certificate for HTTPS; None for HTTP."""


class Agent:
    """The running agent. It recovers its spool and starts when it is created.

    It is a context manager, which ends the producer instance if possible.
    """

    def __init__(self, config: AgentConfig) -> None:
        for name in (config.server, config.service):
            if len(name.encode()) > MAX_NAME_BYTES:
                raise ConfigError(f"the name {name[:20]}... has more than {MAX_NAME_BYTES} bytes: shorten it")
        _check_subjects(config)
        access = AccessList(config.access_file) if config.access_file else None
        self._registry = SchemaRegistryClient(config.registry)
        self._spool = Spool(config.spool, config.spool_bytes)
        self._stop = threading.Event()
        try:
            intake = Intake(self._registry, BrokersTopics(config.bootstrap), self._spool, config.subjects)
            self._follower = Follower(self._spool, intake, config.follow)
            self._carrier = Carrier(
                self._spool,
                config.bootstrap,
                self._registry,
                cluster=config.cluster,
                server=config.server,
                service=config.service,
                lateness_ms=config.lateness_ms,
                report_interval_s=config.report_interval_ms / 1000,
                caught_up=self._follower.caught_up,
                behind=self._follower.behind,
            )
            taken = Taken()
            numbers = AgentNumbers(self._spool, self._carrier, taken, self._follower.files)
            app = build_app(intake, self._spool, taken, numbers, self._problems, access)
            self._server = WebServer(app, config.listen, "agent", config.tls)
            # uvicorn logs every offer to change to HTTP/2; Java's client makes one with each request.
            logging.getLogger("uvicorn.error").addFilter(RepeatedLines())
        except BaseException:
            self._spool.close()
            raise
        logger.info("producer instance %d; %d events wait", self._carrier.instance, self._spool.events)
        self._no_more = threading.Event()
        beside = self._server.start_beside
        self._following = beside("follower", lambda: self._follower.run(self._no_more))
        self._carrying = beside("carrier", lambda: self._carrier.run(self._stop, DRAIN_S))

    def serve(self) -> None:
        """Take events until SIGTERM. Raise MillraceError when a part of the agent failed."""
        self._server.serve_until_stopped()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self._no_more.set()
        self._following.join()
        self._stop.set()
        self._carrying.join()
        self._follower.close()
        self._spool.close()
        self._registry.close()

    def _problems(self) -> list[str]:
        problems = [*self._carrier.troubles, *self._follower.troubles]
        used = self._spool.bytes / self._spool.limit_bytes
        if used > FULL:
            problems.append(f"the spool is {used:.0%} full: at 100 % events are answered with 503")
        return problems


def _check_subjects(config: AgentConfig) -> None:
    """Raise ConfigError when a topic's subject would be named by its record: the events name no record."""
    subjects = config.subjects
    named_by_record = [topic for topic, named in subjects.by_topic.items() if named == Strategy.RECORD]
    if subjects.strategy is Strategy.RECORD:
        named_by_record += sorted(set(config.follow.values()) - subjects.by_topic.keys())
        if not subjects.by_topic:
            named_by_record.append("TOPIC")
    if named_by_record:
        raise ConfigError(
            "events sent to an agent name no record type, so it cannot name the subject: give --subject"
            f" {named_by_record[0]}=SUBJECT"
        )
