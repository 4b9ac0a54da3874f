"""Proof that a warehouse is what was loaded and published: every manifest, every byte, every row.

Three proofs, each on its own: history (chain, laws, ledger, SHA-256 of every file), publications (the replay
of all manifests gives the state that the last record states) and the table (rows by load and hour, counted in
the files that the table has now). Reads with pyarrow and pyiceberg alone; a broker, if one is named, is asked
for its offsets only.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog

from millrace.client.cluster_client import ClusterClient
from millrace_warehouse.storage.verbs import Storage
from millrace_warehouse.verify.report import OnStep, TopicReport


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRun:
    """Everything one verification needs; built in one place, by the command."""

    storage: Storage
    catalog: Catalog | None
    """None proves history alone."""
    client: ClusterClient | None = None
    """Also compare with this cluster's logs."""
    rows: bool = False
    """Also read every row: offsets, sequence numbers, hours."""
    on_step: OnStep = lambda path: None


def verify(run: VerifyRun, topic: str | None = None) -> list[TopicReport]:
    """Check every topic of a warehouse, or one; MillraceError when there is none."""
    raise NotImplementedError
