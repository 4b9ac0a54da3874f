"""Kafka's classic consumer groups: who is in them, who coordinates them, what they have committed."""

from millrace.groups.coordinator import Groups
from millrace.groups.group import Group, GroupSnapshot, MemberSnapshot, State
from millrace.groups.member import ClientName

__all__ = ["ClientName", "Group", "GroupSnapshot", "Groups", "MemberSnapshot", "State"]
