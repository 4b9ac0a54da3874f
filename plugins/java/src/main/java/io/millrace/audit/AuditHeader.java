package io.millrace.audit;

import java.nio.ByteBuffer;

import org.apache.kafka.common.header.Header;

/** The record header {@code millrace.audit} of one event, with what the outcome of the event needs. */
final class AuditHeader implements Header {
    static final String NAME = "millrace.audit";
    static final int SIZE = 29;
    private static final byte VERSION = 1;
    private static final byte[] NO_BYTES = {};

    final AuditedTopic topic;
    final long window;
    final long sequence;
    /** Sequences of the event's stretch and window; null if acknowledgements name their event. */
    Outcomes stretch;
    long fingerprint;
    boolean hasFingerprint;
    /** Guarded by the topic. */
    boolean isSettled;
    private final byte[] value;

    AuditHeader(AuditedTopic topic, long instance, long sequence, long time) {
        this.topic = topic;
        this.sequence = sequence;
        window = AuditedTopic.window(time);
        value = encode(topic.tag, instance, sequence, time);
    }

    static byte[] encode(int tag, long instance, long sequence, long time) {
        return ByteBuffer.allocate(SIZE)
                .put(VERSION).putInt(tag).putLong(instance).putLong(sequence).putLong(time)
                .array();
    }

    @Override
    public String key() {
        return NAME;
    }

    @Override
    public byte[] value() {
        return value;
    }

    /** Note the bytes of the event's value; null is a value without bytes. */
    void hash(byte[] bytes) {
        if (hasFingerprint) return;
        fingerprint = XxHash64.hash(bytes == null ? NO_BYTES : bytes, sequence);
        hasFingerprint = true;
        topic.hashed(this);
    }
}
