"""`millrace mirror translate`: where a consumer goes on that moves between a datacenter and the aggregate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from millrace.commands.printing import print_rows
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
    config: Path,
    topic: str | None,
    origin: str,
    partition: int | None,
    offset: int | None,
    group: str | None,
    reverse: bool,
    apply: bool,
    as_json: bool,
) -> None:
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
    check_origin(config, settings, origin)
    with (
        Cluster.connect(settings.zookeeper, settings.cluster) as cluster,
        closing(Translator(cluster, origin, settings.mirror[origin], to_origin=reverse)) as translator,
    ):
        if group is not None:
            translations = translator.group(group)
        else:
            assert topic is not None
            assert partition is not None
            assert offset is not None
            translations = [translator.one(topic, partition, offset)]
        if as_json:
            click.echo(json.dumps([_json(translation) for translation in translations], indent=2))
        else:
            _show(translations, reverse)
        if apply and group is not None:
            translator.apply(group, translations)
            if not as_json:
                click.echo(f"committed {len(translations)} offsets of group {group}")
    if group is None and translations[0].found.outcome is not Outcome.TRANSLATED:
        raise MillraceError(f"offset {offset} is {EXPLAINED[translations[0].found.outcome]}")


def check_origin(config: Path, settings: BrokerConfig, origin: str) -> None:
    """ConfigError when the file names no such origin cluster."""
    if origin not in settings.mirror:
        origins = ", ".join(settings.mirror) or "none"
        raise ConfigError(f"{config} has no [mirror.{origin}]; origins: {origins}")


def _show(translations: Sequence[Translation], reverse: bool) -> None:
    if not translations:
        click.echo("nothing to translate: the group reads no topic that is mirrored from there")
        return
    columns = (
        "topic",
        "origin partition",
        "partition",
        "offset",
        "at the origin" if reverse else "in the copy",
    )
    rows = []
    for translation in translations:
        outcome, translated = translation.found
        text = translated if outcome is Outcome.TRANSLATED else EXPLAINED[outcome]
        rows.append((*_source(translation).values(), text))
    print_rows(columns, rows)


def _json(translation: Translation) -> dict[str, Any]:
    outcome, translated = translation.found
    return {
        **_source(translation),
        "outcome": outcome.name.lower(),
        "translated": translated if outcome is Outcome.TRANSLATED else None,
    }


def _source(translation: Translation) -> dict[str, Any]:
    fields = asdict(translation)
    del fields["found"]
    return fields
