"""`millrace mirror translate`: where a consumer goes on that moves between a datacenter and the aggregate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from millrace.commands.tables import print_table
from millrace.config import BrokerConfig, load
from millrace.coordination.cluster import Cluster
from millrace.errors import ConfigError, MillraceError
from millrace.mirror.offset_search import Outcome
from millrace.mirror.translation import EXPLAINED, Translation, Translator


@click.command()
@click.argument("config", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("topic", required=False)
@click.option("--origin", required=True, metavar="NAME", help="The origin cluster, as in [mirror.NAME].")
@click.option("--partition", type=click.IntRange(0), help="Of the origin; with --reverse of this cluster.")
@click.option("--offset", type=click.IntRange(0), help="What is to be translated: the next offset to read.")
@click.option("--group", help="Translate all that this consumer group has committed, in all topics.")
@click.option("--reverse", is_flag=True, help="From this cluster to the origin.")
@click.option("--apply", is_flag=True, help="Commit the group's translated offsets on the other side.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, an object for each offset.")
def translate(
    config: Path, topic: str | None, origin: str, partition: int | None, offset: int | None,
    group: str | None, reverse: bool, apply: bool, as_json: bool,
) -> None:  # fmt: skip
    """Translate offsets of an origin into those of its mirror, exactly, or back.

    Of one offset: TOPIC with --partition and --offset. Of a whole consumer group: --group; stop its consumers
    first, --apply, and start them on the other cluster: they go on with the very next message. An offset of
    which nothing is known on the other side is named, and then nothing is committed.

    Example: millrace mirror translate offline-1.toml --origin dc1 --group warehouse --apply
    """
    single = (topic, partition, offset)
    if (group is None) == (None in single) and (group is None or any(part is not None for part in single)):
        raise click.UsageError("give TOPIC, --partition and --offset, or --group")
    if apply and group is None:
        raise click.UsageError("--apply needs --group")
    settings = load(BrokerConfig, config)
    if origin not in settings.mirror:
        known = ", ".join(settings.mirror) or "none"
        raise ConfigError(f"{config} has no [mirror.{origin}]; origins: {known}")
    with (
        Cluster.connect(settings.zookeeper, settings.cluster) as cluster,
        closing(Translator(cluster, origin, settings.mirror[origin], to_origin=reverse)) as translator,
    ):
        if group is not None:
            found = translator.group(group)
        else:
            assert topic is not None
            assert partition is not None
            assert offset is not None
            found = [translator.one(topic, partition, offset)]
        if as_json:
            click.echo(json.dumps([_as_json(each) for each in found], indent=2))
        else:
            _show(found, reverse)
        if apply and group is not None:
            translator.apply(group, found)
            if not as_json:
                click.echo(f"committed {len(found)} offsets of group {group}")
    if group is None and found[0].found.outcome is not Outcome.TRANSLATED:
        raise MillraceError(f"offset {offset} is {EXPLAINED[found[0].found.outcome]}")


def _show(found: Sequence[Translation], reverse: bool) -> None:
    if not found:
        click.echo("nothing to translate: the group reads no topic that is mirrored from there")
        return
    table = Table(
        "topic", "origin partition", "partition", "offset", "at the origin" if reverse else "in the copy"
    )
    for each in found:
        done = each.found.outcome is Outcome.TRANSLATED
        table.add_row(
            each.topic, str(each.origin_partition), str(each.partition), str(each.offset),
            str(each.found.offset) if done else EXPLAINED[each.found.outcome],
        )  # fmt: skip
    print_table(table)


def _as_json(each: Translation) -> dict[str, Any]:
    done = each.found.outcome is Outcome.TRANSLATED
    return {
        "topic": each.topic, "origin_partition": each.origin_partition, "partition": each.partition,
        "offset": each.offset, "outcome": each.found.outcome.name.lower(),
        "translated": each.found.offset if done else None,
    }  # fmt: skip
