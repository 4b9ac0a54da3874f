"""`millrace agent`: takes events of services that are not in Python, keeps them, and is their audited
producer.

A taken event is on this machine's disk until the brokers have acknowledged it. Every hello and report of the
producer instance is on the disk before it is published. Therefore, after an agent was killed, the next agent
sends the rest and ends the killed agent's instance correctly.
"""
