"""A producer that is killed between two reports; a process.

`python -m tests.trials.faultaudit.doomed_producer BOOTSTRAP REGISTRY CLUSTER TOPIC START`: of the
window from START the messages 0 to 19 are acknowledged and reported, 20 to 39 only acknowledged. Prints its
instance and kills itself.
"""

from __future__ import annotations

import os
import signal
import sys

from millrace_audit.producer import AuditedProducer
from tests.trials.faultaudit.batches import BATCH, NEEDED
from tests.trials.faultaudit.stage import send


def main() -> None:
    bootstrap, registry, cluster, topic, start = sys.argv[1:]
    settings = {"linger.ms": 1000}
    producer = AuditedProducer(
        bootstrap, registry, cluster=cluster, server="doomed", service="shop", config=settings
    )
    for first in range(0, NEEDED * BATCH, BATCH):
        send(producer, topic, first, int(start))
        if first < 2 * BATCH:
            producer.flush()
        else:
            assert producer._producer.flush(60) == 0
    print(producer.instance, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
