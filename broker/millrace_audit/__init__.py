"""The proof that nothing was lost: producers report events, readers count arrivals, the auditor judges.

The package never reads a warehouse: it relies on the reports of the warehouse's reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace_audit.producer import AuditedProducer, Delivered, DeliveryFailed, NotSent

__all__ = ["AuditedProducer", "Delivered", "DeliveryFailed", "NotSent"]

if not TYPE_CHECKING:  # for mypy the names above are enough, and a misspelt one is an error

    def __getattr__(name):
        """Import the producer at its first use: readers of the audit do not need Kafka's client."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from millrace_audit import producer

        return getattr(producer, name)
