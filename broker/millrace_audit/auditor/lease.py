"""Lease of the auditor's database: one process writes, any other stands by and answers requests.

Every transaction that writes renews the lease in the same step, so a process that has lost it cannot commit.
Only `take` takes the lease, and returns True: another process may have applied the records that this process
has read. Clocks of other machines do not matter. A standby takes over when the number of renewals has not
changed for LEASE_S by its own clock, or at once if the holder was a process of this machine that has ended.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy.orm import Session

from millrace.errors import MillraceError
from millrace_audit.auditor.store import LeaseRow

LEASE_S = 30.0
"""Time without a renewal after which another process takes over."""
RENEW_S = 5.0
"""Longest time between two renewals by the holder."""
_ONLY = "auditor"


class LeaseHeld(MillraceError):
    """Another auditor writes to the database."""


class Lease:
    """The lease as one process knows it, for use within the transactions that write."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._token = secrets.token_hex(16)
        self._host, self._process = socket.gethostname(), process_of(os.getpid())
        self._seen: tuple[str, int] | None = None
        self._seen_at = 0.0

    def renew(self, session: Session) -> None:
        """Renew the lease. Raise LeaseHeld if it was lost or never taken."""
        row = session.get(LeaseRow, _ONLY)
        if row is None or row.token != self._token:
            raise _held_by(row)
        row.renewals += 1

    def take(self, session: Session) -> bool:
        """Renew the lease, or take it if it is free; return True if taken. Raise LeaseHeld if it is held."""
        row = session.get(LeaseRow, _ONLY)
        if row is None:
            session.add(LeaseRow(name=_ONLY, token=self._token, host=self._host, process=self._process))
            return True
        is_new = row.token != self._token
        if is_new and not self._is_free(row):
            raise _held_by(row)
        row.token, row.host, row.process = self._token, self._host, self._process
        row.renewals += 1
        return is_new

    def release(self, session: Session) -> None:
        """Release the lease, so that another process need not wait."""
        row = session.get(LeaseRow, _ONLY)
        if row is not None and row.token == self._token:
            session.delete(row)

    def _is_free(self, row: LeaseRow) -> bool:
        if (row.host, row.process) == (self._host, self._process):
            return True
        if row.host == self._host and _has_ended(row.process):
            return True
        now, state = self._clock(), (row.token, row.renewals)
        if state != self._seen:
            self._seen, self._seen_at = state, now
        return now - self._seen_at >= LEASE_S


def _held_by(row: LeaseRow | None) -> LeaseHeld:
    if row is None:
        return LeaseHeld("this auditor does not write to its database yet: try again in a moment")
    return LeaseHeld(
        f"another auditor writes to this database, process {_pid(row.process)} on {row.host}: this"
        " one stands by until that one ends"
    )


def process_of(pid: int) -> str:
    """Return a process's boot, namespace, number and start, which no later process shares (Linux).

    Containers with one host name differ in their namespace, where the same number is another process.
    """
    boot = started = "ended"
    with suppress(FileNotFoundError, ProcessLookupError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        boot += f" {Path('/proc/self/ns/pid').readlink()}"
        # The start is the twentieth field after the command's name, which may contain any character.
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot}/{pid}/{started}"


def _has_ended(process: str) -> bool:
    pid = _pid(process)
    boot = process.partition("/")[0]
    now = process_of(int(pid)) if pid.isdecimal() else ""
    return now.partition("/")[0] == boot and now != process


def _pid(process: str) -> str:
    return process.split("/")[1] if process.count("/") == 2 else "?"
