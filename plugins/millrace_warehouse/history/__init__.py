"""Layout of a warehouse: manifests, the ledger of loads, plans, and the schemas of tables.

Depends on neither brokers nor Parquet.
"""
