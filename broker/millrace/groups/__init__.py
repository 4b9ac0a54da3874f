"""Kafka's classic consumer groups: who is in them, who coordinates them, what they have committed."""

from millrace.groups.coordinator import Groups
from millrace.groups.group import Group, State
from millrace.groups.members import ClientName

__all__ = ["ClientName", "Group", "Groups", "State"]
