"""Inputs and outputs of a task for OpenLineage, if Airflow's provider for it is installed.

Holds only facts that the task already has. It asks no service for them, because Airflow requests them in
another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Dataset(NamedTuple):
    """A dataset, identified as in OpenLineage by a namespace and a name."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """Datasets that a task has read and written."""

    inputs: Sequence[Dataset] = ()
    outputs: Sequence[Dataset] = ()
    rows: int | None = None
    """Rows of each output, if one number applies to all of them."""

    def facets(self) -> Any:
        """Return the lineage as the provider takes it. Raise ImportError if the provider is not installed."""
        from airflow.providers.openlineage.extractors import OperatorLineage
        from openlineage.client import event_v2
        from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

        counted = {}
        if self.rows is not None:
            counted["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(rowCount=self.rows)
        return OperatorLineage(
            inputs=[event_v2.InputDataset(*dataset) for dataset in self.inputs],
            outputs=[event_v2.OutputDataset(*dataset, outputFacets=counted) for dataset in self.outputs],
        )


def log_of(bootstrap: str, topic: str) -> Dataset:
    """Return a topic's dataset, named by the first of its cluster's brokers."""
    return Dataset(f"kafka://{bootstrap.partition(',')[0]}", topic)


def rows_of(warehouse: str, topic: str) -> Dataset:
    """Return the dataset of the files that loads of a topic have written."""
    parts = urlsplit(warehouse)
    if parts.scheme in ("", "file"):
        return Dataset("file", str(Path(parts.path).absolute() / topic / "rows"))
    return Dataset(f"{parts.scheme}://{parts.netloc}", f"{parts.path.rstrip('/')}/{topic}/rows".lstrip("/"))
