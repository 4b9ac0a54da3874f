import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.ConsumerBuilder;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.EnvironmentBuilder;
import com.rabbitmq.stream.MessageHandler;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import com.rabbitmq.stream.codec.SimpleCodec;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;

/**
 * A RabbitMQ stream over its own protocol: produce, consume, latency.
 *
 * The simple codec sends the bytes as they are, without AMQP 1.0 around them: the fastest this client can do.
 */
public final class StreamLoad {
  private StreamLoad() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = Load.options(arguments);
    int port = Load.number(options, "port");
    EnvironmentBuilder builder =
        Environment.builder()
            .host("127.0.0.1")
            .port(port)
            .addressResolver(address -> new Address("127.0.0.1", port))
            .codec(new SimpleCodec());
    try (Environment environment = builder.build()) {
      switch (options.get("do")) {
        case "create" -> environment.streamCreator().stream(options.get("stream")).create();
        case "delete" -> environment.deleteStream(options.get("stream"));
        case "produce" -> produce(environment, options);
        case "consume" -> consume(environment, options);
        default -> latency(environment, options);
      }
    }
    System.exit(0); // its event loops take two more seconds to end
  }

  /** `--batch` messages a frame; `--sub-entry` more than 1 packs so many into one entry of the log. */
  private static Producer producer(Environment environment, Map<String, String> options) {
    int subEntry = Integer.parseInt(options.getOrDefault("sub-entry", "1"));
    ProducerBuilder builder =
        environment.producerBuilder().stream(options.get("stream"))
            .batchSize(Integer.parseInt(options.getOrDefault("batch", "100")))
            .maxUnconfirmedMessages(100_000)
            .enqueueTimeout(java.time.Duration.ZERO);
    return (subEntry > 1 ? builder.subEntrySize(subEntry) : builder).build();
  }

  private static void produce(Environment environment, Map<String, String> options) throws Exception {
    int messages = Load.number(options, "messages");
    int rate = Integer.parseInt(options.getOrDefault("rate", "0"));
    CountDownLatch confirmed = new CountDownLatch(1);
    AtomicLong answers = new AtomicLong();
    byte[] body = Load.message();
    try (Producer producer = producer(environment, options)) {
      long started = System.nanoTime();
      for (int sent = 0; sent < messages; sent++) {
        while (rate > 0 && System.nanoTime() - started < sent * 1_000_000_000L / rate) {
          Thread.sleep(1);
        }
        producer.send(
            producer.messageBuilder().addData(body).build(),
            status -> {
              if (!status.isConfirmed()) {
                System.err.println("not confirmed: " + status.getCode());
                System.exit(1);
              }
              if (answers.incrementAndGet() == messages) {
                confirmed.countDown();
              }
            });
      }
      confirmed.await();
      Load.report(messages, started);
    }
  }

  private static ConsumerBuilder consumer(
      Environment environment, Map<String, String> options, OffsetSpecification from, MessageHandler handler) {
    return environment.consumerBuilder().stream(options.get("stream"))
        .offset(from)
        .noTrackingStrategy()
        .messageHandler(handler);
  }

  private static void consume(Environment environment, Map<String, String> options) throws Exception {
    int messages = Load.number(options, "messages");
    CountDownLatch done = new CountDownLatch(1);
    AtomicLong received = new AtomicLong();
    long started = System.nanoTime();
    consumer(
            environment,
            options,
            OffsetSpecification.first(),
            (context, message) -> {
              if (message.getBodyAsBinary().length == Load.MESSAGE_BYTES
                  && received.incrementAndGet() == messages) {
                done.countDown();
              }
            })
        .flow()
        .initialCredits(20)
        .builder()
        .build();
    done.await();
    Load.report(messages, started);
  }

  private static void latency(Environment environment, Map<String, String> options) throws Exception {
    Load.Latencies latencies = new Load.Latencies(options);
    consumer(
            environment,
            options,
            OffsetSpecification.next(),
            (context, message) -> latencies.received(message.getBodyAsBinary()))
        .build();
    try (Producer producer = producer(environment, options)) {
      latencies.run(
          body -> producer.send(producer.messageBuilder().addData(body).build(), status -> {}));
    }
  }
}
