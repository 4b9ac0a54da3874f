"""Counts of the warehouse's rows for the auditor, made by an independent reader of its files.

read_back.py   the sequence numbers in the files of a load, from the columns of the audit header alone
loads.py       the loads and editions to report, and the reports
tables.py      the changed hours of a published table, and the rows that a reader gets of them now
findings.py    findings of `millrace verify`, to be reported to the auditor
reader.py      the process: its turn and its rounds
"""
