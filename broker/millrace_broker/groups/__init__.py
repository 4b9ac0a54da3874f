"""Kafka's classic consumer groups: their members, their coordinators and their committed offsets."""

from millrace_broker.groups.coordinator import Groups
from millrace_broker.groups.group import Group, State
from millrace_broker.groups.members import ClientName

__all__ = ["ClientName", "Group", "Groups", "State"]
