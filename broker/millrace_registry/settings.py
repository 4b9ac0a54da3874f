"""Compatibility level and mode: of one subject, of all, and which of the two applies."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from millrace_registry.compatibility import Level
from millrace_registry.errors import ErrorCode, RegistryError
from millrace_registry.store import Transaction

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

    def read(self, rows: Transaction, subject: str, *, default_to_global: bool) -> Value:
        """The value that applies; RegistryError when the subject has none and no default is wanted."""
        if subject != GLOBAL and not default_to_global and self.own(rows, subject) is None:
            raise RegistryError(
                self.not_configured,
                f"Subject '{subject}' does not have subject-level {self.name} configured",
            )
        return self.of(rows, subject)

    def write(self, rows: Transaction, subject: str, value: Value, *, force: bool) -> None:
        """Change the value; to IMPORT only while nothing is registered there, unless forced."""
        if value is Mode.IMPORT and not force and rows.versions(subject or None, deleted=None):
            raise RegistryError(
                ErrorCode.OPERATION_NOT_PERMITTED,
                "Cannot import since schemas exist already: set force=true to do it nevertheless",
            )
        rows.set(subject, self.name, value)

    def reset(self, rows: Transaction, subject: str) -> Value:
        """Go back to the global value, and GLOBAL to the default; the value there was."""
        value = self.own(rows, subject)
        if value is None and subject != GLOBAL:
            raise RegistryError(ErrorCode.SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")
        rows.set(subject, self.name, None)
        return value or self.default


_LEVEL_CODES = ErrorCode.INVALID_COMPATIBILITY_LEVEL, ErrorCode.COMPATIBILITY_NOT_CONFIGURED
LEVEL = Setting("compatibility", "compatibility level", Level.BACKWARD, *_LEVEL_CODES)
MODE = Setting("mode", "mode", Mode.READWRITE, ErrorCode.INVALID_MODE, ErrorCode.MODE_NOT_CONFIGURED)
