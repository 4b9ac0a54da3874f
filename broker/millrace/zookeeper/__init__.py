"""A session with ZooKeeper, the rights of its nodes, the entry of a topic, and a server for one machine."""
