"""A producer whose process forks, as a web server does that loads its program before it forks; a process.

`python -m tests.trials.faultaudit.forking_producer BOOTSTRAP REGISTRY CLUSTER TOPIC`: the parent sends
messages 0 to 19. Its child sends with that producer, prints what it is told, and sends ten
messages with a producer of its own. Then the parent sends 20 to 39, and ten in the window behind.
"""

from __future__ import annotations

import sys

from millrace.errors import MillraceError
from millrace_audit.producer import AuditedProducer
from millrace_audit.reports.counts import WINDOW_MS
from tests.support import child
from tests.trials.faultaudit.batches import BATCH, NEEDED
from tests.trials.faultaudit.stage import START, send


def main() -> None:
    bootstrap, registry, cluster, topic = sys.argv[1:]

    def producer() -> AuditedProducer:
        return AuditedProducer(bootstrap, registry, cluster=cluster, server="forking", service="shop")

    def work() -> None:
        try:
            send(parents, topic, NEEDED * BATCH)
        except MillraceError as error:
            print(error, flush=True)
        with producer() as mine:
            send(mine, topic, 0)

    parents = producer()
    with parents:
        send(parents, topic, 0)
        send(parents, topic, BATCH)
        assert child(work) == 0
        send(parents, topic, 2 * BATCH)
        send(parents, topic, 3 * BATCH)
        send(parents, topic, 0, START + WINDOW_MS)


if __name__ == "__main__":
    main()
