"""The command that counts a warehouse for the auditor: `millrace audit-warehouse`."""

from __future__ import annotations

import logging
import sys
import threading

from millrace.logs import start_logging
from millrace.printing import say
from millrace.signals import stop_on_signals
from millrace_warehouse.commands.options import Silent, command_of
from millrace_warehouse.requests import AuditWarehouse


@command_of(AuditWarehouse, Silent)
def audit_warehouse(request: AuditWarehouse, _: Silent) -> None:
    """Count the rows in the files of each load, and report the counts to the auditor, until SIGTERM.

    Each load is read back once, by the columns of the audit header. A second process stands by until the
    first one ends.

    Example: millrace audit-warehouse --warehouse /data/warehouse --bootstrap 127.0.0.1:9392
    --zookeeper 127.0.0.1:2181 --registry http://127.0.0.1:8081
    """
    from millrace_audit.reader.numbers import serve
    from millrace_warehouse.audit.reader import WarehouseNumbers, WarehouseReader

    start_logging()
    for chatty in ("httpx", "pyiceberg"):  # else lines for every request, and for every table
        logging.getLogger(chatty).setLevel(logging.WARNING)
    stop = threading.Event()
    stop_on_signals(stop.set, limited=True)

    def ready() -> None:
        say(f"ready: audit-warehouse of {request.warehouse}")
        sys.stdout.flush()

    numbers = WarehouseNumbers()
    serve(numbers, request.metrics_listen, request.access, request.certificate, request.key)
    WarehouseReader(request, stop, numbers).run(ready)
