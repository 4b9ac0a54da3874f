"""The APIs of the Kafka protocol, a file per family: from requests to the broker's actions, and back."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from millrace_broker.handlers.metadata import api_versions, metadata
from millrace_broker.handlers.table import Api, Handlers, Services

__all__ = ["Api", "Handlers", "Services", "all_apis"]


def all_apis(guests: Iterable[Api[Any]] = ()) -> list[Api[Any]]:
    """Return every `Api` that a file of this folder declares, and the APIs of the broker's guests.

    ApiVersions lists them. The API Metadata is created for each broker, because it keeps encoded answers.
    """
    files = [import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)]
    declared = [value for file in files for value in vars(file).values() if isinstance(value, Api)]
    apis = [metadata(), *declared, *guests]
    return [*apis, api_versions(apis)]
