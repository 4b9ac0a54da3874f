package io.millrace.audit;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;

/** The bytes of an audit record: framing without a schema id, then the fields in Avro's encoding. */
final class AuditRecord {
    static final int HELLO = 1;
    static final int REPORT = 2;
    private final ByteArrayOutputStream out = new ByteArrayOutputStream();

    /** Begin with the fields that hello and report share. The cluster is the one with the record. */
    AuditRecord(int kind, long time, String server, String service, long instance) {
        out.write(1);
        out.write(kind);
        number(time).text("").text(server).text(service).number(instance);
    }

    AuditRecord fixed(byte[] bytes) {
        out.write(bytes, 0, bytes.length);
        return this;
    }

    AuditRecord number(long value) {
        long left = value << 1 ^ value >> 63;
        while ((left & ~0x7FL) != 0) {
            out.write((int) (left & 0x7F | 0x80));
            left >>>= 7;
        }
        out.write((int) left);
        return this;
    }

    AuditRecord text(String value) {
        byte[] bytes = value.getBytes(StandardCharsets.UTF_8);
        return number(bytes.length).fixed(bytes);
    }

    AuditRecord flag(boolean value) {
        out.write(value ? 1 : 0);
        return this;
    }

    /** The union's branch without a value. */
    AuditRecord absent() {
        return number(0);
    }

    /** Write of each range the distance from the last number before it, then the count of further numbers. */
    AuditRecord ranges(long[][] ranges) {
        if (ranges.length > 0) number(2L * ranges.length);
        long last = 0;
        for (long[] range : ranges) {
            number(range[0] - last).number(range[1] - range[0]);
            last = range[1];
        }
        return number(0);
    }

    byte[] bytes() {
        return out.toByteArray();
    }
}
