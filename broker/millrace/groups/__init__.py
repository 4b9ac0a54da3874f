"""Kafka's classic consumer groups: who is in them, who coordinates them, what they have committed."""

from millrace.groups.coordinator import Groups
from millrace.groups.group import Group
from millrace.groups.member import ClientName
from millrace.groups.snapshot import GroupSnapshot, MemberSnapshot, State

__all__ = ["ClientName", "Group", "GroupSnapshot", "Groups", "MemberSnapshot", "State"]
