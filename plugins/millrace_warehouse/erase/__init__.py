"""Takes the rows that a condition matches out of the loads and the table of a topic, and deletes their bytes.

rows.py      the rows of a load, from its own files, or from the table's files where those have expired
erasing.py   the steps: the erasure's entry, the fencing load, the new editions, the publication, the deletion
purge.py     files that only replaced editions and old snapshots name, and the files that must stay for a time
logs.py      erased rows that the topics' logs still hold, and for how long
"""
