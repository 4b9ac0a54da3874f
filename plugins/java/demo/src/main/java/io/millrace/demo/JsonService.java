package io.millrace.demo;

import java.io.BufferedReader;
import java.io.FileReader;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * A service that sends JSON and knows nothing of Millrace: its file of properties alone makes it audited.
 *
 * Each line of standard input is an event: topic, time in milliseconds and JSON, separated by tabs.
 */
public final class JsonService {
    private JsonService() {}

    /** Send every event with the properties of a file. Fail if an event was not acknowledged. */
    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        try (Reader file = new FileReader(arguments[0], StandardCharsets.UTF_8)) {
            properties.load(file);
        }
        BufferedReader events = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties)) {
            for (String line = events.readLine(); line != null; line = events.readLine()) {
                String[] event = line.split("\t", 3);
                producer.send(
                        new ProducerRecord<>(event[0], null, Long.valueOf(event[1]), null, event[2]),
                        (metadata, error) -> failure.compareAndSet(null, error));
            }
        }
        if (failure.get() != null) throw failure.get();
    }
}
