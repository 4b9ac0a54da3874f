"""`millrace acls`: list, add and remove a cluster's access control lists, through its brokers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from millrace.client.cluster_client import ClusterClient
from millrace.errors import ConfigError
from millrace.help_texts import CommandGroup
from millrace.printing import json_option, print_records, say
from millrace_broker.security.acls import EVERYWHERE, Pattern, Rule, RuleFilter
from millrace_broker.security.rights import CLUSTER, Operation, ResourceType
from millrace_commands import acl_admin
from millrace_commands.topics import TIMEOUT_S, bootstrap_option

OPERATIONS = [operation.name.lower().replace("_", "-") for operation in Operation]
_RESOURCES: dict[str, tuple[ResourceType, Pattern]] = {
    "topic": (ResourceType.TOPIC, Pattern.LITERAL),
    "topic_prefix": (ResourceType.TOPIC, Pattern.PREFIXED),
    "group": (ResourceType.GROUP, Pattern.LITERAL),
    "group_prefix": (ResourceType.GROUP, Pattern.PREFIXED),
}


@click.group(cls=CommandGroup)
def acls() -> None:
    """List, add and remove access control lists: rules of who may do what.

    They apply where brokers have `authorizer = true` under [security]; there, a client may do only what a
    rule allows.

    Example: millrace acls list --bootstrap 127.0.0.1:9092
    """


def _resource_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option("--topic", metavar="NAME", help="Topics of this name; * for all."),
        click.option("--topic-prefix", metavar="TEXT", help="Topics whose names begin with this text."),
        click.option("--group", metavar="NAME", help="Groups of this name; * for all."),
        click.option("--group-prefix", metavar="TEXT", help="Groups whose names begin with this text."),
        click.option("--cluster", is_flag=True, help="The cluster itself."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    host = click.option(
        "--host",
        default=EVERYWHERE,
        show_default=True,
        metavar="IP",
        help="IP address of the client, or * for all.",
    )
    operations = click.argument(
        "operations", nargs=-1, required=True, type=click.Choice(OPERATIONS, case_sensitive=False)
    )
    principal = click.argument("principal")
    return principal(operations(_resource_options(host(bootstrap_option(command)))))


@acls.command("list")
@click.option("--principal", default=None, metavar="User:NAME", help="Rules of this principal only.")
@_resource_options
@json_option()
@bootstrap_option
def list_(principal: str | None, as_json: bool, bootstrap: str, **resource: Any) -> None:
    """List the rules; with --topic, --group or --cluster only the rules that apply to it.

    Example: millrace acls list --topic PageView
    """
    named = _resources(resource)
    wanted = [RuleFilter(type=type_, name=name, about=True) for type_, _, name in named] or [RuleFilter()]
    found: set[Rule] = set()
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        for one in wanted:
            found |= set(acl_admin.rules(client, one._replace(principal=principal and _principal(principal))))
    _print(found, as_json=as_json, none="no rules")


@acls.command()
@_rule_options
def allow(principal: str, operations: Sequence[str], host: str, bootstrap: str, **resource: Any) -> None:
    """Allow PRINCIPAL (User:NAME, or User:* for everybody) to do OPERATIONS.

    `read`, `write`, `delete` and `alter` include `describe`. `all` means every operation except
    `mirror-write`.

    Example: millrace acls allow User:web write --topic PageView
    """
    _add(principal, operations, host, bootstrap, resource, allow=True)


@acls.command()
@_rule_options
def deny(principal: str, operations: Sequence[str], host: str, bootstrap: str, **resource: Any) -> None:
    """Deny OPERATIONS to PRINCIPAL, whatever other rules allow.

    Example: millrace acls deny User:web write --topic-prefix audit-
    """
    _add(principal, operations, host, bootstrap, resource, allow=False)


@acls.command()
@click.argument("principal")
@click.argument("operations", nargs=-1, type=click.Choice(OPERATIONS, case_sensitive=False))
@_resource_options
@json_option()
@bootstrap_option
def remove(principal: str, operations: Sequence[str], as_json: bool, bootstrap: str, **resource: Any) -> None:
    """Remove allowing and denying rules of PRINCIPAL: all, or only the rules for OPERATIONS and names.

    Example: millrace acls remove User:web write --topic PageView
    """
    wanted = [RuleFilter(principal=_principal(principal))]
    if places := _resources(resource):
        wanted = [one._replace(type=t, pattern=p, name=n) for one in wanted for t, p, n in places]
    if operations:
        wanted = [one._replace(operation=_operation(text)) for one in wanted for text in operations]
    removed: set[Rule] = set()
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        for one in wanted:
            removed |= set(acl_admin.remove(client, one))
    _print(removed, as_json=as_json, none="no such rules")


def _add(
    principal: str,
    operations: Sequence[str],
    host: str,
    bootstrap: str,
    resource: dict[str, Any],
    *,
    allow: bool,
) -> None:
    places = _resources(resource)
    if not places:
        raise ConfigError(
            "name what the rule is about: --topic, --topic-prefix, --group, --group-prefix or --cluster"
        )
    rules = [
        Rule(type_, pattern, name, _principal(principal), host, _operation(text), allow)
        for type_, pattern, name in places
        for text in operations
    ]
    with ClusterClient(bootstrap, timeout_s=TIMEOUT_S) as client:
        acl_admin.add(client, rules)
    for rule in rules:
        say(str(rule))


def _resources(options: dict[str, Any]) -> list[tuple[ResourceType, Pattern, str]]:
    named = [(*_RESOURCES[key], name) for key, name in options.items() if key in _RESOURCES and name]
    if options["cluster"]:
        named.append((ResourceType.CLUSTER, Pattern.LITERAL, CLUSTER.name or ""))
    return named


def _principal(text: str) -> str:
    if not text.startswith("User:"):
        raise ConfigError(f"principal {text!r} is not User:NAME: write User:{text}")
    return text


def _operation(text: str) -> Operation:
    return Operation[text.upper().replace("-", "_")]


def _print(rules: set[Rule], *, as_json: bool, none: str) -> None:
    records = [
        {
            "principal": rule.principal,
            "permission": "allow" if rule.allow else "deny",
            "operation": rule.operation.name.lower().replace("_", "-"),
            "type": rule.type.name.lower(),
            "name": rule.name,
            "pattern": rule.pattern.name.lower(),
            "host": rule.host,
        }
        for rule in sorted(rules)
    ]
    print_records(records, as_json=as_json, none=none)
