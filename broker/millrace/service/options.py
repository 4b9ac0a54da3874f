"""The options that every web service has: who may ask it, and how it proves that it is the one asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from millrace.config import TlsConfig
from millrace.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


def _named(context: click.Context, option: click.Parameter, file: str) -> str:
    """The file; refused where its name is given and empty: a variable that is not set opens no door."""
    if not file and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
        raise click.BadParameter("the name of the file is empty")
    return file


def door_options(command: F) -> F:
    """The options of a service that say who may ask it what, and with which certificate it speaks TLS."""
    for option in (
        click.option(
            "--key",
            default="",
            callback=_named,
            metavar="FILE",
            help="Its key, if that is another file; mode 0600.",
        ),
        click.option(
            "--certificate",
            default="",
            callback=_named,
            metavar="FILE",
            help="Speak HTTPS with this certificate, a PEM file.",
        ),
        click.option(
            "--access",
            "access_file",
            default="",
            callback=_named,
            metavar="FILE",
            help="Answer only who shows a token of this file (`millrace access`); without it everybody.",
        ),
    ):
        command = option(command)
    return command


def tls_of(certificate: str, key: str) -> TlsConfig | None:
    """What the options say of TLS; None where they do not ask for it."""
    if key and not certificate:
        raise ConfigError("--key belongs to --certificate FILE: give it, too")
    return TlsConfig(certificate=certificate, key=key) if certificate else None
