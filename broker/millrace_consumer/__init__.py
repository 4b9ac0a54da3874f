"""The consumer of the 2011 paper."""

from millrace_consumer.consumer import Consumer, Message, MessageStream, NotOwner

__all__ = ["Consumer", "Message", "MessageStream", "NotOwner"]
