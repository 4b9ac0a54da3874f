"""Storage of a warehouse: six operations, for every kind of storage. Depends on no manifest."""

from millrace_warehouse.storage.interface import Listed, Storage, Written
from millrace_warehouse.storage.open import open_storage
from millrace_warehouse.storage.streams import measure, open_file

__all__ = ["Listed", "Storage", "Written", "measure", "open_file", "open_storage"]
