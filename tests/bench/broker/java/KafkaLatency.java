import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Time from send to poll with Apache Kafka's Java client, both ends in one process: one clock. */
public final class KafkaLatency {
  private KafkaLatency() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = Load.options(arguments);
    Load.Latencies latencies = new Load.Latencies(options);
    TopicPartition partition = new TopicPartition(options.get("topic"), 0);
    Properties common = new Properties();
    common.put("bootstrap.servers", options.get("bootstrap"));
    try (KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(common, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        KafkaProducer<byte[], byte[]> producer = producer(common)) {
      consumer.assign(List.of(partition));
      consumer.seekToEnd(List.of(partition));
      consumer.position(partition);
      Thread reader = new Thread(() -> read(consumer, latencies));
      reader.start();
      latencies.run(body -> producer.send(new ProducerRecord<>(partition.topic(), 0, null, body)));
      consumer.wakeup();
      reader.join();
    }
  }

  private static KafkaProducer<byte[], byte[]> producer(Properties common) {
    Properties settings = new Properties();
    settings.putAll(common);
    settings.put("acks", "1");
    settings.put("enable.idempotence", "false");
    settings.put("linger.ms", "0");
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }

  private static void read(KafkaConsumer<byte[], byte[]> consumer, Load.Latencies latencies) {
    try {
      while (true) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofSeconds(1))) {
          latencies.received(record.value());
        }
      }
    } catch (org.apache.kafka.common.errors.WakeupException done) {
      // every message has come back
    }
  }
}
