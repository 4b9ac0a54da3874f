package io.millrace.audit;

import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.Map;

import com.sun.management.OperatingSystemMXBean;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * CPU time of onSend and onAcknowledgement. No record is sent.
 *
 * EVENTS ROUNDS BYTES CLIENT; with BYTES above 0 the values are that many bytes, which are hashed, else strings. An
 * "older" client's acknowledgements do not name their event. Each line of the output is a round, in nanoseconds of
 * one event: thread without interceptor, thread with it, process without it, process with it.
 */
public class Cost {
    private static final int OUTSTANDING = 1000;
    private static final int WARM_UP = 5;
    private static final OperatingSystemMXBean PROCESS =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final RecordMetadata METADATA = new RecordMetadata(new TopicPartition("t", 0), 0, 0, 0, 0, 0);
    private static boolean isOlder;
    private static Object value;
    private static AuditInterceptor<String, Object> interceptor;
    private static Instance instance;
    private static long checksum;

    public static void main(String[] args) throws ReflectiveOperationException {
        int events = Integer.parseInt(args[0]);
        isOlder = args[3].equals("older");
        int bytes = Integer.parseInt(args[2]);
        value = bytes > 0 ? new byte[bytes] : "value";
        interceptor = new AuditInterceptor<>();
        Class<?> serializer = bytes > 0 ? ByteArraySerializer.class : StringSerializer.class;
        interceptor.configure(Map.of("bootstrap.servers", "127.0.0.1:1", "value.serializer", serializer.getName()));
        Field field = AuditInterceptor.class.getDeclaredField("instance");
        field.setAccessible(true);
        instance = (Instance) field.get(interceptor);
        AuditedTopic topic = new AuditedTopic("t", !isOlder, 0, instance);
        topic.isAnnounced = true;
        instance.topics.put("t", topic);
        for (int round = -WARM_UP; round < Integer.parseInt(args[1]); round++) {
            long[] without = measure(events, false);
            long[] with = measure(events, true);
            if (round >= 0)
                System.out.printf("%d %d %d %d%n", without[0] / events, with[0] / events,
                        without[1] / events, with[1] / events);
        }
        if (checksum == 0) throw new IllegalStateException("no event had a time");
        System.exit(0);
    }

    private static long[] measure(int events, boolean isAudited) {
        Deque<ProducerRecord<String, Object>> sent = new ArrayDeque<>();
        long process = PROCESS.getProcessCpuTime();
        long thread = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
        for (int n = 0; n < events; n++) {
            ProducerRecord<String, Object> record = new ProducerRecord<>("t", "k", value);
            sent.add(isAudited ? interceptor.onSend(record) : record);
            if (sent.size() > OUTSTANDING) settle(sent.poll(), isAudited);
        }
        while (!sent.isEmpty()) settle(sent.poll(), isAudited);
        thread = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - thread;
        process = PROCESS.getProcessCpuTime() - process;
        forget(isAudited ? events : 0);
        return new long[] {thread, process};
    }

    private static void settle(ProducerRecord<String, Object> record, boolean isAudited) {
        checksum += record.headers().hashCode();
        if (!isAudited) return;
        if (isOlder) interceptor.onAcknowledgement(METADATA, null);
        else interceptor.onAcknowledgement(METADATA, null, record.headers());
    }

    /** Take the outcomes as a report does. */
    private static void forget(int events) {
        int taken = 0;
        for (AuditedTopic.Window window : instance.topics.get("t").take(0).values())
            taken += window.acknowledged.count;
        if (taken != events) throw new IllegalStateException(taken + " of " + events + " events have an outcome");
        instance.kept.set(0);
    }
}
