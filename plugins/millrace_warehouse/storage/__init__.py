"""Storage of a warehouse: six operations, for every kind of storage. Depends on no manifest."""

from millrace_warehouse.storage.open import open_storage
from millrace_warehouse.storage.streams import measure, open_file
from millrace_warehouse.storage.verbs import Listed, Storage, Written

__all__ = ["Listed", "Storage", "Written", "measure", "open_file", "open_storage"]
