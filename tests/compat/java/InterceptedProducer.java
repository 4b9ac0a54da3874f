import java.io.IOException;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.locks.LockSupport;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.header.internals.RecordHeaders;

/**
 * A service that knows nothing of the audit: JSON with StringSerializer, and what its callbacks were told.
 *
 * TOPIC EVENTS CASE OUTCOMES name=value ...; OUTCOMES gets a line for each event: a acknowledged, f failed, - neither.
 */
public class InterceptedProducer {
    private static final String TOO_LARGE = " ".repeat(2_000_000);
    private static final long PAST_MS = 1_431_856_800_000L; // 2015-05-17T10:00Z
    /** Another interceptor: it changes the value, and sends the record without its headers. */
    public static class Masking implements ProducerInterceptor<String, String> {
        @Override
        public ProducerRecord<String, String> onSend(ProducerRecord<String, String> record) {
            return new ProducerRecord<>(record.topic(), record.key(), record.value().replace("}", " }"));
        }

        @Override
        public void onAcknowledgement(RecordMetadata metadata, Exception error) {}

        @Override
        public void configure(Map<String, ?> configs) {}

        @Override
        public void close() {}
    }

    private static final AtomicBoolean IS_OPEN = new AtomicBoolean(true);
    private static String topic, how;
    private static int events;
    private static AtomicIntegerArray outcomes;

    public static void main(String[] args) throws Exception {
        topic = args[0];
        events = Integer.parseInt(args[1]);
        how = args[2];
        int producers = how.equals("two") || how.equals("close twice") ? 2 : 1;
        Properties properties = new Properties();
        properties.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        properties.put("value.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        for (int n = 4; n < args.length; n++) {
            String[] pair = args[n].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        Thread.currentThread().setContextClassLoader(InterceptedProducer.class.getClassLoader()); // it finds Masking
        outcomes = new AtomicIntegerArray(producers * events);
        Thread[] threads = new Thread[producers];
        for (int n = 0; n < producers; n++) {
            int first = n * events;
            KafkaProducer<String, String> producer = new KafkaProducer<>(properties);
            threads[n] = new Thread(() -> send(producer, first));
        }
        System.out.println("reporting threads: " + reportingThreads());
        for (Thread thread : threads) thread.start();
        for (Thread thread : threads) thread.join();
        try (PrintWriter out = new PrintWriter(args[3])) {
            for (int n = 0; n < outcomes.length(); n++) out.println("-af".charAt(outcomes.get(n)));
        }
        System.out.println("reporting threads left: " + reportingThreads());
    }

    private static long reportingThreads() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().equals("millrace-audit")).count();
    }

    private static void send(KafkaProducer<String, String> producer, int first) {
        boolean isTransactional = how.equals("transactions");
        if (how.endsWith("transactions")) producer.initTransactions();
        if (how.equals("no topic")) producer.send(new ProducerRecord<>("no/topic", "value"));
        for (int n = 0; n < events; n++) {
            if (isTransactional && n % 500 == 0) producer.beginTransaction();
            if (how.equals("broken transactions") && n % 3 != 1) producer.beginTransaction();
            int id = first + n;
            ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, null, time(n), "k" + n % 1009, value(id), headers());
            try {
                producer.send(record, (metadata, error) -> {
                    outcomes.set(id, error == null ? 1 : 2);
                    if (how.equals("close in callback") && IS_OPEN.getAndSet(false)) producer.close(Duration.ZERO);
                });
            } catch (KafkaException error) { // an earlier event of the transaction has failed
                outcomes.set(id, 2);
            }
            if (how.equals("broken transactions") && n % 3 == 1) producer.abortTransaction();
            if (how.equals("broken transactions") && n % 3 == 2) producer.commitTransaction();
            if (isTransactional && n % 500 == 499) {
                if (n / 500 % 3 == 2) producer.abortTransaction();
                else producer.commitTransaction();
            }
            if ((how.equals("slow") || how.equals("pause")) && n % 10 == 0) LockSupport.parkNanos(5_000_000);
            if (n == events / 4) System.out.println("a quarter is sent");
            if (n == events / 2 && how.equals("pause")) waitForLine();
        }
        if (how.equals("wait")) {
            producer.flush();
            System.out.println("flushed");
            LockSupport.park();
        }
        if (how.equals("close in callback")) {
            waitForOutcomes();
            return;
        }
        if (how.equals("close twice")) {
            if (first == 0) producer.close();
            else waitForLine();
        }
        if (how.equals("wait, close(0)")) waitForLine();
        if (how.endsWith("close(0)")) producer.close(Duration.ZERO);
        else producer.close();
    }

    /** Wait until each event has its outcome, and the last report is sent. */
    private static void waitForOutcomes() {
        for (int n = 0; n < events; n++) while (outcomes.get(n) == 0) LockSupport.parkNanos(1_000_000);
        while (reportingThreads() > 0) LockSupport.parkNanos(1_000_000);
    }

    /** Wait until the test writes a line. */
    private static void waitForLine() {
        try {
            if (System.in.read() < 0) throw new IllegalStateException("the test has ended");
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Headers of a message that another producer has sent, with that producer's audit headers. */
    private static RecordHeaders headers() {
        RecordHeaders headers = new RecordHeaders();
        if (!how.equals("forwarded")) return headers;
        headers.add("millrace.audit", new byte[29]).add("trace", new byte[] {7}).add("millrace.audit", new byte[1]);
        headers.setReadOnly();
        return headers;
    }

    private static String value(int id) {
        String value = "{\"n\": " + id + "}";
        if (how.equals("broken") && id % 1000 == 7) return "{\"n\": " + id;
        boolean isTooLarge = how.equals("large") && id % 100 == 7 || how.equals("broken transactions") && id % 3 == 0;
        return isTooLarge ? value + TOO_LARGE : value;
    }

    /** The event's time; null is the present. */
    private static Long time(int n) {
        return how.equals("past") || how.equals("broken") ? PAST_MS + n : null;
    }
}
