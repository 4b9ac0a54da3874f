"""What librdkafka says of an error, in the words of a person who has to act."""

from __future__ import annotations

from confluent_kafka import KafkaError

from millrace.errors import ErrorCode


def text_of(error: BaseException | KafkaError) -> str:
    cause = error.args[0] if isinstance(error, BaseException) and error.args else error
    if not isinstance(cause, KafkaError):
        return str(cause)
    if cause.code() == ErrorCode.POLICY_VIOLATION:
        return f"{cause.str()}; a copy that the mirror makes takes messages in the cluster it is copied from"
    return str(cause.str())
