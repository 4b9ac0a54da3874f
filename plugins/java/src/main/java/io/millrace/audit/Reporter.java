package io.millrace.audit;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Pattern;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The thread and the producer that send the audit records of all audited producers of one connection.
 *
 * <p>The producer is the reporter's own, so its records are never part of a transaction.
 */
final class Reporter {
    private static final Logger LOGGER = LoggerFactory.getLogger(Reporter.class);
    private static final Pattern CONNECTION =
            Pattern.compile("bootstrap\\.servers|security\\..*|sasl\\..*|ssl\\..*|client\\.dns\\.lookup");
    private static final long SEND_MS = 10_000;
    /** Time between reports. A refused login or right costs a new connection each time. */
    private static final long PAUSE_MS = 10_000;
    private static final long WARN_NS = TimeUnit.MINUTES.toNanos(1);
    private static final Map<Map<String, Object>, Reporter> SHARED = new HashMap<>();
    private static final AtomicInteger MADE = new AtomicInteger();

    private final Map<String, Object> connection;
    /** Audited producers that have joined and not left. Changes are guarded by SHARED. */
    private final List<Instance> instances = new CopyOnWriteArrayList<>();
    private final Thread thread;
    private KafkaProducer<byte[], byte[]> producer;
    private volatile boolean isEnding;
    private volatile long warnedNs = System.nanoTime() - WARN_NS;

    private Reporter(Map<String, Object> connection) {
        this.connection = connection;
        thread = new Thread(this::run, "millrace-audit");
        thread.setDaemon(true);
        thread.start();
    }

    /** Return the reporter of a producer's connection, which reports of the instance until {@link #leave}. */
    static Reporter join(Instance instance, Map<String, ?> configs) {
        Map<String, Object> connection = new HashMap<>();
        configs.forEach((name, value) -> {
            if (value != null && CONNECTION.matcher(name).matches()) connection.put(name, value);
        });
        synchronized (SHARED) {
            Reporter reporter = SHARED.computeIfAbsent(connection, Reporter::new);
            reporter.instances.add(instance);
            return reporter;
        }
    }

    /** Report of an instance no more, and end with the last one. */
    void leave(Instance instance, long waitMs) {
        synchronized (SHARED) {
            if (!instances.remove(instance) || !instances.isEmpty()) return;
            SHARED.remove(connection);
        }
        isEnding = true;
        thread.interrupt();
        try {
            thread.join(waitMs);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        closeProducer();
    }

    private void run() {
        while (!isEnding) {
            try {
                Thread.sleep(PAUSE_MS);
            } catch (InterruptedException ending) {
                return;
            }
            for (Instance instance : instances) tell(instance);
        }
    }

    private void tell(Instance instance) {
        try {
            for (AuditedTopic topic : instance.topics.values())
                if (topic.isWanted && !topic.isAnnounced && !isEnding) instance.announce(topic, SEND_MS);
            if (!isEnding) instance.report(false, SEND_MS);
        } catch (Exception error) {
            if (!isEnding) warn("audit records are not acknowledged, they are sent again", error);
        }
    }

    /** Send one audit record, and wait until it is acknowledged. */
    void send(byte[] record, long untilNs) throws Exception {
        KafkaProducer<byte[], byte[]> current = producer();
        try {
            current.send(new ProducerRecord<>("audit", 0, null, record))
                    .get(Math.max(1, untilNs - System.nanoTime()), TimeUnit.NANOSECONDS);
        } catch (ExecutionException error) {
            // After an error that is not retriable the client may refuse everything.
            if (!(error.getCause() instanceof RetriableException)) closeProducer();
            throw error;
        }
    }

    private synchronized KafkaProducer<byte[], byte[]> producer() {
        if (producer == null) {
            Map<String, Object> settings = new HashMap<>(connection);
            settings.put("client.id", "millrace-audit-" + MADE.incrementAndGet());
            settings.put("acks", "all");
            settings.put("enable.idempotence", true);
            settings.put("max.request.size", 8 << 20);
            settings.put("buffer.memory", 32L << 20);
            settings.put("max.block.ms", 5_000);
            settings.put("request.timeout.ms", 5_000);
            settings.put("delivery.timeout.ms", 10_000);
            producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        }
        return producer;
    }

    private synchronized void closeProducer() {
        if (producer != null) producer.close(Duration.ZERO);
        producer = null;
    }

    /** Log a problem, at most once a minute. */
    void warn(String what) {
        if (System.nanoTime() - warnedNs < WARN_NS) return;
        warnedNs = System.nanoTime();
        LOGGER.warn("millrace: {}", what);
    }

    void warn(String what, Exception error) {
        Throwable cause = error.getCause() == null ? error : error.getCause();
        warn(what + ": " + cause);
    }
}
