"""Names that the package itself offers, and the cost of importing it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import millrace_audit
from millrace_audit import producer

NAMES = """
import sys
import millrace_audit
assert "confluent_kafka" not in sys.modules
from millrace_audit import AuditedProducer
assert "confluent_kafka" in sys.modules
"""


def test_the_package_offers_the_producer_and_its_errors() -> None:
    assert millrace_audit.AuditedProducer is producer.AuditedProducer
    assert millrace_audit.DeliveryFailed is producer.DeliveryFailed
    with pytest.raises(AttributeError, match="has no attribute 'AuditedConsumer'"):
        getattr(millrace_audit, "AuditedConsumer")  # noqa: B009  # mypy knows that it is not there


def test_whoever_imports_the_package_does_not_pay_for_the_producer() -> None:
    subprocess.run([sys.executable, "-c", NAMES], check=True, timeout=60)
