"""Agreement of one partition's replicas: the leader, the in-sync replicas, the committed end, a follower's
cuts.

Most of it is pure: values and times in, decisions out, without files, ZooKeeper or threads.
`partitions/replicas.py` carries out the decisions. Only `leader_thread.py` has a thread and a socket: it
copies from one leader.
"""
