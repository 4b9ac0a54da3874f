"""Makes a command of a request's class: its options, its output as JSON, and its output for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import click

from millrace.errors import Interrupted
from millrace.installation import require
from millrace.printing import print_json
from millrace_warehouse.option_values import check_writable
from millrace_warehouse.requests import Option, command_line_fields, command_options, option, parse_request
from millrace_warehouse.without_pandas import keep_pandas_out

V = TypeVar("V", bound=Any)
P = TypeVar("P", bound="Silent")


@command_options
class Silent:
    """A command without an answer."""

    takes_values: ClassVar[bool] = True
    """False if only a job's process handles values with Arrow, and the command's own process does not."""

    def packages_for(self, request: Any) -> Sequence[str]:
        """Return the packages of extras that the command needs for a request. One error names all that are
        missing.
        """
        return ("numpy", "pyarrow", "pyiceberg")

    def prepare(self) -> None:
        """Fail before any work if the output could not be written at the end."""


@command_options
class Output(Silent):
    """Options for the printing of a command's answer."""

    as_json: bool = option("--json", "Print the result as JSON.", default=False)

    def print(self, answer: Any, show: Callable[[Any], None]) -> None:
        """Print an answer as JSON, or let `show` print it for people."""
        if self.as_json:
            print_json(answer)
        else:
            show(answer)


@command_options
class MeasuredOutput(Output):
    """Options of a command that also writes metrics."""

    metrics_dir: str = option(
        "--metrics-dir DIR",
        "Folder of node_exporter's textfile collector, for the command's metrics.",
        default="",
        envvar="MILLRACE_METRICS_DIR",
    )

    def prepare(self) -> None:
        if self.metrics_dir:
            check_writable(Path(self.metrics_dir), f"--metrics-dir {self.metrics_dir}")

    def measure(self, command: str, answers: Iterable[Mapping[str, Any]]) -> None:
        """Write the metrics of each topic that succeeded for Prometheus, if --metrics-dir is given."""
        if self.metrics_dir:
            from millrace_warehouse.commands.textfile import write_metrics

            for answer in answers:
                if "error" not in answer:
                    write_metrics(Path(self.metrics_dir), command, answer, time.time())


def command_of(cls: type[V], output: type[P]) -> Callable[[Callable[[V, P], None]], click.Command]:
    """Turn a function of a request into a command with the request's options. Its docstring is the help."""

    def command(run: Callable[[V, P], None]) -> click.Command:
        def callback(**words: Any) -> None:
            request, how = parse_request(cls, words), parse_request(output, words)
            require(*how.packages_for(request))
            how.prepare()
            if output.takes_values:
                keep_pandas_out()
            try:
                run(request, how)
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted: {cls.after_interrupt}") from None

        return click.Command(
            run.__name__.replace("_", "-"),
            params=[_parameter(*member) for of in (cls, output) for member in command_line_fields(of)],
            callback=callback,
            help=run.__doc__,
        )

    return command


def _parameter(field: str, spelt: Option) -> click.Parameter:
    parameter = click.Option if spelt.name.startswith("-") else click.Argument
    names = [spelt.name, field] if parameter is click.Option else [field]
    return parameter(names, **spelt.attributes)
