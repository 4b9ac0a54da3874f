package io.millrace.audit;

import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;

/** Sequences and outcomes of one instance's events in one topic. */
final class AuditedTopic {
    static final long WINDOW_MS = 600_000;
    /** Bytes of outcomes that an instance keeps while its reports are not acknowledged. */
    static final long MAX_KEPT_BYTES = 64 << 20;
    static final int WINDOW_BYTES = 512;
    private static final long STRETCH_NS = TimeUnit.SECONDS.toNanos(1);

    /** Acknowledged and failed events of one window. */
    static final class Window {
        final Outcomes acknowledged = new Outcomes();
        final Outcomes failed = new Outcomes();

        boolean isFingerprinted() {
            return acknowledged.isFingerprinted() && failed.isFingerprinted();
        }

        long bytes() {
            return WINDOW_BYTES + (long) Long.BYTES * (acknowledged.count + failed.count);
        }
    }

    /** Events sent within a second, of a client whose acknowledgements do not name their event. */
    private static final class Stretch {
        final long beganNs = System.nanoTime();
        final Map<Long, Outcomes> sent = new HashMap<>();
        boolean hasFailures;
    }

    final String name;
    final int tag;
    volatile boolean isAnnounced;
    /** The reporting thread must announce the topic. */
    volatile boolean isWanted;
    private final boolean isExact;
    private final long settledAfterMs;
    private final Instance instance;
    private long next;
    /** Events without an outcome by window. A window without them stays until a report closes it. */
    private final Map<Long, int[]> open = new HashMap<>();
    /** Events without an outcome, with or without a number, if acknowledgements do not name their event. */
    private long unsettled;
    /** An outcome may have come twice: stretches are settled by time. */
    private boolean isMiscounted;
    private final Deque<Stretch> stretches = new ArrayDeque<>();
    private Map<Long, Window> windows = new HashMap<>();

    AuditedTopic(String name, boolean isExact, long settledAfterMs, Instance instance) {
        this.name = name;
        this.isExact = isExact;
        this.instance = instance;
        this.settledAfterMs = settledAfterMs;
        tag = tagOf(name);
    }

    static int tagOf(String topic) {
        CRC32 crc = new CRC32();
        crc.update(topic.getBytes(StandardCharsets.UTF_8));
        return (int) crc.getValue();
    }

    static long window(long time) {
        return Math.floorDiv(time, WINDOW_MS) * WINDOW_MS;
    }

    /** Count an event that is sent without a header. */
    synchronized void sendUnaudited() {
        unsettled++;
    }

    /** Number an event. Return null if it would open a window beyond the instance's limit. */
    synchronized AuditHeader send(long time) {
        int[] outstanding = open(window(time));
        if (outstanding == null) return null;
        outstanding[0]++;
        AuditHeader header = new AuditHeader(this, instance.number, next++, time);
        if (isExact) return header;
        unsettled++;
        Stretch stretch = stretches.peekLast();
        if (stretch == null || System.nanoTime() - stretch.beganNs > STRETCH_NS) {
            stretch = new Stretch();
            stretches.add(stretch);
        }
        header.stretch = stretch.sent.computeIfAbsent(header.window, absent -> new Outcomes());
        header.stretch.add(header.sequence, 0, false);
        return header;
    }

    private int[] open(long start) {
        int[] known = open.get(start);
        if (known != null) return known;
        if (instance.openWindows.incrementAndGet() > instance.maxOpenWindows) {
            instance.openWindows.decrementAndGet();
            return null;
        }
        int[] opened = new int[1];
        open.put(start, opened);
        return opened;
    }

    /** Note the fingerprint of an event that has no outcome yet. */
    void hashed(AuditHeader header) {
        if (header.stretch == null) return;
        synchronized (this) {
            header.stretch.fingerprint += header.fingerprint;
            header.stretch.hashed++;
        }
    }

    /** Note the first outcome of one event. A send that fails in a transaction fails again at the abort. */
    synchronized void settle(AuditHeader header, boolean isAcknowledged) {
        if (header.isSettled) return;
        header.isSettled = true;
        // An outcome that does not fit is never reported. It keeps its window open for good.
        if (!reserve(1)) return;
        Window window = keep(header.window);
        (isAcknowledged ? window.acknowledged : window.failed)
                .add(header.sequence, header.fingerprint, header.hasFingerprint);
        open.get(header.window)[0]--;
    }

    /** Note the outcome of some event. A failure in a transaction may come twice. */
    synchronized void settleOne(boolean isAcknowledged, boolean isTransactional) {
        unsettled--;
        if (!isAcknowledged) {
            for (Stretch stretch : stretches) stretch.hasFailures = true;
            isMiscounted |= isTransactional;
        }
        // Every event has its outcome: so have the events of all stretches.
        if (unsettled == 0 && !isMiscounted) while (!stretches.isEmpty()) settle(stretches.poll());
    }

    /** Settle old stretches, for the last report all: as failed if the client may still send an event. */
    private void settleByTime(boolean isLast) {
        long waitMs = Math.min(settledAfterMs, instance.maxWaitMs);
        long waitNs = TimeUnit.MILLISECONDS.toNanos(waitMs) + STRETCH_NS;
        while (!stretches.isEmpty()) {
            Stretch oldest = stretches.peek();
            boolean isOld = System.nanoTime() - oldest.beganNs > waitNs;
            if (!isOld && !isLast) return;
            if (!isOld || waitMs < settledAfterMs) oldest.hasFailures = true;
            settle(stretches.poll());
        }
    }

    private void settle(Stretch stretch) {
        stretch.sent.forEach((start, sent) -> {
            if (!reserve(sent.count)) return;
            open.get(start)[0] -= sent.count;
            Window window = keep(start);
            (stretch.hasFailures ? window.failed : window.acknowledged).addAll(sent);
        });
    }

    private boolean reserve(int events) {
        long bytes = (long) Long.BYTES * events;
        if (instance.kept.get() + bytes > MAX_KEPT_BYTES) return false;
        instance.kept.addAndGet(bytes);
        return true;
    }

    private Window keep(long start) {
        Window window = windows.get(start);
        if (window == null) {
            instance.kept.addAndGet(WINDOW_BYTES);
            window = new Window();
            windows.put(start, window);
        }
        return window;
    }

    /** Take the outcomes that no report has. The report with them closes all windows before a time. */
    synchronized Map<Long, Window> take(long closes) {
        int before = open.size();
        open.entrySet().removeIf(window -> window.getKey() < closes && window.getValue()[0] == 0);
        instance.openWindows.addAndGet(open.size() - before);
        Map<Long, Window> taken = windows;
        windows = new HashMap<>();
        return taken;
    }

    /** Settle old stretches. Return the earliest window with an event without an outcome, else the largest long. */
    synchronized long firstOpen(boolean isLast) {
        settleByTime(isLast);
        long first = Long.MAX_VALUE;
        for (Map.Entry<Long, int[]> window : open.entrySet())
            if (window.getValue()[0] > 0) first = Math.min(first, window.getKey());
        return first;
    }
}
