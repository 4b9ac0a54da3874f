package io.millrace.audit;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

import org.apache.kafka.clients.producer.ProducerInterceptor;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Numbers the events of a producer and reports their outcomes. The property {@code interceptor.classes} names it. */
public final class AuditInterceptor<K, V> implements ProducerInterceptor<K, V> {
    private static final Logger LOGGER = LoggerFactory.getLogger(AuditInterceptor.class);
    /** Names of topics; the auditor rejects a whole report with any other name. */
    private static final Pattern TOPIC_NAME = Pattern.compile("(?!\\.{1,2}$)[a-zA-Z0-9._-]{1,249}");
    private static final long HELLO_WAIT_MS = 15_000;
    private static final long CLOSE_WAIT_MS = 5_000;
    private static final long SETTLE_SPARE_MS = 10_000;
    private static final long EARLIEST_MS = 946_684_800_000L; // 2000-01-01
    private static final long DAY_MS = 86_400_000;

    private Pattern topics;
    private boolean isExact;
    /** Kafka's own serializer of bytes sends the values as they are. */
    private boolean valuesAreBytes;
    private long settledAfterMs;
    private boolean isTransactional;
    private Instance instance;
    private Reporter reporter;
    private boolean hasLeft;

    @Override
    public void configure(Map<String, ?> configs) {
        String service = name(configs, "millrace.service", text(configs, "client.id", "producer"));
        String server = name(configs, "millrace.server", hostName());
        topics = pattern(text(configs, "millrace.topics", ".*"));
        long latenessMs = number(configs, "millrace.lateness.ms", 60_000);
        settledAfterMs = settledAfterMs(configs);
        isTransactional = !text(configs, "transactional.id", "").isEmpty();
        valuesAreBytes = text(configs, "value.serializer", "").endsWith(ByteArraySerializer.class.getName());
        isExact = acknowledgementsHaveHeaders();
        warnOfProperties(configs);
        instance = new Instance(
                server, service, latenessMs, (record, untilNs) -> reporter.send(record, untilNs));
        reporter = Reporter.join(instance, configs);
    }

    private static void warnOfProperties(Map<String, ?> configs) {
        String acks = text(configs, "acks", "all").trim();
        boolean isIdempotent = !text(configs, "enable.idempotence", "true").trim().equalsIgnoreCase("false");
        if (!isIdempotent || !(acks.equals("all") || acks.equals("-1")))
            LOGGER.warn("millrace: a retry may write an event twice, and the audit then reports a duplicate: "
                    + "set acks=all and enable.idempotence=true");
        // The text of a list ends with a bracket.
        String names = text(configs, "interceptor.classes", "").replaceFirst("[\\]\\s]+$", "");
        if (!names.endsWith(AuditInterceptor.class.getName()))
            LOGGER.warn("millrace: interceptors after AuditInterceptor may change what the audit compares: "
                    + "name AuditInterceptor last in interceptor.classes");
    }

    @Override
    public ProducerRecord<K, V> onSend(ProducerRecord<K, V> record) {
        AuditedTopic topic = topic(record.topic());
        if (topic == null) return record;
        long now = System.currentTimeMillis();
        long time = record.timestamp() == null ? now : record.timestamp();
        // A record that was sent before has read-only headers.
        ProducerRecord<K, V> sent = new ProducerRecord<>(
                record.topic(), record.partition(), time, record.key(), record.value(), record.headers());
        sent.headers().remove(AuditHeader.NAME);
        if (time < EARLIEST_MS || time > now + DAY_MS || !isAnnounced(topic)) {
            topic.sendUnaudited();
            return sent;
        }
        AuditHeader header = topic.send(time);
        if (header == null) {
            reporter.warn("events of " + topic.name + " are sent without an audit header, because "
                    + instance.maxOpenWindows + " windows of this producer are open: send events in the order "
                    + "of their times, or use a new producer for the next ones");
            topic.sendUnaudited();
            return sent;
        }
        sent.headers().add(header);
        if (valuesAreBytes) header.hash((byte[]) record.value());
        return sent;
    }

    /** Return the counts of a topic, or null if the topic is not audited. */
    private AuditedTopic topic(String name) {
        AuditedTopic known = instance.topics.get(name);
        if (known != null) return known;
        if (!TOPIC_NAME.matcher(name).matches() || !topics.matcher(name).matches()) return null;
        return instance.topics.computeIfAbsent(
                name, absent -> new AuditedTopic(name, isExact, settledAfterMs, instance));
    }

    /** Announce a topic before its first event. The reporting thread goes on if that takes too long. */
    private boolean isAnnounced(AuditedTopic topic) {
        if (topic.isAnnounced) return true;
        if (topic.isWanted) return false;
        try {
            instance.announce(topic, HELLO_WAIT_MS);
        } catch (Exception error) {
            topic.isWanted = true;
            if (error instanceof InterruptedException) Thread.currentThread().interrupt();
            reporter.warn("events of " + topic.name + " are sent without an audit header until a record in "
                    + "the topic audit is acknowledged", error);
        }
        return topic.isAnnounced;
    }

    /** Note an outcome; called by kafka-clients 4.1 and newer. */
    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception error, Headers headers) {
        Header header = headers == null ? null : headers.lastHeader(AuditHeader.NAME);
        if (!(header instanceof AuditHeader)) return;
        AuditHeader own = (AuditHeader) header;
        own.topic.settle(own, error == null);
    }

    /** Note the outcome of some event; called by older versions of kafka-clients. */
    @Override
    public void onAcknowledgement(RecordMetadata metadata, Exception error) {
        if (isExact || metadata == null) return;
        AuditedTopic topic = instance.topics.get(metadata.topic());
        if (topic != null) topic.settleOne(error == null, isTransactional);
    }

    /** Send the last report. If a callback closes the client, other events have their outcomes only later. */
    @Override
    public void close() {
        if (instance == null) return;
        boolean wasInterrupted = Thread.interrupted(); // the last report is sent nevertheless
        if (!end(false)) {
            Thread later = new Thread(() -> end(true), "millrace-audit-close");
            later.setDaemon(false);
            later.start();
        }
        if (wasInterrupted) Thread.currentThread().interrupt();
    }

    /** Send the last report and leave. Unless it waits for outcomes, return false if an event has none. */
    private synchronized boolean end(boolean waits) {
        if (hasLeft) return true;
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(CLOSE_WAIT_MS);
        boolean wasInterrupted = false;
        String problem;
        do {
            try {
                boolean hasEnded = instance.report(
                        true, Math.max(1, TimeUnit.NANOSECONDS.toMillis(until - System.nanoTime())));
                if (!hasEnded && !waits) return false;
                problem = hasEnded ? null : "the outcome of some events is not known";
            } catch (InterruptedException error) {
                problem = error.toString();
                wasInterrupted = true;
            } catch (Exception error) {
                problem = error.toString();
            }
        } while (problem != null && !wasInterrupted && pause(until));
        if (problem != null)
            LOGGER.warn("millrace: the last report of instance {} is missing. Accept the instance: {}",
                    instance.number, problem);
        reporter.leave(instance, CLOSE_WAIT_MS);
        hasLeft = true;
        if (wasInterrupted) Thread.currentThread().interrupt();
        return true;
    }

    private static boolean pause(long untilNs) {
        LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(100));
        return System.nanoTime() < untilNs;
    }

    /** Return the time after which the client has given up on an event. */
    static long settledAfterMs(Map<String, ?> configs) {
        long retrying = Math.max(timeout(configs, "delivery.timeout.ms", 120_000),
                timeout(configs, "linger.ms", 0) + timeout(configs, "request.timeout.ms", 30_000));
        return timeout(configs, "max.block.ms", 60_000) + retrying + SETTLE_SPARE_MS;
    }

    /** Return a time that can be added to others: Kafka Connect sets the largest long. */
    private static long timeout(Map<String, ?> configs, String name, long otherwise) {
        return Math.min(number(configs, name, otherwise), Integer.MAX_VALUE);
    }

    private static boolean acknowledgementsHaveHeaders() {
        try {
            ProducerInterceptor.class.getMethod(
                    "onAcknowledgement", RecordMetadata.class, Exception.class, Headers.class);
            return true;
        } catch (NoSuchMethodException older) {
            return false;
        }
    }

    private static String hostName() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException nameless) {
            return "unknown";
        }
    }

    private static String text(Map<String, ?> configs, String name, String otherwise) {
        Object value = configs.get(name);
        return value == null || value.toString().isEmpty() ? otherwise : value.toString();
    }

    private static String name(Map<String, ?> configs, String name, String otherwise) {
        String value = text(configs, name, otherwise);
        if (value.getBytes(StandardCharsets.UTF_8).length > 255)
            throw new ConfigException(name, value, "must have at most 255 bytes");
        return value;
    }

    private static long number(Map<String, ?> configs, String name, long otherwise) {
        String value = text(configs, name, Long.toString(otherwise));
        try {
            long number = Long.parseLong(value.trim());
            if (number >= 0) return number;
        } catch (NumberFormatException wrong) {
            // refused below
        }
        throw new ConfigException(name, value, "must be a number of milliseconds, 0 or more");
    }

    private static Pattern pattern(String expression) {
        try {
            return Pattern.compile(expression);
        } catch (PatternSyntaxException wrong) {
            throw new ConfigException("millrace.topics", expression, wrong.getMessage());
        }
    }
}
