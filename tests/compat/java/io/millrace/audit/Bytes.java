package io.millrace.audit;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;

/** One job a line of the standard input, and its answer a line: what the tests compare with Python. */
public class Bytes {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            System.out.println(words[0].equals("xxh64") ? hash(words)
                    : words[0].equals("header") ? header(words)
                    : words[0].equals("settledAfterMs") ? settledAfterMs(words) : ranges(words));
        }
    }

    private static String hash(String[] words) {
        byte[] value = unhex(words.length > 2 ? words[2] : "");
        return Long.toString(XxHash64.hash(value, Long.parseLong(words[1])));
    }

    private static String header(String[] words) {
        return hex(AuditHeader.encode(AuditedTopic.tagOf(words[1]),
                Long.parseLong(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4])));
    }

    private static String ranges(String[] words) {
        Outcomes outcomes = new Outcomes();
        for (int n = 1; n < words.length; n++) outcomes.add(Long.parseLong(words[n]), 0, true);
        StringJoiner text = new StringJoiner(" ");
        for (long[] range : outcomes.ranges()) text.add(range[0] + "-" + range[1]);
        return text.toString();
    }

    private static String settledAfterMs(String[] words) {
        Map<String, String> configs = new HashMap<>();
        for (int n = 1; n < words.length; n += 2) configs.put(words[n], words[n + 1]);
        return Long.toString(AuditInterceptor.settledAfterMs(configs));
    }

    private static byte[] unhex(String text) {
        byte[] bytes = new byte[text.length() / 2];
        for (int n = 0; n < bytes.length; n++)
            bytes[n] = (byte) Integer.parseInt(text.substring(2 * n, 2 * n + 2), 16);
        return bytes;
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) text.append(String.format("%02x", one));
        return text.toString();
    }
}
