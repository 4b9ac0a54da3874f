"""Registers schemas without end, each in a subject of its own process and in one that all share; for a test.

`python -m tests.registering NUMBER URL...`: prints `SUBJECT SIZE ID` after each acknowledgement. Goes on
when a registry or its database is away, and asks the next registry for every schema.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

from millrace_registry.client import RegistryUnavailable, SchemaRegistryClient

SHARED = "shared"
OWN_FROM = 10**6
"""A process's own sizes begin at so many times its number."""


def sized(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def main(number: int, urls: list[str]) -> None:
    clients = itertools.cycle([SchemaRegistryClient(url, timeout_s=2) for url in urls])
    for size in itertools.count(1):
        for subject, its in ((SHARED, size), (f"own-{number}", number * OWN_FROM + size)):
            while True:
                try:
                    schema_id = next(clients).register(subject, sized(its))
                    break
                except RegistryUnavailable:
                    time.sleep(0.02)
            print(f"{subject} {its} {schema_id}\n", end="", flush=True)  # in one write: a kill cuts no line


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
