"""Counts of the warehouse's rows for the auditor, made by an independent reader of its files.

read_back.py   the sequences in the files of a load, by the columns of the audit header alone loads.py
the loads and editions that are reported, and their records tables.py      the changed hours of a published
table, and the rows that a reader gets of them now findings.py    findings of `millrace verify`, on their way
to the auditor reader.py      the process: its turn, its rounds
"""
