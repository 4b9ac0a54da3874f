"""Kafka's classic consumer groups: who is in them, who coordinates them, what they have committed."""

from millrace_broker.groups.coordinator import Groups
from millrace_broker.groups.group import Group, State
from millrace_broker.groups.members import ClientName

__all__ = ["ClientName", "Group", "Groups", "State"]
