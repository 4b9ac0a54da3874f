"""Makes a verb's command: its options, the job submitted with its steps shown, tables for people."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from millrace.errors import ConfigError
from millrace_warehouse.commands.steps import steps
from millrace_warehouse.commands.verbs import JOBS, Option, from_words, option, options_of, verb

V = TypeVar("V", bound=Any)

# local-cluster[workers,cores,MB] is Spark's own, for tests.
_MASTER = re.compile(r"local(-cluster)?(\[[\d*, ]+\])?|spark://[^/]+:\d+|yarn|k8s://.+")


def _checked_master(text: str, name: str) -> str:
    if not _MASTER.fullmatch(text):
        raise ConfigError(f"{name} {text!r} is none: write local[2], spark://HOST:PORT, yarn or k8s://URL")
    return text


def _parse_conf(words: Sequence[str], name: str) -> dict[str, str]:
    for word in words:
        if not re.match("spark\\.[^=]*=", word):
            raise ConfigError(f"{name} {word!r} is not of the form spark.KEY=VALUE")
    return dict(word.split("=", 1) for word in words)


@verb
class Invocation:
    """Where a command's job runs, with what, and how the answer is printed; see docs/clusters.md."""

    master: str = option(
        "--master", "Spark master the job is submitted to.", _checked_master, default="local[2]"
    )
    conf: Mapping[str, str] = option(
        "--conf KEY=VALUE...",
        "A Spark setting; may be repeated, comes before ours.",
        _parse_conf,
        default_factory=dict,
    )
    archives: Sequence[str] = option(
        "--archives FILE#NAME...",
        "A packed environment whose Python the executors run; may be repeated, the first one is it.",
        default=(),
    )
    as_json: bool = option("--json", "Print the result as JSON.", default=False)

    def print(self, answer: Any, show: Callable[[Any], None]) -> None:
        """Print an answer as JSON, or let `show` print it for people."""
        if self.as_json:
            click.echo(json.dumps(answer))
        else:
            show(answer)


def command_of(cls: type[V]) -> Callable[[Callable[[V, Invocation], None]], click.Command]:
    """Makes a function of a verb a command with the verb's options; its docstring is the help."""

    def command(run: Callable[[V, Invocation], None]) -> click.Command:
        def callback(**words: Any) -> None:
            invocation = from_words(Invocation, words)
            run(from_words(cls, words), invocation)

        return click.Command(
            run.__name__.replace("_", "-"),
            params=[_parameter(*member) for of in (cls, Invocation) for member in options_of(of)],
            callback=callback,
            help=run.__doc__,
        )

    return command


def _parameter(field: str, spelt: Option) -> click.Parameter:
    parameter = click.Option if spelt.name.startswith("-") else click.Argument
    names = [spelt.name, field] if parameter is click.Option else [field]
    return parameter(names, **spelt.attributes)


def run_job(name: str, request: Any, invocation: Invocation) -> Any:
    """The answer of a verb's job as JSON values, its steps shown; MillraceError with the job's own line."""
    if JOBS[name].without_spark and request.warehouse.startswith("/"):
        with steps(name, lambda _: None) as progress:
            answer = JOBS[name].function(None, request, progress)
        return json.loads(json.dumps(answer, default=dataclasses.asdict))
    from millrace_spark.jobs.submit import submit
    from millrace_warehouse.commands.early import check_master

    check_master(invocation.master)
    with steps(name) as on_line, _from_the_first_step(on_line) as on_line:
        return submit(
            name,
            dataclasses.asdict(request),
            master=invocation.master,
            on_line=on_line,
            fast_start=getattr(request, "sink", "direct") == "direct",
            conf=invocation.conf,
            archives=invocation.archives,
        )


@contextmanager
def _from_the_first_step(on_line: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Holds back what Spark says while it starts, unless it fails before the first step without a reason."""
    from millrace_spark.jobs.submit import JobRefused

    held: collections.deque[str] = collections.deque(maxlen=100)
    begun = False

    def pass_on(line: str) -> None:
        nonlocal begun
        begun = begun or line.startswith("step: ")
        (on_line if begun else held.append)(line)

    try:
        yield pass_on
    except (JobRefused, KeyboardInterrupt):
        raise
    except BaseException:
        for line in () if begun else held:
            on_line(line)
        raise


def table_of(*columns: str) -> Table:
    """A table for people: the first and the last column to the left, numbers between them to the right."""
    table = Table(box=None, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index in (0, len(columns) - 1) else "right")
    return table


def show(table: Table) -> None:
    """Print a table; whole lines where there is no terminal to keep to."""
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a file or a pipe has no width to keep to
    console.print(table)
