"""The cases, by store: each puts an older copy of the store back and says what must follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.faultrestore import brokers, databases, warehouse
from tests.faultrestore.scene import Scene


@dataclass(frozen=True, slots=True)
class Case:
    """One case, which runs in a place of its own."""

    store: str
    run: Callable[[Scene], None]

    @property
    def name(self) -> str:
        """A sentence."""
        return self.run.__name__.replace("_", " ")


CASES = (
    Case("warehouse", warehouse.a_folder_that_is_put_back_at_rest_waits_until_its_lost_loads_are_replaced),
    Case(
        "warehouse",
        warehouse.a_folder_that_is_put_back_at_once_behind_its_publication_is_mended_by_a_newer_copy,
    ),
    Case("catalog", warehouse.a_catalog_that_is_put_back_is_refused_until_its_table_is_rebuilt),
    Case("auditor", databases.an_auditors_database_that_is_put_back_at_rest_says_again_what_it_said),
    Case("auditor", databases.an_auditors_database_that_is_put_back_at_once_under_traffic_raises_no_alarm),
    Case("broker", brokers.a_directory_of_three_put_back_at_rest_starts_first_and_leads_nothing),
    Case("broker", brokers.a_leaders_directory_of_three_put_back_at_once_under_traffic_loses_nothing),
    Case("broker", brokers.a_leaders_directory_of_two_put_back_at_once_under_traffic_loses_nothing),
    Case("broker", brokers.a_partition_whose_only_directory_is_put_back_waits_for_an_operator),
    Case("zookeeper", brokers.a_zookeeper_put_back_at_rest_lets_no_replica_lead_that_was_away_since),
    Case("zookeeper", brokers.a_zookeeper_put_back_at_once_under_running_brokers_loses_nothing),
)
