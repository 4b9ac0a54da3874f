"""The options that every web service has: its access list and its certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from millrace.config import TlsConfig
from millrace.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def _named(context: click.Context, option: click.Parameter, file: str) -> str:
    """Return the file's name. Refuse an empty name: an unset variable on the command line must not disable
    access control.
    """
    if not file and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("the name of the file is empty")
    return file


def door_options(command: F) -> F:
    """Add the options of a service's access list and TLS certificate."""
    for option in (
        click.option(
            "--key",
            default="",
            callback=_named,
            metavar="FILE",
            help="The certificate's key, if it is in another file; mode 0600.",
        ),
        click.option(
            "--certificate",
            default="",
            callback=_named,
            metavar="FILE",
            help="Use HTTPS with this certificate, a PEM file.",
        ),
        click.option(
            "--access",
            "access_file",
            default="",
            callback=_named,
            metavar="FILE",
            help="Answer only clients with a token in this file (`millrace access`); default: all clients.",
        ),
    ):
        command = option(command)
    return command


def tls_of(certificate: str, key: str) -> TlsConfig | None:
    """Return the TLS settings in the options; None without a certificate."""
    if key and not certificate:
        raise ConfigError("--key needs --certificate FILE: give both")
    return TlsConfig(certificate=certificate, key=key) if certificate else None
