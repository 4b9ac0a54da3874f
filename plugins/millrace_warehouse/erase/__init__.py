"""Takes the rows that a condition matches out of the loads and the table of a topic, and deletes their bytes.

rows.py      where the rows of a load are: in its own files, or in the table's where those have expired
erasing.py   the steps: the record, the load that fences, the new editions, the publication, what is deleted
purge.py     files that only replaced editions and old snapshots name, and what stays until when
logs.py      what the topics' logs still hold, and until when
"""
