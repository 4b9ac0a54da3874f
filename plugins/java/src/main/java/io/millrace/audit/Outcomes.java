package io.millrace.audit;

import java.util.Arrays;

/** Sequences with one outcome in one window, and the sum of their fingerprints. */
final class Outcomes {
    long fingerprint;
    /** Events whose value's bytes were seen. */
    int hashed;
    int count;
    private long[] sequences = new long[8];

    void add(long sequence, long fingerprint, boolean hasFingerprint) {
        if (count == sequences.length) sequences = Arrays.copyOf(sequences, 2 * count);
        sequences[count++] = sequence;
        this.fingerprint += fingerprint;
        if (hasFingerprint) hashed++;
    }

    void addAll(Outcomes other) {
        if (sequences.length < count + other.count)
            sequences = Arrays.copyOf(sequences, Math.max(2 * count, count + other.count));
        System.arraycopy(other.sequences, 0, sequences, count, other.count);
        count += other.count;
        fingerprint += other.fingerprint;
        hashed += other.hashed;
    }

    boolean isFingerprinted() {
        return hashed == count;
    }

    /** Return the ranges in ascending order: first and last sequence of each. */
    long[][] ranges() {
        long[] sorted = Arrays.copyOf(sequences, count);
        Arrays.sort(sorted);
        long[][] ranges = new long[count][];
        int size = 0;
        for (long sequence : sorted) {
            if (size > 0 && ranges[size - 1][1] + 1 == sequence) ranges[size - 1][1] = sequence;
            else ranges[size++] = new long[] {sequence, sequence};
        }
        return Arrays.copyOf(ranges, size);
    }
}
