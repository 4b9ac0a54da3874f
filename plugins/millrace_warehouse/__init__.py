"""A warehouse: the history of loads, the tables that people query, and the proof of both. No PySpark."""
