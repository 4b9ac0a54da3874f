package io.millrace.audit;

import java.io.IOException;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Events of one instance without a producer; each audit record is a line in hex on the standard output.
 *
 * CLIENT SETTLED_AFTER_MS STEP ...: the client is "exact", "older" or "transactional", which is also older. A step is
 * one of "events:TOPIC:COUNT:TIME:TIME_STEP:OUTCOMES" (a cycle of a: acknowledged, f: failed, d: failed twice,
 * -: neither),
 * "refuse" and "accept" (the topic audit), "limit:OPEN_WINDOWS",
 * "patience:MS", "pause:MS", "report" and "last".
 */
public class Reports {
    private static final AtomicBoolean IS_REFUSING = new AtomicBoolean();
    /** Lateness, so that no window of the events is closed by the clock. */
    private static final long CENTURY_MS = 36_525L * 86_400_000;
    private static Instance instance;
    private static boolean isExact, isTransactional;
    private static long settledAfterMs;

    public static void main(String[] args) throws Exception {
        instance = new Instance("host", "service", CENTURY_MS, Reports::send);
        isExact = args[0].equals("exact");
        isTransactional = args[0].equals("transactional");
        settledAfterMs = Long.parseLong(args[1]);
        for (int n = 2; n < args.length; n++) run(args[n].split(":"));
    }

    private static void send(byte[] record, long untilNs) throws IOException {
        if (IS_REFUSING.get()) throw new IOException("refused");
        System.out.println(Bytes.hex(record));
    }

    private static void run(String[] step) throws Exception {
        switch (step[0]) {
            case "events": events(step[1], Integer.parseInt(step[2]), Long.parseLong(step[3]),
                    Long.parseLong(step[4]), step[5]); break;
            case "refuse": IS_REFUSING.set(true); break;
            case "accept": IS_REFUSING.set(false); break;
            case "limit": instance.maxOpenWindows = Integer.parseInt(step[1]); break;
            case "patience": instance.maxWaitMs = Long.parseLong(step[1]); break;
            case "pause": Thread.sleep(Long.parseLong(step[1])); break;
            case "report": report(false); break;
            case "last": report(true); break;
            default: throw new IllegalArgumentException(step[0]);
        }
    }

    private static void report(boolean isLast) throws Exception {
        try {
            instance.report(isLast, 1000);
        } catch (IOException refused) {
            System.err.println("refused");
        }
    }

    private static void events(String name, int count, long time, long step, String outcomes) throws Exception {
        AuditedTopic topic = instance.topics.computeIfAbsent(
                name, absent -> new AuditedTopic(name, isExact, settledAfterMs, instance));
        instance.announce(topic, 1000);
        for (int n = 0; n < count; n++) {
            AuditHeader header = topic.send(time + n * step);
            if (header == null) topic.sendUnaudited();
            char outcome = outcomes.charAt(n % outcomes.length());
            if (outcome == '-') continue;
            for (int times = outcome == 'd' ? 2 : 1; times > 0; times--)
                if (!isExact) topic.settleOne(outcome == 'a', isTransactional);
                else if (header != null) topic.settle(header, outcome == 'a');
        }
    }
}
