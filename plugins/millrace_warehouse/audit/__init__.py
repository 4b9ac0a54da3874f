"""What the warehouse holds, counted for the auditor by who has not written it: a reader of files.

read_back.py   which sequences the files of a load hold, by the columns of the audit header alone
loads.py       which loads and editions are told of, and what is told
tables.py      which hours of a published table were changed, and what a reader gets of them now
findings.py    what `millrace verify` has found, on its way to the auditor
reader.py      the process: its turn, its rounds
"""
