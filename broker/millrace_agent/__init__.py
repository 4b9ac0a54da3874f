"""`millrace agent`: takes events of services that are not Python, keeps them, and is their audited
producer.

A taken event is on this machine's disk until the brokers have acknowledged it. Every hello and report of the
producer instance is there before it is published. So the agent that starts after a killed one sends the rest
and ends the killed agent's instance truthfully.
"""
