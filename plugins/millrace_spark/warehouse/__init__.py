"""Where things lie in a warehouse: manifests, the ledger of loads, staging, and the one commit.

Knows no brokers, no Spark and no Parquet.
"""
