"""Millrace for Spark: a data source that reads topics as typed columns, and the jobs that load a
warehouse.
"""
