"""Keys of what each command prints with `--json`, for docs/commands.md and for tests that run commands.

A type stands for the keys of its fields, nested ones included. A key that ends with `?` may be missing.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import click

from millrace.cli import cli
from millrace_audit.answer import Bad, Completeness, Incident
from millrace_audit.check.findings import Summary, Violation
from millrace_commands.groups import _Position
from millrace_registry.transfer import Transfer
from millrace_spark.mirror_batch import MirroredPartition
from millrace_warehouse.commands.loads import ReloadedLoads, TopicFailure
from millrace_warehouse.erase.erasing import EraseResult
from millrace_warehouse.erase.logs import LogHolds
from millrace_warehouse.history.schemas import HistoryEntry, PromoteResult
from millrace_warehouse.load.load import LoadResult
from millrace_warehouse.publish.compact import CompactResult
from millrace_warehouse.publish.expire import ExpireResult
from millrace_warehouse.publish.publisher import PublishResult
from millrace_warehouse.publish.readers import TableDescription
from millrace_warehouse.verify.check import TopicReport

Shape = Any
"""None for a value without known keys, a dictionary of keys, or a list of the shape of its elements."""


def names(text: str) -> dict[str, Shape]:
    return dict.fromkeys(text.split())


def of(kind: Any) -> Shape:
    """Return the shape of values of a type, as commands write them."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = {argument for argument in arguments if argument is not type(None)} or {None}
        return of(inner) if len(arguments) == 2 else None
    if inspect.isclass(origin) and issubclass(origin, Sequence) and origin is not str:
        inner = of(arguments[0])
        return None if inner is None else [inner]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return {f.metadata.get("name", f.name): of(hints[f.name]) for f in dataclasses.fields(kind)}
    if inspect.isclass(kind) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return dict.fromkeys(kind._fields)
    return None


_FAILED = of(TopicFailure)
_OF_A_LOG = names("partition segment position kind size")
_POSITION = names("cluster topic topic_id partition start next_offset next_base batches records dropped")
_BATCH = _OF_A_LOG | names(
    "base_offset next_offset records codec base_timestamp max_timestamp producer_id producer_epoch"
    " base_sequence crc"
)
_DAMAGE = _OF_A_LOG | names("reason flushed lost_offsets")
_ORIGIN = names("cluster topic topic_id partition")
_CHANGE = names("subject file state version id reasons fields level notes")
_RULE = names("principal permission operation type name pattern host")
_PUBLICATION = of(PublishResult) | names(
    "publication hours rejected sha256 created rows complete_from complete_until"
)

ANSWERS: dict[str, list[Shape]] = {
    "consume": [names("topic partition offset timestamp key value headers")],
    "publish-access-log": [names("topic cluster instance acknowledged refused")],
    "load": [[of(LoadResult)], [_FAILED], [names("topic left_out")], of(LoadResult)],
    "reload": [names("topic") | of(ReloadedLoads)],
    "publish": [[_PUBLICATION], [_FAILED]],
    "tables": [[of(TableDescription)], [_FAILED]],
    "mirror-batch": [
        names("topics origin batches records dropped bytes lag") | {"partitions": [of(MirroredPartition)]}
    ],
    "promote": [of(PromoteResult), [of(HistoryEntry)]],
    "compact": [[of(CompactResult)], [_FAILED]],
    "expire": [of(ExpireResult)],
    "erase": [of(EraseResult) | {"logs": [of(LogHolds)], "origins_not_asked": None}],
    "audit": [
        of(Completeness),
        [of(Incident)],
        [of(Bad)],
        names("time window who what"),
        [
            names("topic start end asked_at counted_through verdict is_final facts more")
            | {"stored": names("verdict is_final last_final revision has_new_facts note")}
            | {
                "differences": [
                    names("home kind tier server service instance count ranges more_ranges? gap is_given_up")
                ]
            }
            | {
                "rules": [
                    names("rule verdict when fired facts runbook") | {"causes": [names("reason command")]}
                ]
            }
        ],
    ],
    "verify": [{"ok": None, "topics": [of(TopicReport)]}],
    "audit-check": [{"topic": None, "instances": [of(Summary)], "violations": [of(Violation)]}],
    "topics describe": [
        names("topic topic_id")
        | {
            "partitions": [
                names("partition leader leader_epoch replicas in_sync eligible start high_watermark bytes")
                | {"origin?": None}
            ],
            "settings": [names("name value source")],
        }
    ],
    "topics list": [[names("topic partitions replicas under_replicated")]],
    "topics policy": [[names("topic setting value set_by")]],
    "groups describe": [names("group kind state members") | {"partitions": [of(_Position)]}],
    "groups list": [[names("group kind state members")]],
    "brokers list": [[names("broker rack directory led stored under_replicated")]],
    "mirror status": [
        [
            names(
                "topic partition leader start next_offset batches records dropped origin_high_watermark lag"
            )
            | names("latency_ms state detail")
            | {"origin": _ORIGIN}
        ]
    ],
    "mirror translate": [[names("topic origin_partition partition offset outcome translated")]],
    "schemas apply": [[_CHANGE]],
    "schemas check": [[names("file problems notes")]],
    "schemas import": [[of(Transfer)]],
    "schemas plan": [[_CHANGE]],
    "log compare": [
        names("partition replicas start end")
        | {"difference": names("position reason") | {"files": [names("file byte")]}}
    ],
    "log dump": [_BATCH | {"mirror?": _POSITION}, _DAMAGE],
    "log repair": [_DAMAGE],
    "log verify": [_DAMAGE, names("batches bytes damaged")],
    "users list": [[names("user mechanism iterations")]],
    "acls list": [[_RULE]],
    "acls remove": [[_RULE]],
}
"""Command -> the answers that it may print, one on a line. Different elements of an array stand apart."""


def in_words(shape: Shape) -> str:
    """Return the shape as text: `[{topic, partitions: [{partition}]}]`."""
    if isinstance(shape, list):
        return f"[{in_words(shape[0])}]"
    return (
        "{"
        + ", ".join(key if inner is None else f"{key}: {in_words(inner)}" for key, inner in shape.items())
        + "}"
    )


def differences(value: object, shape: Shape, where: str = "") -> list[str]:
    """Return each place where a value's keys differ from a shape."""
    if shape is None or value is None:
        return []
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where or 'the answer'} is no array"]
        return [text for each in value for text in differences(each, shape[0], f"{where}[]")]
    if not isinstance(value, dict):
        return [f"{where or 'the answer'} is no object"]
    keys = {key.removesuffix("?"): inner for key, inner in shape.items()}
    needed = {key for key in shape if not key.endswith("?")}
    found = [f"{where}.{key} is not listed" for key in value.keys() - keys.keys()]
    found += [f"{where}.{key} is missing" for key in needed - value.keys()]
    return found + [
        text for key in value for text in differences(value[key], keys.get(key), f"{where}.{key}")
    ]


def check(words: str, answer: object) -> None:
    """Compare an answer of a command with the list. Elements of an array may be of different answers.

    `words` may lack the group's name, as in a test of the command alone.
    """
    shapes = [s for name, all_ in ANSWERS.items() if f" {name}".endswith(f" {words}") for s in all_]
    elements = [[each] for each in answer] if isinstance(answer, list) else [answer]
    for element in elements:
        found = [differences(element, shape) for shape in shapes]
        assert [] in found, f"keys of `millrace {words} --json` differ from {__name__}: {min(found, key=len)}"


def check_output(arguments: Sequence[str], output: str, command: click.Command = cli) -> None:
    """Check each line of JSON that a command has printed with these arguments."""
    if "--json" not in arguments:
        return
    words, rest = ([] if command is cli else [command.name or ""]), list(arguments)
    while isinstance(command, click.Group) and rest:
        child = command.commands.get(rest[0]) or command.get_command(click.Context(command), rest[0])
        if child is not None:
            words.append(rest[0])
            command = child
        rest = rest[1:]
    if isinstance(command, click.Group):
        return
    for line in output.splitlines():
        try:
            answer: Mapping[str, Any] | list[Any] = json.loads(line)
        except ValueError:  # a line for people among them: other tests look at it
            continue
        check(" ".join(words), answer)
