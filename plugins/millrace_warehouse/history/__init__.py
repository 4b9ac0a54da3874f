"""Layout of a warehouse: manifests, the ledger of loads, plans, and the schemas of tables.

Knows no brokers and no Parquet.
"""
