import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import java.util.Map;

/** Makes a durable classic queue, or takes the time from publish to delivery through one. */
public final class AmqpLatency {
  private AmqpLatency() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = Load.options(arguments);
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(options.get("uri"));
    String queue = options.get("queue");
    try (Connection connection = factory.newConnection()) {
      Channel consumer = connection.createChannel();
      if (options.get("do").equals("create")) {
        consumer.queueDeclare(queue, true, false, false, null);
        return;
      }
      if (options.get("do").equals("delete")) {
        consumer.queueDelete(queue);
        return;
      }
      Load.Latencies latencies = new Load.Latencies(options);
      consumer.basicConsume(queue, true, (tag, delivery) -> latencies.received(delivery.getBody()), tag -> {});
      Connection publishing = factory.newConnection(); // flow control of one must not stop the other
      Channel producer = publishing.createChannel();
      latencies.run(body -> producer.basicPublish("", queue, MessageProperties.MINIMAL_PERSISTENT_BASIC, body));
      publishing.close();
    }
  }
}
