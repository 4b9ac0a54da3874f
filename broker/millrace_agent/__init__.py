"""`millrace agent`: takes events of services that are not Python, keeps them, and is their audited
producer.

An event that was taken is on this machine's disk until the brokers have acknowledged it, and every word
of the producer instance is there before it is said. So whoever starts behind a killed agent sends the
rest and ends the killed one's instance truthfully.
"""
