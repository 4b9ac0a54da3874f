import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;

import com.fasterxml.jackson.databind.ObjectMapper;
import net.jpountz.xxhash.XXHash64;
import net.jpountz.xxhash.XXHashFactory;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.generic.GenericRecordBuilder;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer whose events Millrace's audit proves, written from docs/audit-protocol.md alone.
 *
 * <p>One instance: `send` events, call `report` every few seconds, `close` at the end. Safe between threads.
 */
public final class AuditedProducer implements AutoCloseable {
    private static final long WINDOW_MS = 600_000, FIRST_EVENT_MS = 946_684_800_000L, DAY_MS = 86_400_000;
    private static final XXHash64 XXH64 = XXHashFactory.fastestInstance().hash64();
    private static final SecureRandom RANDOM = new SecureRandom();

    /** Events of one topic and window. */
    private record Window(String topic, long start) implements Comparable<Window> {
        public int compareTo(Window other) {
            int byTopic = topic.compareTo(other.topic);
            return byTopic != 0 ? byTopic : Long.compare(start, other.start);
        }
    }

    /** What has its outcome and no report has told. */
    private static final class News {
        final TreeSet<Long> acknowledged = new TreeSet<>(), failed = new TreeSet<>();
        long fingerprint, failedFingerprint;
    }

    private final KafkaProducer<byte[], byte[]> kafka;
    private final String registry, cluster, server, service;
    private final Path schemas;
    private final long instance = RANDOM.nextLong() >>> 1;
    private final Map<String, Schema> parsed = new HashMap<>();
    private final Map<String, Integer> ids = new HashMap<>();
    private final Map<String, Long> sequences = new HashMap<>();
    // Kafka calls back in the thread that hears acknowledgements. So nobody waits for one with this lock in hand.
    private final Object outcomes = new Object();
    private final TreeMap<Window, Integer> pending = new TreeMap<>();
    private TreeMap<Window, News> news = new TreeMap<>();
    private long number, promised = Long.MIN_VALUE, closedThrough = Long.MIN_VALUE;
    private byte[] key = newKey(), unheard;

    public AuditedProducer(
            String bootstrap, String registry, Path schemas, String cluster, String server, String service) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("enable.idempotence", "true");
        settings.put("max.request.size", String.valueOf(8 << 20));
        kafka = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        this.registry = registry;
        this.schemas = schemas;
        this.cluster = cluster;
        this.server = server;
        this.service = service;
    }

    /** Hands over an event of a schema in the schemas' folder; its sequence number. */
    public synchronized long send(String topic, String schema, long time, Map<String, ?> fields) throws Exception {
        if (time < FIRST_EVENT_MS || time > System.currentTimeMillis() + DAY_MS)
            throw new IllegalArgumentException("no time of an event: " + time);
        Schema of = schema(schema);
        GenericRecordBuilder event = new GenericRecordBuilder(of);
        fields.forEach(event::set);
        GenericRecord header = new GenericData.Record(of.getField("header").schema());
        header.put("time", time);
        header.put("server", server);
        header.put("service", service);
        header.put("instance", instance);
        header.put("sequence", sequences.getOrDefault(topic, 0L));
        byte[] value = encode(schema, event.set("header", header).build());
        if (!sequences.containsKey(topic)) hello(topic);
        long sequence = sequences.merge(topic, 1L, Long::sum) - 1; // from here on the number is used
        long fingerprint = XXH64.hash(value, 0, value.length, 0);
        Window window = new Window(topic, Math.floorDiv(time, WINDOW_MS) * WINDOW_MS);
        synchronized (outcomes) {
            pending.merge(window, 1, Integer::sum);
        }
        kafka.send(
                new ProducerRecord<>(topic, null, time, null, value),
                (metadata, error) -> settled(window, sequence, fingerprint, error != null));
        return sequence;
    }

    private void settled(Window window, long sequence, long fingerprint, boolean hasFailed) {
        synchronized (outcomes) {
            pending.merge(window, -1, (now, less) -> now + less == 0 ? null : now + less);
            News one = news.computeIfAbsent(window, absent -> new News());
            if (hasFailed) {
                one.failed.add(sequence);
                one.failedFingerprint += fingerprint;
            } else {
                one.acknowledged.add(sequence);
                one.fingerprint += fingerprint;
            }
        }
    }

    /** Promises that no event before that time will follow; the next report says so. */
    public synchronized void closedThrough(long time) {
        promised = Math.max(promised, time);
    }

    private void hello(String topic) throws Exception {
        sayUnheard();
        GenericRecord hello = record("AuditHello");
        hello.put("topic", topic);
        hello.put("closedThrough", closedThrough);
        hello.put("seal", fixed(hello, "seal", sha256(key)));
        say(encode("AuditHello", hello));
    }

    /** Tells what has become certain since the last report. */
    public synchronized void report() throws Exception {
        sayUnheard();
        TreeMap<Window, News> untold;
        long open;
        synchronized (outcomes) {
            open = pending.keySet().stream().mapToLong(Window::start).min().orElse(Long.MAX_VALUE);
            untold = news;
            news = new TreeMap<>();
        }
        long closes = Math.max(closedThrough, Math.min(promised, open));
        if (sequences.isEmpty() || (untold.isEmpty() && closes == closedThrough)) return;
        byte[] nextKey = newKey();
        GenericRecord report = record("AuditReport");
        report.put("number", number);
        report.put("key", fixed(report, "key", key));
        report.put("seal", fixed(report, "seal", sha256(nextKey)));
        report.put("closedThrough", closes);
        Schema ofWindow = report.getSchema().getField("windows").schema().getElementType();
        List<GenericRecord> windows = new ArrayList<>();
        untold.forEach((window, told) -> {
            GenericRecord one = new GenericData.Record(ofWindow);
            one.put("topic", window.topic());
            one.put("window", window.start());
            one.put("acknowledged", ranges(told.acknowledged));
            one.put("failed", ranges(told.failed));
            one.put("fingerprint", told.fingerprint);
            one.put("failedFingerprint", told.failedFingerprint);
            windows.add(one);
        });
        report.put("windows", windows);
        report.put("fingerprinted", true);
        unheard = encode("AuditReport", report);
        number++;
        key = nextKey;
        closedThrough = closes;
        sayUnheard();
    }

    /** Waits for every outcome and says that nothing will follow. */
    @Override
    public void close() throws Exception {
        kafka.flush();
        closedThrough(Long.MAX_VALUE);
        report();
        kafka.close();
    }

    /** The same report again until it is acknowledged; it counts once. */
    private void sayUnheard() throws Exception {
        while (unheard != null) {
            try {
                say(unheard);
                unheard = null;
            } catch (ExecutionException error) {
                if (!(error.getCause() instanceof RetriableException)) throw error;
            }
        }
    }

    private void say(byte[] value) throws Exception {
        kafka.send(new ProducerRecord<>("audit", 0, null, value)).get();
    }

    private GenericRecord record(String schema) throws IOException {
        GenericRecord record = new GenericData.Record(schema(schema));
        record.put("time", System.currentTimeMillis());
        record.put("cluster", cluster);
        record.put("server", server);
        record.put("service", service);
        record.put("instance", instance);
        return record;
    }

    private static GenericData.Fixed fixed(GenericRecord record, String field, byte[] bytes) {
        return new GenericData.Fixed(record.getSchema().getField(field).schema(), bytes);
    }

    /** For each range the distance from the last number before it, then how many more numbers follow. */
    private static List<Long> ranges(TreeSet<Long> sequences) {
        List<Long> flat = new ArrayList<>();
        long last = 0;
        for (long sequence : sequences) {
            int end = flat.size() - 1;
            if (end > 0 && sequence == last + 1) {
                flat.set(end, flat.get(end) + 1);
            } else {
                flat.add(sequence - last);
                flat.add(0L);
            }
            last = sequence;
        }
        return flat;
    }

    private byte[] encode(String schema, GenericRecord record) throws Exception {
        ByteArrayOutputStream value = new ByteArrayOutputStream();
        value.write(0);
        value.write(ByteBuffer.allocate(4).putInt(id(schema)).array());
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(value, null);
        new GenericDatumWriter<GenericRecord>(schema(schema)).write(record, encoder);
        encoder.flush();
        return value.toByteArray();
    }

    private Schema schema(String name) throws IOException {
        if (!parsed.containsKey(name)) parsed.put(name, new Schema.Parser().parse(Files.readString(file(name))));
        return parsed.get(name);
    }

    /** The registry's id of a schema, which is registered there under its name. */
    private int id(String name) throws Exception {
        if (!ids.containsKey(name)) {
            ObjectMapper json = new ObjectMapper();
            String body = json.writeValueAsString(Map.of("schema", Files.readString(file(name))));
            HttpRequest request = HttpRequest.newBuilder(URI.create(registry + "/subjects/" + name + "/versions"))
                    .header("Content-Type", "application/vnd.schemaregistry.v1+json")
                    .POST(HttpRequest.BodyPublishers.ofString(body))
                    .build();
            HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
            String answer = client.send(request, BodyHandlers.ofString()).body();
            ids.put(name, json.readTree(answer).required("id").asInt());
        }
        return ids.get(name);
    }

    private Path file(String schema) {
        return schemas.resolve(schema + ".avsc");
    }

    private static byte[] newKey() {
        byte[] key = new byte[16];
        RANDOM.nextBytes(key);
        return key;
    }

    private static byte[] sha256(byte[] key) throws Exception {
        return MessageDigest.getInstance("SHA-256").digest(key);
    }

    /**
     * Sends events of two windows and reports them. With a last argument it then sends so many more, reports nothing
     * of them and waits to be killed.
     *
     * <p>BOOTSTRAP REGISTRY SCHEMAS CLUSTER TOPIC EVENTS [UNREPORTED]
     */
    public static void main(String[] args) throws Exception {
        AuditedProducer producer =
                new AuditedProducer(args[0], args[1], Path.of(args[2]), args[3], "java-1", "shop");
        System.out.println(producer.instance);
        String topic = args[4];
        long start = 1_431_856_800_000L;
        int events = Integer.parseInt(args[5]);
        for (int n = 0; n < events; n++) {
            producer.send(topic, "PageView", start + n * 2 * WINDOW_MS / events, pageView(n));
            if (n % 300 == 0) producer.report();
        }
        if (args.length == 6) {
            producer.close();
            return;
        }
        producer.kafka.flush();
        producer.report();
        for (int n = 0; n < Integer.parseInt(args[6]); n++) producer.send(topic, "PageView", start, pageView(n));
        producer.kafka.flush();
        System.out.println("sent");
        Thread.sleep(Long.MAX_VALUE);
    }

    private static Map<String, ?> pageView(int n) {
        return Map.of("clientAddress", "10.0.0.1", "method", "GET", "url", "/" + n, "protocol", "HTTP/1.1", "status", 200);
    }
}
