"""The broker's sockets: the event loop, its connections and the memory held for clients.

Knows no Kafka API: it cuts requests out of streams and sends what handlers answer, in order.
"""
