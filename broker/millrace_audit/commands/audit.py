"""`millrace audit`: ask the auditor, and send it an operator's decisions."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from millrace.config import parse_time
from millrace.errors import ConfigError, MillraceError
from millrace.printing import print_json, say
from millrace_audit import client
from millrace_audit.answer import Completeness, Incident, Verdict, to_json
from millrace_audit.commands.explanation import explain
from millrace_audit.show import print_bad, print_completeness, print_incident, print_incidents

ASK_SECONDS = 1.0
"""Time between two questions of `--wait`."""


@click.command()
@click.argument("topic", required=False)
@click.option(
    "--from",
    "start",
    metavar="TIME",
    help="Start in ISO 8601, UTC if it names no zone; default: 24 hours ago.",
)
@click.option(
    "--to", "end", metavar="TIME", help="End, not included; default: the beginning of the present hour."
)
@click.option(
    "--auditor",
    "url",
    metavar="URL",
    envvar="MILLRACE_AUDITOR",
    default="http://127.0.0.1:8082",
    show_default=True,
    help="The auditor to ask.",
)
@click.option(
    "--bad",
    "is_bad",
    is_flag=True,
    help="List the causes that keep windows from being complete, over all time, worst first.",
)
@click.option("--incident", "key", metavar="KEY", help="Show one cause that --bad lists, with its hours.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Most incidents or windows that --bad lists, and most facts of each kind that --explain requests.",
)
@click.option(
    "--explain",
    "explained",
    metavar="HOUR",
    help="Explain the verdicts on the windows of an hour, or on one window like 2015-05-17T10:20: print the"
    " rules and their facts.",
)
@click.option("--windows", is_flag=True, help="Print a line for each ten-minute window.")
@click.option(
    "--history",
    "is_history",
    is_flag=True,
    help="Print who accepted what and when, and the final verdicts that changed later.",
)
@click.option(
    "--accept",
    "instance",
    type=int,
    metavar="INSTANCE",
    help="Decide without the reports of a silent producer instance; needs --reason.",
)
@click.option(
    "--accept-service",
    "service",
    metavar="NAME",
    help="Decide without the reports of all silent instances of a service; needs --reason.",
)
@click.option("--server", metavar="NAME", help="With --accept-service: only instances on this server.")
@click.option(
    "--before",
    metavar="TIME",
    help="With --accept-service: only instances whose last message came before TIME.",
)
@click.option(
    "--disown",
    is_flag=True,
    help="With an acceptance: ignore the instances' reports, because they were not yours.",
)
@click.option(
    "--accept-rejected",
    "load",
    type=click.IntRange(1),
    metavar="LOAD",
    help="Give up on the messages of TOPIC that a load could not decode; needs --reason.",
)
@click.option(
    "--replace-loads", is_flag=True, help="Count the loads that replaced lost loads of TOPIC; needs --reason."
)
@click.option("--reason", metavar="TEXT", help="Reason, which stays visible beside the windows.")
@click.option(
    "--wait",
    "wait_s",
    type=click.IntRange(0),
    default=0,
    metavar="SECONDS",
    help="Ask again while the answer is not proven, at most this long. An incomplete answer ends the wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the auditor's answer for a script.")
@click.pass_context
def audit(
    context: click.Context,
    /,
    topic: str | None,
    start: str | None,
    end: str | None,
    url: str,
    windows: bool,
    as_json: bool,
    is_bad: bool,
    limit: int,
    explained: str | None,
    key: str | None,
    is_history: bool,
    wait_s: int,
    **acceptance: Any,
) -> None:
    """Ask whether every event of TOPIC has arrived everywhere exactly once, and if not, why.

    Example: millrace audit PageView --from 2015-05-17T10:00Z --to 2015-05-17T12:00Z

    Why: millrace audit PageView --explain 2015-05-17T10
    """
    accepted = _accept(url, topic, as_json=as_json, **acceptance)
    if accepted and topic is None:
        return
    if is_bad and windows:
        found = client.bad(url, topic, limit)
        if as_json:
            print_json(to_json(found))
        else:
            print_bad(found, limit)
        context.exit(1 if found else 0)
    if is_bad or key is not None:
        incidents = client.incidents(url, key=key, topic=topic, limit=limit)
        context.exit(_print_incidents(incidents, key, limit, as_json=as_json))
    if topic is None:
        raise ConfigError(
            "which topic? `millrace audit TOPIC --from TIME --to TIME`, or `millrace audit --bad`"
        )
    if explained is not None:
        explain(url, topic, explained, limit, as_json=as_json)
        return
    if accepted and start is None and end is None:
        return
    first, last = _span(start, end)
    if is_history:
        for change in client.history(url, topic, first, last):
            window = f" window {change['window']}" if change["window"] else ""
            if as_json:
                print_json(change)
            else:
                say(f"{change['time']}{window} {change['who']}: {change['what']}")
        return
    answer = _answer(url, topic, first, last, wait_s)
    if as_json:
        print_json(to_json(answer))
    else:
        print_completeness(answer, by_window=windows)
    context.exit(0 if answer.proven else 1)


def _answer(url: str, topic: str, first: datetime, last: datetime, wait_s: int) -> Completeness:
    """Return the first answer that is proven or incomplete, or the answer after `wait_s`.

    Print each new reason to wait.
    """
    give_up_at = time.monotonic() + wait_s
    printed = ""
    while True:
        answer = client.completeness(url, topic, first, last)
        if answer.proven or answer.verdict == Verdict.INCOMPLETE or time.monotonic() >= give_up_at:
            return answer
        causes = [cause for window in answer.windows for cause in window.causes]
        if (reason := causes[0] if causes else answer.verdict) != printed:
            say(f"step: waiting: {answer.verdict}: {reason}", err=True)
            printed = reason
        time.sleep(ASK_SECONDS)


def _print_incidents(incidents: list[Incident], key: str | None, limit: int, *, as_json: bool) -> int:
    """Print the incidents, with details if `key` is given. Return the exit code: 1 if one of them is open."""
    if key is not None and not incidents:
        raise MillraceError(f"no incident {key} is known: `millrace audit --bad` lists the open incidents")
    if as_json:
        print_json(to_json(incidents))
    elif key is None:
        print_incidents(incidents, limit)
    else:
        print_incident(incidents[0])
    return 1 if any(incident.resolved is None for incident in incidents) else 0


def _span(start: str | None, end: str | None) -> tuple[datetime, datetime]:
    """Return the interval asked for: from the hour 24 hours ago up to the present hour unless given."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    first = hour - timedelta(days=1) if start is None else parse_time(start, "--from")
    last = hour if end is None else parse_time(end, "--to")
    if first >= last:
        raise ConfigError(
            f"--from {start or first.isoformat()} is not before --to {end or last.isoformat()}: give the"
            " earlier time first"
        )
    return first, last


def _accept(
    url: str,
    topic: str | None,
    *,
    as_json: bool,
    instance: int | None,
    service: str | None,
    server: str | None,
    before: str | None,
    disown: bool,
    load: int | None,
    replace_loads: bool,
    reason: str | None,
) -> bool:
    """Send the operator's decision. Return False when the options make no decision."""
    _check_decision(instance, service, server, before, disown, load, replace_loads, reason)
    if reason is None:
        return False
    if load is not None or replace_loads:
        _decide_on_loads(url, topic, load, reason, as_json=as_json)
        return True
    done = "disowned" if disown else "accepted"
    if instance is not None:
        client.accept(url, instance, reason, disown=disown)
        say(f"{done}: instance {instance} ({reason})", err=as_json)
    elif service is not None:
        until = None if before is None else parse_time(before, "--before")
        accepted = client.accept_service(url, service, reason, server=server, before=until, disown=disown)
        say(f"{done}: {len(accepted)} instances of service {service} ({reason})", err=as_json)
    return True


def _check_decision(
    instance: int | None,
    service: str | None,
    server: str | None,
    before: str | None,
    disown: bool,
    load: int | None,
    replace_loads: bool,
    reason: str | None,
) -> None:
    """Raise MillraceError unless the options make one decision, with its reason, or no decision."""
    ways = [instance is not None, service is not None, load is not None, replace_loads]
    if sum(ways) > 1:
        raise ConfigError(
            "--accept, --accept-service, --accept-rejected and --replace-loads are four decisions: give one"
        )
    if any(ways) != (reason is not None):
        raise ConfigError(
            "--accept INSTANCE, --accept-service NAME, --accept-rejected LOAD or --replace-loads needs"
            " --reason TEXT: give both"
        )
    if service is None and (server is not None or before is not None):
        raise ConfigError("--server and --before belong to --accept-service NAME: give it, too")
    if disown and instance is None and service is None:
        raise ConfigError("--disown belongs to --accept or --accept-service: give one, too")


def _decide_on_loads(url: str, topic: str | None, load: int | None, reason: str, *, as_json: bool) -> None:
    if topic is None:
        raise ConfigError("--accept-rejected and --replace-loads need a topic: `millrace audit TOPIC ...`")
    if load is not None:
        messages = client.accept_rejected(url, topic, load, reason)
        text = f"accepted: {messages} messages that load {load} of {topic} rejected"
    else:
        loads = client.replace_loads(url, topic, reason)
        text = f"replaced: load {', '.join(map(str, loads))} of {topic}"
    say(f"{text} ({reason})", err=as_json)
