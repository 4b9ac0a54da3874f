"""Jobs of `test_programs.py` for kafka-python 2.0: one job, given as JSON, reported line by line as JSON.

`versions` does everything once for each Kafka that it can be told it talks to: from the version of its
producer and consumer follow the versions of their requests. Its admin client asks the broker. It has no
idempotent producer, and no DeleteRecords.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

import kafka
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

KAFKAS = [(0, 11, 0), (1, 0, 0), (1, 1, 0), (2, 0, 0), (2, 1, 0), None]
"""None: it asks the broker."""
FIRST_MS = 1_600_000_000_000
CODECS = {"none": None, "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "zstd": "zstd"}
Row = tuple[int, int, str]
Job = dict[str, Any]
Version = tuple[int, ...] | None


def tell(value: object) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")  # one write: two threads tell, and print makes two
    sys.stdout.flush()


def producer(job: Job, version: Version, codec: str) -> kafka.KafkaProducer:
    """One that sends in order, however often it repeats a request."""
    return kafka.KafkaProducer(
        bootstrap_servers=job["bootstrap"],
        api_version=version,
        compression_type=CODECS[codec],
        acks="all",
        retries=1000,
        max_in_flight_requests_per_connection=1,
        max_request_size=4 << 20,
        max_block_ms=5_000,
        linger_ms=5,
    )


def produce(job: Job, version: Version, topic: str, name: str, first: int = 0, pause_ms: int = 0) -> None:
    sender = producer(job, version, name)
    sent = []
    for n in range(first, first + job["count"]):
        future = sender.send(
            topic, f"{name}-{n}".encode(), partition=n % job["partitions"], timestamp_ms=FIRST_MS + n * 1000
        )
        if pause_ms:
            future.add_callback(lambda _, n=n: tell(["sent", n]))
        sent.append(future)
        time.sleep(pause_ms / 1000)
    for future in sent:
        future.get(60)
    sender.close()


def consumer(job: Job, version: Version, group: str | None, **more: Any) -> kafka.KafkaConsumer:
    return kafka.KafkaConsumer(
        bootstrap_servers=job["bootstrap"],
        api_version=version,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=50,
        heartbeat_interval_ms=100,
        **more,
    )


def poll(reader: kafka.KafkaConsumer, wanted: int) -> list[Row]:
    rows: list[Row] = []
    while len(rows) < wanted:
        rows += rows_of(reader.poll(timeout_ms=100, max_records=wanted - len(rows)).values())
    return rows


def rows_of(polled: Iterable[Any]) -> list[Row]:
    return [(r.partition, r.offset, r.value.decode()) for records in polled for r in records]


def error_of(sender: kafka.KafkaProducer, topic: str, value: bytes) -> str:
    """Return the error of a send, by Kafka's name of it."""
    names = {"MessageSizeTooLargeError": "MESSAGE_TOO_LARGE"}
    try:
        sender.send(topic, value, partition=0).get(20)
    except kafka.errors.KafkaTimeoutError as error:  # it asks for the topic until its time is up
        return f"UNKNOWN_TOPIC_OR_PARTITION, as it seems: {error}"
    except kafka.errors.KafkaError as error:
        return names.get(type(error).__name__, repr(error))
    return "sent"


def once(job: Job, topic: str, version: Version) -> dict[str, Any]:
    admin = KafkaAdminClient(bootstrap_servers=job["bootstrap"])
    settings = {"max.message.bytes": "100000", "retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, job["partitions"], 1, topic_configs=settings)])
    names = [name for name in job["producers"] if name != "zstd" or version is None or version >= (2, 1)]
    threads = [threading.Thread(target=produce, args=(job, version, topic, name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = job["count"] * len(names)
    facts: dict[str, Any] = {"producers": names, "kafka": version}
    places = [kafka.TopicPartition(topic, p) for p in range(job["partitions"])]

    reader = consumer(job, version, None)
    reader.assign(places)
    facts["read"] = poll(reader, every)
    middle = reader.offsets_for_times(dict.fromkeys(places, FIRST_MS + job["count"] // 2 * 1000))
    facts["at_time"] = {place.partition: found.offset for place, found in middle.items()}
    ends = reader.end_offsets(places)
    facts["starts"] = {place.partition: offset for place, offset in reader.beginning_offsets(places).items()}

    group = f"group of {topic}"
    facts["halves"] = []
    for half in range(2):
        member = consumer(job, version, group)
        member.subscribe([topic])
        facts["halves"].append(poll(member, every // 2))
        time.sleep(0.2)  # a heartbeat or two
        member.commit()
        if half == 0:
            (described,) = admin.describe_consumer_groups([group])
            facts["state"] = described.state
        member.close()
    committed = admin.list_consumer_group_offsets(group)
    facts["lag"] = sum(ends[place] - committed[place].offset for place in places)

    def setting() -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": ""})
        (response,) = admin.describe_configs([resource])
        return str(response.resources[0][4][0][1])

    def alter(**values: str) -> None:
        wanted = {name.replace("_", "."): value for name, value in values.items()}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs=wanted)])

    facts["configs"] = [setting()]
    alter(max_message_bytes="100000", retention_ms="600000000")
    facts["configs"].append(setting())
    alter(max_message_bytes="100000")
    facts["configs"].append(setting())
    admin.create_partitions({topic: NewPartitions(job["partitions"] + 1)})
    facts["partitions"] = len(admin.describe_topics([topic])[0]["partitions"])

    sender = producer(job, version, "none")
    facts["too_large"] = error_of(sender, topic, bytes(200_000))
    facts["no_topic"] = error_of(sender, f"no-{topic}", b"x")
    sender.close()
    assert group in [name for name, _ in admin.list_consumer_groups()]
    admin.delete_consumer_groups([group])
    admin.delete_topics([topic])
    facts["deleted"] = topic not in admin.list_topics()
    admin.close()
    return facts


def member(job: Job) -> None:
    """Read, tell and commit until SIGTERM."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())

    def report(what: str, value: object = None) -> None:
        tell([what, time.monotonic(), value])

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            report("assigned", [place.partition for place in assigned])

        def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            report("revoked", [place.partition for place in revoked])

    reader = consumer(
        job, (2, 1, 0), job["group"], session_timeout_ms=job["session_ms"], max_poll_interval_ms=10_000
    )
    reader.subscribe([job["topic"]], listener=Listener())
    while not stopping.is_set():
        rows = rows_of(reader.poll(timeout_ms=100, max_records=50).values())
        if not rows:
            continue
        report("got", rows)
        time.sleep(job["pause"] / 1000)
        following = {p: offset + 1 for p, offset, _ in rows}
        places = {
            kafka.TopicPartition(job["topic"], p): kafka.OffsetAndMetadata(offset, "")
            for p, offset in following.items()
        }
        try:
            reader.commit(places)
            report("committed", following)
        except kafka.errors.KafkaError as error:
            report("refused", str(error))
    reader.close()
    report("closed")


def main(job: Job) -> None:
    if job["do"] == "versions":
        for number, version in enumerate(KAFKAS):
            tell(once(job, f"{job['topic']}-{number}", version))
    elif job["do"] == "produce":
        produce(job, (2, 1, 0), job["topic"], job["producers"][0], job["first"], job["pause"])
    else:
        member(job)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
