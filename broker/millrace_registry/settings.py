"""Compatibility level and mode: of one subject, of all, and which of the two applies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from millrace_registry.compatibility import Level
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.store import Store, Transaction

GLOBAL = ""
"""The subject under which settings for all subjects are kept."""

Value = TypeVar("Value", bound=StrEnum)


class Mode(StrEnum):
    """What may be registered; the modes of Confluent's cluster linking are left out."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    IMPORT = "IMPORT"


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """A setting that applies to a subject: its own value, the global one, or the default."""

    name: str
    """The name under which the store keeps it."""
    in_words: str
    default: Value
    invalid: ErrorCode
    not_configured: ErrorCode

    def parse(self, text: object) -> Value:
        """The value of that name, in any case; RegistryError when there is none."""
        values = type(self.default)
        if isinstance(text, str) and text.upper() in values.__members__:
            return values[text.upper()]
        raise RegistryError(self.invalid, f"{self.in_words} {text!r} is none of {', '.join(values)}")

    def own(self, rows: Transaction, subject: str) -> Value | None:
        text = rows.setting(subject, self.name)
        return None if text is None else type(self.default)(text)

    def of(self, rows: Transaction, subject: str) -> Value:
        return self.own(rows, subject) or self.own(rows, GLOBAL) or self.default


_LEVEL_CODES = ErrorCode.INVALID_COMPATIBILITY_LEVEL, ErrorCode.COMPATIBILITY_NOT_CONFIGURED
LEVEL = Setting("compatibility", "compatibility level", Level.BACKWARD, *_LEVEL_CODES)
MODE = Setting("mode", "mode", Mode.READWRITE, ErrorCode.INVALID_MODE, ErrorCode.MODE_NOT_CONFIGURED)


def forget(rows: Transaction, subject: str) -> None:
    for setting in (LEVEL, MODE):
        rows.set(subject, setting.name, None)


class Settings:
    """Reads and changes the settings in a store; the subject GLOBAL stands for all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, setting: Setting[Value], subject: str, *, default_to_global: bool = False) -> Value:
        """The value that applies; RegistryError when the subject has none and no default is wanted."""
        with self._store.read() as rows:
            if subject != GLOBAL and not default_to_global and setting.own(rows, subject) is None:
                raise RegistryError(
                    setting.not_configured,
                    f"Subject '{subject}' does not have subject-level {setting.name} configured",
                )
            return setting.of(rows, subject)

    def write(self, setting: Setting[Value], subject: str, value: Value, *, force: bool = False) -> None:
        """Change the value; to IMPORT only while nothing is registered there, unless forced."""
        with self._store.write() as rows:
            if value is Mode.IMPORT and not force and rows.versions(subject=subject or None, deleted=None):
                raise RegistryError(
                    ErrorCode.OPERATION_NOT_PERMITTED,
                    "Cannot import since schemas exist already: set force=true to do it nevertheless",
                )
            rows.set(subject, setting.name, value)

    def reset(self, setting: Setting[Value], subject: str) -> Value:
        """Go back to the global value, and GLOBAL to the default; the value there was."""
        with self._store.write() as rows:
            value = setting.own(rows, subject)
            if value is None and subject != GLOBAL:
                raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
            rows.set(subject, setting.name, None)
            return value or setting.default
