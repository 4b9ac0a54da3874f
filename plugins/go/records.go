package audit

import (
	"crypto/rand"
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	headerName = "millrace.audit"
	headerSize = 29
	windowMs   = 600_000
	kindHello  = 1
	kindReport = 2
	maxRanges  = 20_000 // in a report
	maxWindows = 1_000  // in a report
)

// span is a range of sequences.
type span struct{ first, last int64 }

// part is as much of a window as fits into a report.
type part struct {
	topic                          string
	window                         int64
	acknowledged, failed           []span
	fingerprint, failedFingerprint uint64
}

func (p part) ranges() int { return len(p.acknowledged) + len(p.failed) }

// parts splits a window. The first part has the fingerprints: the auditor adds those of all parts.
func (w *window) parts(topic string, start int64) (parts []part) {
	acknowledged, failed := spans(w.acknowledged.sequences), spans(w.failed.sequences)
	for {
		p := part{topic: topic, window: start}
		p.acknowledged, acknowledged = split(acknowledged, maxRanges)
		p.failed, failed = split(failed, maxRanges-len(p.acknowledged))
		if len(parts) == 0 {
			p.fingerprint, p.failedFingerprint = w.acknowledged.fingerprint, w.failed.fingerprint
		}
		parts = append(parts, p)
		if len(acknowledged)+len(failed) == 0 {
			return parts
		}
	}
}

func split(all []span, most int) (head, tail []span) {
	n := min(len(all), most)
	return all[:n], all[n:]
}

// spans returns the ranges of sequences in ascending order. It sorts the sequences.
func spans(sequences []int64) (all []span) {
	slices.Sort(sequences)
	for _, sequence := range sequences {
		if n := len(all); n > 0 && all[n-1].last+1 == sequence {
			all[n-1].last = sequence
		} else {
			all = append(all, span{sequence, sequence})
		}
	}
	return all
}

func windowOf(ms int64) int64 {
	return ms - (ms%windowMs+windowMs)%windowMs
}

func newInstance() int64 {
	var random [8]byte
	rand.Read(random[:])
	return int64(binary.BigEndian.Uint64(random[:]) >> 1)
}

func newKey() (key [16]byte) {
	rand.Read(key[:])
	return key
}

// setHeader replaces the audit headers of a record; nil removes them. The application's slice stays as it is, because
// several records may share it.
func setHeader(r *kgo.Record, value []byte) {
	headers := make([]kgo.RecordHeader, 0, 1+len(r.Headers))
	if value != nil {
		headers = append(headers, kgo.RecordHeader{Key: headerName, Value: value})
	}
	for _, header := range r.Headers {
		if header.Key != headerName {
			headers = append(headers, header)
		}
	}
	r.Headers = headers
}

func encodeHeader(tag uint32, instance, sequence, ms int64) []byte {
	b := append(make([]byte, 0, headerSize), 1)
	b = binary.BigEndian.AppendUint32(b, tag)
	b = binary.BigEndian.AppendUint64(b, uint64(instance))
	b = binary.BigEndian.AppendUint64(b, uint64(sequence))
	return binary.BigEndian.AppendUint64(b, uint64(ms))
}

// decodeHeader returns the sequence and the time of a header of this instance and topic.
func decodeHeader(b []byte, tag uint32, instance int64) (sequence, ms int64, ok bool) {
	if len(b) != headerSize || binary.BigEndian.Uint32(b[1:]) != tag ||
		binary.BigEndian.Uint64(b[5:]) != uint64(instance) {
		return 0, 0, false
	}
	return int64(binary.BigEndian.Uint64(b[13:])), int64(binary.BigEndian.Uint64(b[21:])), true
}

// identity is the sender of hellos and reports.
type identity struct {
	server, service string
	instance        int64
}

// begin writes the framing without a schema id, and the fields that hello and report share. Avro's long is Go's
// varint. The cluster is empty: it is the one with the record.
func (id identity) begin(kind byte, now int64) []byte {
	b := binary.AppendVarint([]byte{1, kind}, now)
	b = appendText(b, "")
	b = appendText(b, id.server)
	b = appendText(b, id.service)
	return binary.AppendVarint(b, id.instance)
}

func (id identity) hello(now int64, topic string, closedThrough int64, seal [32]byte) []byte {
	b := appendText(id.begin(kindHello, now), topic)
	b = binary.AppendVarint(b, closedThrough)
	return append(b, seal[:]...)
}

func (id identity) report(
	now, number int64, key [16]byte, seal [32]byte, closedThrough int64, parts []part,
) []byte {
	b := binary.AppendVarint(id.begin(kindReport, now), number)
	b = append(append(b, key[:]...), seal[:]...)
	b = binary.AppendVarint(b, closedThrough)
	if len(parts) > 0 {
		b = binary.AppendVarint(b, int64(len(parts)))
	}
	for _, p := range parts {
		b = binary.AppendVarint(appendText(b, p.topic), p.window)
		b = appendSpans(appendSpans(b, p.acknowledged), p.failed)
		b = binary.AppendVarint(b, int64(p.fingerprint))
		b = binary.AppendVarint(b, int64(p.failedFingerprint))
		b = append(b, 0, 0) // no strong fingerprints
	}
	return append(b, 0, 1) // the end of the windows; with fingerprints
}

// appendSpans writes of each range the distance from the last number before it, then the count of further numbers.
func appendSpans(b []byte, all []span) []byte {
	if len(all) > 0 {
		b = binary.AppendVarint(b, int64(2*len(all)))
	}
	last := int64(0)
	for _, s := range all {
		b = binary.AppendVarint(binary.AppendVarint(b, s.first-last), s.last-s.first)
		last = s.last
	}
	return append(b, 0)
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendVarint(b, int64(len(text))), text...)
}
