import java.util.Map;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.command.ActiveMQQueue;

/** An ActiveMQ queue over OpenWire with asynchronous sends: produce, consume, latency. */
public final class JmsLoad {
  private JmsLoad() {}

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = Load.options(arguments);
    ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(options.get("url"));
    factory.setUseAsyncSend(true); // also for persistent messages
    factory.setOptimizeAcknowledge(true); // one acknowledgement for many messages
    factory.setCopyMessageOnSend(false);
    factory.setAlwaysSessionAsync(false);
    factory.setWatchTopicAdvisories(false);
    switch (options.get("do")) {
      case "produce" -> produce(factory, options);
      case "consume" -> consume(factory, options);
      case "delete" -> delete(factory, options);
      default -> latency(factory, options);
    }
    System.exit(0); // whatever threads the client keeps
  }

  private static void delete(ActiveMQConnectionFactory factory, Map<String, String> options)
      throws Exception {
    ActiveMQConnection connection = (ActiveMQConnection) factory.createConnection();
    connection.start();
    connection.destroyDestination(new ActiveMQQueue(options.get("queue")));
  }

  private static Session session(Connection connection, boolean transacted) throws Exception {
    connection.start();
    return connection.createSession(
        transacted, transacted ? Session.SESSION_TRANSACTED : Session.AUTO_ACKNOWLEDGE);
  }

  private static MessageProducer producer(Session session, Queue queue, Map<String, String> options)
      throws Exception {
    MessageProducer producer = session.createProducer(queue);
    boolean persistent = options.get("persistent").equals("true");
    producer.setDeliveryMode(persistent ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT);
    return producer;
  }

  private static void produce(ActiveMQConnectionFactory factory, Map<String, String> options)
      throws Exception {
    int messages = Load.number(options, "messages");
    int transaction = Integer.parseInt(options.getOrDefault("transaction", "1"));
    int rate = Integer.parseInt(options.getOrDefault("rate", "0"));
    Connection connection = factory.createConnection();
    Session session = session(connection, transaction > 1);
    MessageProducer producer = producer(session, session.createQueue(options.get("queue")), options);
    byte[] body = Load.message();
    long started = System.nanoTime();
    for (int sent = 1; sent <= messages; sent++) {
      while (rate > 0 && System.nanoTime() - started < sent * 1_000_000_000L / rate) {
        Thread.sleep(1);
      }
      producer.send(message(session, body));
      if (transaction > 1 && (sent % transaction == 0 || sent == messages)) {
        session.commit();
      }
    }
    // The broker handles a connection's commands in order: its answer to this one comes after all sends.
    session.createTemporaryQueue();
    Load.report(messages, started);
  }

  private static BytesMessage message(Session session, byte[] body) throws Exception {
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(body);
    return message;
  }

  private static void consume(ActiveMQConnectionFactory factory, Map<String, String> options)
      throws Exception {
    int messages = Load.number(options, "messages");
    Connection connection = factory.createConnection();
    Session session = session(connection, false);
    MessageConsumer consumer = session.createConsumer(session.createQueue(options.get("queue")));
    long started = System.nanoTime();
    for (int received = 0; received < messages; received++) {
      if (consumer.receive(30_000) == null) {
        throw new IllegalStateException("only " + received + " of " + messages + " messages came");
      }
    }
    Load.report(messages, started);
    connection.close(); // sends the acknowledgements that wait
  }

  private static void latency(ActiveMQConnectionFactory factory, Map<String, String> options)
      throws Exception {
    Load.Latencies latencies = new Load.Latencies(options);
    Session consuming = session(factory.createConnection(), false);
    Session producing = session(factory.createConnection(), false);
    Queue queue = consuming.createQueue(options.get("queue"));
    MessageConsumer consumer = consuming.createConsumer(queue);
    consumer.setMessageListener(
        message -> {
          try {
            byte[] body = new byte[Load.MESSAGE_BYTES];
            ((BytesMessage) message).readBytes(body);
            latencies.received(body);
          } catch (javax.jms.JMSException failed) {
            throw new IllegalStateException(failed);
          }
        });
    MessageProducer producer = producer(producing, queue, options);
    latencies.run(body -> producer.send(message(producing, body)));
  }
}
