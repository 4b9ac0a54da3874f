"""How the replicas of one partition agree: who leads, who counts, what is committed, what a follower cuts.

Pure: values and times in, decisions out. Does not know files, sockets, threads or ZooKeeper; whoever drives
it does what it decides. The brokers do not drive it yet: docs/replication.md says what is served.
"""
