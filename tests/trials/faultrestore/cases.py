"""The cases, by store: each puts an older copy of the store back and says what must follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.trials.faultrestore import brokers, databases, origins, pages, registry, spools, warehouse
from tests.trials.faultrestore.scene import Scene


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
    Case("origin", origins.an_origin_put_back_at_rest_while_its_mirror_stood_stops_the_mirror),
    Case("origin", origins.an_origin_put_back_at_once_stops_the_mirror_that_is_connected),
    Case(
        "audit topics", origins.an_aggregate_put_back_at_rest_makes_hours_unknown_and_calls_no_message_missing
    ),
    Case(
        "audit topics", origins.an_aggregate_put_back_at_once_makes_hours_unknown_and_calls_no_message_missing
    ),
    Case("registry", registry.a_registry_put_back_at_rest_hands_out_no_id_that_messages_carry),
    Case("registry", registry.a_registry_put_back_at_once_hands_out_no_id_that_loads_have_seen),
    Case("spool", spools.a_spool_put_back_at_rest_is_refused_or_its_hour_is_not_complete),
    Case("spool", spools.a_spool_put_back_at_once_is_refused_or_its_hour_is_not_complete),
    Case("spool", spools.a_spools_copy_beside_it_is_refused_or_its_hour_is_not_complete),
    Case("zookeeper", pages.a_zookeeper_restored_by_the_page_loses_nothing),
    Case("auditor", pages.an_auditors_database_restored_by_the_page_says_again_what_it_said),
    Case("warehouse", pages.a_warehouse_restored_by_the_page_is_complete_again),
)
