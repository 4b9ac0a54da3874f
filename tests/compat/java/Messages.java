import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.Readable;

/**
 * Messages of Kafka's protocol as Apache Kafka's own classes read and write them, one line each.
 *
 * <p>`read NAME VERSION HEX` is answered with what the class reads as JSON, a tab and the bytes that it writes of it;
 * `write NAME VERSION JSON` with the bytes. Bytes that are left over, and whatever is thrown, are an answer `error`.
 */
public final class Messages {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HexFormat HEX = HexFormat.of();

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", 4);
            String answer;
            try {
                short version = Short.parseShort(words[2]);
                answer = words[0].equals("read") ? read(words[1], version, words[3]) : write(words[1], version, words[3]);
            } catch (InvocationTargetException error) {
                answer = "error " + error.getCause();
            } catch (Exception error) {
                answer = "error " + error;
            }
            out.println(answer.replace('\n', ' '));
        }
    }

    private static Class<?> named(String name, String kind) throws ClassNotFoundException {
        return Class.forName("org.apache.kafka.common.message." + name + kind);
    }

    private static String read(String name, short version, String hex) throws Exception {
        ByteBuffer bytes = ByteBuffer.wrap(HEX.parseHex(hex));
        var make = named(name, "Data").getConstructor(Readable.class, short.class);
        var message = (Message) make.newInstance(new ByteBufferAccessor(bytes), version);
        if (bytes.hasRemaining()) {
            return "error " + bytes.remaining() + " bytes are left over";
        }
        var asJson = named(name, "DataJsonConverter").getMethod("write", message.getClass(), short.class, boolean.class);
        return JSON.writeValueAsString(asJson.invoke(null, message, version, false)) + "\t" + written(message, version);
    }

    private static String write(String name, short version, String text) throws Exception {
        var fromJson = named(name, "DataJsonConverter").getMethod("read", JsonNode.class, short.class);
        return written((Message) fromJson.invoke(null, JSON.readTree(text), version), version);
    }

    private static String written(Message message, short version) {
        ByteBuffer buffer = MessageUtil.toByteBufferAccessor(message, version).buffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HEX.formatHex(bytes);
    }
}
