import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/**
 * What the load classes share: options, the pace of a latency test, and the one line of JSON each prints.
 * Knows no broker.
 */
final class Load {
  static final int MESSAGE_BYTES = 200;
  private static final int WARM_UP_SECONDS = 3;
  private static final long STALL_NANOS = 20_000_000;

  private Load() {}

  /** `--key value` pairs. */
  static Map<String, String> options(String[] arguments) {
    Map<String, String> options = new HashMap<>();
    for (int i = 0; i + 1 < arguments.length; i += 2) {
      options.put(arguments[i].substring(2), arguments[i + 1]);
    }
    return options;
  }

  static int number(Map<String, String> options, String key) {
    return Integer.parseInt(options.get(key));
  }

  /** One message of random bytes, so that nothing on the way can compress it. */
  static byte[] message() {
    byte[] body = new byte[MESSAGE_BYTES];
    new Random(1).nextBytes(body);
    return body;
  }

  static void report(long messages, long startedNanos) {
    double seconds = (System.nanoTime() - startedNanos) / 1e9;
    System.out.printf("{\"messages\": %d, \"seconds\": %.6f}%n", messages, seconds);
  }

  interface Send {
    void send(byte[] body) throws Exception;
  }

  /**
   * Sends at a fixed rate and takes the time until each message comes back. A message's time starts when it
   * was due, not when it was sent: a stall counts for every message it held up. The first seconds, while the
   * JVM compiles, are not counted.
   */
  static final class Latencies {
    private final int rate;
    private final int warmUp;
    private final int total;
    private final long[] nanos;
    private int received;

    Latencies(Map<String, String> options) {
      rate = number(options, "rate");
      warmUp = WARM_UP_SECONDS * rate;
      total = warmUp + number(options, "seconds") * rate;
      nanos = new long[total];
    }

    /** Called by the consumer, in the order of arrival, by one thread at a time. */
    synchronized void received(byte[] body) {
      long due = ByteBuffer.wrap(body).getLong();
      if (received < total) {
        nanos[received++] = System.nanoTime() - due;
      }
      if (received == total) {
        notifyAll();
      }
    }

    void run(Send send) throws Exception {
      long started = System.nanoTime();
      byte[] template = message();
      for (int sent = 0; sent < total; ) {
        long now = System.nanoTime();
        for (; sent < total && started + sent * 1_000_000_000L / rate <= now; sent++) {
          byte[] body = template.clone();
          ByteBuffer.wrap(body).putLong(started + sent * 1_000_000_000L / rate);
          send.send(body);
        }
        Thread.sleep(0, 200_000);
      }
      await();
      print(started);
    }

    private synchronized void await() throws InterruptedException {
      long deadline = System.currentTimeMillis() + 30_000;
      while (received < total) {
        long left = deadline - System.currentTimeMillis();
        if (left <= 0) {
          throw new IllegalStateException("only " + received + " of " + total + " messages came back");
        }
        wait(left);
      }
    }

    /** Each time that messages came later than STALL_NANOS, however many one after the other. */
    private int stalls() {
      int stalls = 0;
      for (int i = warmUp; i < total; i++) {
        if (nanos[i] > STALL_NANOS && (i == warmUp || nanos[i - 1] <= STALL_NANOS)) {
          stalls++;
        }
      }
      return stalls;
    }

    private void print(long started) {
      int stalls = stalls();
      long[] counted = Arrays.copyOfRange(nanos, warmUp, total);
      Arrays.sort(counted);
      System.out.printf(
          "{\"messages\": %d, \"seconds\": %.6f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, \"p999_ms\": %.3f,"
              + " \"max_ms\": %.3f, \"stalls\": %d}%n",
          total,
          (System.nanoTime() - started) / 1e9,
          counted[counted.length / 2] / 1e6,
          counted[(int) (counted.length * 0.99)] / 1e6,
          counted[(int) (counted.length * 0.999)] / 1e6,
          counted[counted.length - 1] / 1e6,
          stalls);
    }
  }
}
