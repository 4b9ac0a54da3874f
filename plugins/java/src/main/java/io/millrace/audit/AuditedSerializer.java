package io.millrace.audit;

import java.util.Map;

import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Utils;

/**
 * Serializes by the class that {@code millrace.value.serializer} names, and notes the bytes.
 *
 * <p>As {@code value.serializer} it makes the reports of {@link AuditInterceptor} state what the values contained.
 */
public final class AuditedSerializer<T> implements Serializer<T> {
    private static final String WRAPPED = "millrace.value.serializer";
    private Serializer<T> wrapped;

    @Override
    @SuppressWarnings("unchecked")
    public void configure(Map<String, ?> configs, boolean isKey) {
        Object name = configs.get(WRAPPED);
        if (name == null || isKey)
            throw new ConfigException(WRAPPED, name, "must name the class that serializes the values");
        try {
            wrapped = name instanceof Class
                    ? (Serializer<T>) Utils.newInstance((Class<?>) name)
                    : (Serializer<T>) Utils.newInstance(name.toString(), Serializer.class);
        } catch (ClassNotFoundException missing) {
            throw new ConfigException(WRAPPED, name, "is not on the class path");
        }
        wrapped.configure(configs, false);
    }

    @Override
    public byte[] serialize(String topic, T data) {
        return wrapped.serialize(topic, data);
    }

    @Override
    public byte[] serialize(String topic, Headers headers, T data) {
        byte[] value = wrapped.serialize(topic, headers, data);
        Header header = headers.lastHeader(AuditHeader.NAME);
        if (header instanceof AuditHeader) ((AuditHeader) header).hash(value);
        return value;
    }

    @Override
    public void close() {
        if (wrapped != null) wrapped.close();
    }
}
