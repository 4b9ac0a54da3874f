"""The broker's sockets: the event loop, its connections and the memory held for clients.

The package is independent of Kafka's APIs: it cuts requests out of streams and sends the handlers' answers,
in order.
"""
