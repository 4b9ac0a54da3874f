"""Compatibility level and mode: of one subject, of all, and which of the two applies."""

from __future__ import annotations

from enum import StrEnum

from millrace_registry.compatibility import Level
from millrace_registry.errors import (
    CompatibilityNotConfigured,
    InvalidMode,
    ModeNotConfigured,
    OperationNotPermitted,
    SubjectNotFound,
)
from millrace_registry.store import Store, Transaction

GLOBAL = ""
"""The subject under which settings for all subjects are kept."""

_LEVEL, _MODE = "compatibility", "mode"


class Mode(StrEnum):
    """What may be registered; the modes of Confluent's cluster linking are left out."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    IMPORT = "IMPORT"

    @classmethod
    def of(cls, name: object) -> Mode:
        """The mode of that name, in any case; InvalidMode when there is none."""
        if isinstance(name, str) and name.upper() in cls.__members__:
            return cls[name.upper()]
        raise InvalidMode(f"mode {name!r} is none of {', '.join(cls)}")


def level_of(rows: Transaction, subject: str) -> Level:
    """The level that applies to a subject: its own, the global one, or BACKWARD."""
    return Level(rows.setting(subject, _LEVEL) or rows.setting(GLOBAL, _LEVEL) or Level.BACKWARD)


def mode_of(rows: Transaction, subject: str) -> Mode:
    """The mode that applies to a subject: its own, the global one, or READWRITE."""
    return Mode(rows.setting(subject, _MODE) or rows.setting(GLOBAL, _MODE) or Mode.READWRITE)


def forget(rows: Transaction, subject: str) -> None:
    """Remove every setting of a subject."""
    rows.set(subject, _LEVEL, None)
    rows.set(subject, _MODE, None)


class Settings:
    """Reads and changes the settings in a store; the subject GLOBAL stands for all."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def level(self, subject: str, *, default_to_global: bool = False) -> Level:
        """The level of a subject; CompatibilityNotConfigured when it has none and no default is wanted."""
        with self._store.read() as rows:
            if subject != GLOBAL and not default_to_global and rows.setting(subject, _LEVEL) is None:
                raise CompatibilityNotConfigured(
                    f"Subject '{subject}' does not have subject-level compatibility configured"
                )
            return level_of(rows, subject)

    def set_level(self, subject: str, level: Level) -> None:
        """Change the level of a subject."""
        with self._store.write() as rows:
            rows.set(subject, _LEVEL, level)

    def reset_level(self, subject: str) -> Level:
        """Go back to the global level, and GLOBAL to BACKWARD; the level there was."""
        with self._store.write() as rows:
            value = _taken(rows, subject, _LEVEL)
        return Level(value or Level.BACKWARD)

    def mode(self, subject: str, *, default_to_global: bool = False) -> Mode:
        """The mode of a subject; ModeNotConfigured when it has none and no default is wanted."""
        with self._store.read() as rows:
            if subject != GLOBAL and not default_to_global and rows.setting(subject, _MODE) is None:
                raise ModeNotConfigured(f"Subject '{subject}' does not have subject-level mode configured")
            return mode_of(rows, subject)

    def set_mode(self, subject: str, mode: Mode, *, force: bool = False) -> None:
        """Change the mode of a subject; to IMPORT only while nothing is registered there, unless forced."""
        with self._store.write() as rows:
            if mode is Mode.IMPORT and not force and rows.versions(subject=subject or None, deleted=None):
                raise OperationNotPermitted(
                    "Cannot import since schemas exist already: set force=true to do it nevertheless"
                )
            rows.set(subject, _MODE, mode)

    def reset_mode(self, subject: str) -> Mode:
        """Go back to the global mode, and GLOBAL to READWRITE; the mode there was."""
        with self._store.write() as rows:
            value = _taken(rows, subject, _MODE)
        return Mode(value or Mode.READWRITE)


def _taken(rows: Transaction, subject: str, name: str) -> str | None:
    value = rows.setting(subject, name)
    if value is None and subject != GLOBAL:
        raise SubjectNotFound(f"Subject '{subject}' not found.")
    rows.set(subject, name, None)
    return value
