package io.millrace.audit;

import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

/** Topics, hellos and reports of one audited producer. */
final class Instance {
    static final int MAX_RANGES = 20_000;
    static final int MAX_WINDOWS = 1_000;
    private static final SecureRandom RANDOM = new SecureRandom();

    /** Sends one audit record. */
    interface Channel {
        void send(byte[] record, long untilNs) throws Exception;
    }

    /** A part of a window that fits into a report. */
    private static final class Part {
        final String topic;
        final long window;
        final boolean isFingerprinted;
        long[][] acknowledged = {};
        long[][] failed = {};
        long fingerprint;
        long failedFingerprint;

        Part(String topic, long window, boolean isFingerprinted) {
            this.topic = topic;
            this.window = window;
            this.isFingerprinted = isFingerprinted;
        }

        int ranges() {
            return acknowledged.length + failed.length;
        }
    }

    final long number = RANDOM.nextLong() >>> 1;
    final Map<String, AuditedTopic> topics = new ConcurrentHashMap<>();
    /** Bytes of outcomes that no acknowledged report has. */
    final AtomicLong kept = new AtomicLong();
    /** Windows that the auditor lets an instance hold open; a test lowers the limit. */
    int maxOpenWindows = 500_000;
    /** Longest wait for outcomes that do not name their event; a test shortens it. */
    long maxWaitMs = 600_000;
    /** Windows with a numbered event that no report has closed, of all topics. */
    final AtomicInteger openWindows = new AtomicInteger();
    private final String server;
    private final String service;
    private final long latenessMs;
    private final Channel channel;
    /** Held while a hello or report is sent. No callback of the application's producer takes it. */
    private final ReentrantLock turn = new ReentrantLock();
    /** Reports that are not acknowledged, in order. They are sent as the same bytes until they are. */
    private final Deque<byte[]> unsent = new ArrayDeque<>();
    private long unsentBytes;
    private boolean hasAnnounced;
    private long reports;
    private byte[] key = newKey();
    private long closedThrough = Long.MIN_VALUE;

    Instance(String server, String service, long latenessMs, Channel channel) {
        this.server = server;
        this.service = service;
        this.latenessMs = latenessMs;
        this.channel = channel;
    }

    /** Send the hello of a topic unless it was sent. */
    void announce(AuditedTopic topic, long waitMs) throws Exception {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        lock(waitMs);
        try {
            if (topic.isAnnounced) return;
            sendUnsent(until);
            if (hasEnded()) return;
            byte[] hello = begin(AuditRecord.HELLO)
                    .text(topic.name).number(closedThrough).fixed(sealOf(key)).bytes();
            channel.send(hello, until);
            hasAnnounced = true;
            topic.isAnnounced = true;
        } finally {
            turn.unlock();
        }
    }

    /**
     * Report the news. The last report closes all time, unless an event has no outcome; nothing follows it.
     *
     * @return whether the instance has ended, or needs no last report
     */
    boolean report(boolean isLast, long waitMs) throws Exception {
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(waitMs);
        lock(waitMs);
        try {
            sendUnsent(until);
            if (!hasAnnounced || hasEnded()) return true;
            // In this order: an event that gets its outcome meanwhile holds its window open, or is in the report.
            long promised = AuditedTopic.window(System.currentTimeMillis() - latenessMs);
            long open = Long.MAX_VALUE;
            for (AuditedTopic topic : topics.values()) open = Math.min(open, topic.firstOpen(isLast));
            long closes = isLast ? open : Math.min(promised, open);
            List<Part> parts = parts(closes);
            if (!parts.isEmpty() || closes != closedThrough) write(parts, closes);
            sendUnsent(until);
            return hasEnded();
        } finally {
            turn.unlock();
        }
    }

    /** Return whether the last report was written. */
    private boolean hasEnded() {
        return closedThrough == Long.MAX_VALUE;
    }

    private void lock(long waitMs) throws Exception {
        if (!turn.tryLock(waitMs, TimeUnit.MILLISECONDS))
            throw new TimeoutException("another record of this producer is being sent");
    }

    private void sendUnsent(long until) throws Exception {
        while (!unsent.isEmpty()) {
            channel.send(unsent.peek(), until);
            unsent.remove();
        }
        kept.addAndGet(-unsentBytes);
        unsentBytes = 0;
    }

    /** Take the news of all topics. Those with fingerprints come first: a report has them for all parts or none. */
    private List<Part> parts(long closes) {
        List<Part> parts = new ArrayList<>();
        for (AuditedTopic topic : topics.values())
            topic.take(closes).forEach((start, window) -> {
                unsentBytes += window.bytes();
                addParts(parts, topic.name, start, window);
            });
        parts.sort((one, other) -> Boolean.compare(other.isFingerprinted, one.isFingerprinted));
        return parts;
    }

    private static void addParts(List<Part> parts, String topic, long start, AuditedTopic.Window window) {
        long[][] acknowledged = window.acknowledged.ranges();
        long[][] failed = window.failed.ranges();
        boolean isFingerprinted = window.isFingerprinted();
        int all = acknowledged.length + failed.length;
        for (int from = 0; from < all; from += MAX_RANGES) {
            Part part = new Part(topic, start, isFingerprinted);
            int to = Math.min(all, from + MAX_RANGES);
            part.acknowledged = slice(acknowledged, from, to);
            part.failed = slice(failed, from - acknowledged.length, to - acknowledged.length);
            if (from == 0 && isFingerprinted) { // the auditor adds the sums of all parts
                part.fingerprint = window.acknowledged.fingerprint;
                part.failedFingerprint = window.failed.fingerprint;
            }
            parts.add(part);
        }
    }

    private static long[][] slice(long[][] ranges, int from, int to) {
        int first = Math.max(0, Math.min(from, ranges.length));
        int end = Math.max(first, Math.min(to, ranges.length));
        return Arrays.copyOfRange(ranges, first, end);
    }

    /** Write the parts into reports. A report closes no window that a later report contains. */
    private void write(List<Part> parts, long closes) throws GeneralSecurityException {
        long[] earliest = new long[parts.size() + 1]; // of the parts from here on
        earliest[parts.size()] = Long.MAX_VALUE;
        for (int n = parts.size() - 1; n >= 0; n--)
            earliest[n] = Math.min(parts.get(n).window, earliest[n + 1]);
        int from = 0;
        do {
            int to = from;
            int ranges = 0;
            while (to < parts.size() && to - from < MAX_WINDOWS
                    && ranges + parts.get(to).ranges() <= MAX_RANGES
                    && parts.get(to).isFingerprinted == parts.get(from).isFingerprinted)
                ranges += parts.get(to++).ranges();
            unsent.add(encode(parts.subList(from, to), Math.min(closes, earliest[to])));
            from = to;
        } while (from < parts.size());
        closedThrough = closes;
    }

    private byte[] encode(List<Part> parts, long closes) throws GeneralSecurityException {
        byte[] next = newKey();
        AuditRecord record = begin(AuditRecord.REPORT)
                .number(reports++).fixed(key).fixed(sealOf(next)).number(closes);
        key = next;
        if (!parts.isEmpty()) record.number(parts.size());
        for (Part part : parts)
            record.text(part.topic).number(part.window)
                    .ranges(part.acknowledged).ranges(part.failed)
                    .number(part.fingerprint).number(part.failedFingerprint)
                    .absent().absent();
        return record.number(0).flag(parts.isEmpty() || parts.get(0).isFingerprinted).bytes();
    }

    private AuditRecord begin(int kind) {
        return new AuditRecord(kind, System.currentTimeMillis(), server, service, number);
    }

    private static byte[] newKey() {
        byte[] key = new byte[16];
        RANDOM.nextBytes(key);
        return key;
    }

    private static byte[] sealOf(byte[] key) throws GeneralSecurityException {
        return MessageDigest.getInstance("SHA-256").digest(key);
    }
}
