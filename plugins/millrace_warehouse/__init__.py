"""A warehouse: loads as history, tables people query, and the proof of both. Imports no PySpark."""
